"""Extra delay of everything that a host receives: netem where the kernel has it, a relay in user space otherwise."""

import importlib.util
import os
import select
import shutil
import subprocess
from pathlib import Path

from pliant.network.namespaces import CannotEmulateError, Namespace, die_with_parent
from pliant.network.shaping import netem_command

__all__ = ["DelayRelay", "delay_with_netem"]

_QUEUE_NUMBER = "7"
_READY_S = 5.0


def delay_with_netem(bridge: Namespace, port: str, delay_s: float) -> bool:
    """Try to delay what leaves the bridge by a host's port; say whether the kernel can."""
    try:
        bridge.run(*netem_command(port, delay_s))
    except CannotEmulateError:
        return False
    return True


class DelayRelay:
    """Holds every packet that a host receives for a fixed time, by an NFQUEUE rule and a small C program."""

    def __init__(self, host: Namespace, delay_s: float) -> None:
        self._host = host
        self._relay = subprocess.Popen(
            [*host.prefix(), str(_relay_path()), _QUEUE_NUMBER, f"{delay_s * 1e6:.0f}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=die_with_parent(os.getpid()),
            start_new_session=True,
        )
        out = self._relay.stdout
        ready = out is not None and select.select([out], [], [], _READY_S)[0] and out.readline() == b"ready\n"
        try:
            if not ready:
                self._relay.kill()
                error = self._relay.stderr.read().decode().strip() if self._relay.stderr is not None else ""
                raise CannotEmulateError(f"the delay relay of host {host.name} did not start: {error or 'no answer'}.")
            self._undo = _divert(host)  # last: without a relay that listens, the kernel drops what is sent to its queue
        except BaseException:
            self.close()
            raise

    def remove(self) -> None:
        """Remove the rule, so that nothing is sent to a queue that nobody serves, then end the relay."""
        self._host.run(*self._undo)
        self.close()

    def close(self) -> None:
        """End the relay; the rule goes with the namespace."""
        self._relay.kill()
        self._relay.wait()
        for pipe in (self._relay.stdout, self._relay.stderr):
            if pipe is not None:
                pipe.close()


def _divert(host: Namespace) -> list[str]:
    """Send all that the host receives to the relay's queue; return the command that undoes it."""
    # The older tables first: some kernels have the NFQUEUE target only for them, others have only the newer.
    programs = [program for program in ("iptables-legacy", "iptables") if shutil.which(program) is not None]
    if not programs:
        raise CannotEmulateError(
            "this kernel has no netem, so delays need the program iptables; install the Debian package iptables."
        )
    # Each host has tables of its own, so nobody needs the lock, whose file an ordinary user may not write.
    rule = ["INPUT", "-i", "eth0", "-j", "NFQUEUE", "--queue-num", _QUEUE_NUMBER]
    errors: list[str] = []
    for program in programs:
        command = ["env", "XTABLES_LOCKFILE=/dev/null", program]
        try:
            host.run(*command, "-A", *rule)
        except CannotEmulateError as error:
            errors.append(str(error))
        else:
            return [*command, "-D", *rule]
    raise CannotEmulateError(
        "this kernel has no netem, and its packet filter has no NFQUEUE either (modules sch_netem, xt_NFQUEUE): "
        + " ".join(errors)
    )


def _relay_path() -> Path:
    spec = importlib.util.find_spec("pliant.network._delay_relay")
    if spec is None or spec.origin is None:
        raise CannotEmulateError(
            "Pliant's compiled delay relay is missing: this is a source tree that was never built; "
            "install the package (pip install .), or build in place as CMakeLists.txt says."
        )
    return Path(spec.origin)
