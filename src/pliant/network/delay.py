"""Extra delay of everything that a host receives: netem where the kernel has it, a relay in user space otherwise."""

import importlib.util
import os
import select
import shutil
import subprocess
from pathlib import Path

from pliant.network.namespaces import CannotEmulateError, Namespace, die_with_parent

__all__ = ["DelayRelay", "delay_with_netem"]

_QUEUE_NUMBER = "7"
_READY_S = 5.0


def delay_with_netem(host: Namespace, bridge: Namespace, device: str, delay_s: float) -> bool:
    """Try to delay what leaves the bridge towards a host, behind its shaper; say whether the kernel can.

    `device` is the bridge's port of the host.
    """
    del host
    parent = ["parent", "1:"] if "tbf 1:" in bridge.run("tc", "qdisc", "show", "dev", device) else ["root"]
    command = ["tc", "qdisc", "add", "dev", device, *parent, "handle", "2:", "netem"]
    try:
        bridge.run(*command, "delay", f"{delay_s * 1e6:.0f}us", "limit", "100000")
    except CannotEmulateError:
        return False
    return True


class DelayRelay:
    """Holds every packet that a host receives for a fixed time, by an NFQUEUE rule and a small C program."""

    def __init__(self, host: Namespace, delay_s: float) -> None:
        if shutil.which("iptables") is None:
            raise CannotEmulateError(
                "this kernel has no netem, so delays need the program iptables; install the Debian package iptables."
            )
        # The older tables: some kernels have the NFQUEUE target only for them.
        program = "iptables-legacy" if shutil.which("iptables-legacy") else "iptables"
        rule = ["-i", "eth0", "-j", "NFQUEUE", "--queue-num", _QUEUE_NUMBER, "--queue-bypass"]
        host.run(program, "-A", "INPUT", *rule)
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
        if not ready:
            self._relay.kill()
            error = self._relay.stderr.read().decode().strip() if self._relay.stderr is not None else ""
            raise CannotEmulateError(f"the delay relay of host {host.name} did not start: {error or 'no answer'}.")

    def close(self) -> None:
        """End the relay; the rule goes with the namespace."""
        self._relay.kill()
        self._relay.wait()
        for pipe in (self._relay.stdout, self._relay.stderr):
            if pipe is not None:
                pipe.close()


def _relay_path() -> Path:
    spec = importlib.util.find_spec("pliant.network._delay_relay")
    if spec is None or spec.origin is None:
        raise CannotEmulateError(
            "Pliant's compiled delay relay is missing: this is a source tree that was never built; "
            "install the package (pip install .), or build in place as CMakeLists.txt says."
        )
    return Path(spec.origin)
