"""Delay of what a host receives: netem where the kernel has it and all is equally late, else a relay in user space."""

import importlib.util
import os
import select
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pliant.network.addresses import address_of
from pliant.network.host_shape import Incoming
from pliant.network.namespaces import CannotEmulateError, Namespace, die_with_parent
from pliant.network.shaping import netem_command

__all__ = ["DelayRelay", "delay_with_netem"]

_OTHERS = 0  # number of the queue of sources without one of their own
_READY_S = 5.0


def delay_with_netem(bridge: Namespace, port: str, delay_s: float) -> bool:
    """Try to delay what leaves the bridge by a host's port; say whether the kernel can."""
    try:
        bridge.run(*netem_command(port, delay_s))
    except CannotEmulateError:
        return False
    return True


class DelayRelay:
    """Holds packets that a host receives, for each source as long as is asked, by NFQUEUE rules and a C program.

    One program a host, with one queue for each source that has figures of its own, and one for all others. It ends with
    this thread, however that ends, and when its input does.
    """

    def __init__(self, host: Namespace, *, seed: int = 1) -> None:
        self._host = host
        self._tables: list[str] = []
        self._rules = ""
        self._relay = subprocess.Popen(
            [*host.prefix(), str(_relay_path()), str(seed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=die_with_parent(os.getpid()),
            process_group=0,  # see Note [one session]
        )

    def shape(self, delay_s: float, incoming: Sequence[Incoming] = ()) -> None:
        """Hold packets as `incoming` says, and those of other sources for `delay_s`; held ones keep their time.

        Raises:
            CannotEmulateError: The relay is gone or cannot get a queue, or the kernel has no rules for queues.

        """
        try:
            self._tell(_OTHERS, delay_s, 0.0, 0.0)
            for i in incoming:
                self._tell(_queue_of(i.source), i.delay_s, i.jitter_s, i.loss)
            # Last: without a queue that the relay listens to, the kernel drops what is sent there.
            rules = _rules(others=bool(delay_s), sources=[i.source for i in incoming])
            if rules != self._rules:
                self._tables = self._tables or _tables(self._host)
                self._host.run(*self._tables, text=rules)
                self._rules = rules
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the relay; the rules go with the namespace."""
        self._relay.kill()
        self._relay.communicate()

    def _tell(self, queue: int, delay_s: float, jitter_s: float, loss: float) -> None:
        """Set a queue's figures, and wait until the relay has them."""
        relay, answer = self._relay, ""
        if relay.stdin is None or relay.stdout is None or relay.stderr is None:
            raise RuntimeError("the delay relay was started without pipes, but it is told through them.")
        with suppress(BrokenPipeError):
            relay.stdin.write(f"{queue} {delay_s * 1e6:.0f} {jitter_s * 1e6:.0f} {loss:.9f}\n")
            relay.stdin.flush()
            if select.select([relay.stdout], [], [], _READY_S)[0]:
                answer = relay.stdout.readline()
        if answer != "ready\n":
            relay.kill()
            error = relay.stderr.read().strip() or "no answer"
            raise CannotEmulateError(f"the delay relay of host {self._host.name} does not do its work: {error}.")


def _queue_of(source: int) -> int:
    return source + 1


def _rules(*, others: bool, sources: Sequence[int]) -> str:
    """Return the packet filter of a host: what arrives from whom goes to which queue."""
    lines = [f"-A INPUT -i eth0 -s {address_of(k)}/32 -j NFQUEUE --queue-num {_queue_of(k)}" for k in sources]
    if others:
        lines.append(f"-A INPUT -i eth0 -j NFQUEUE --queue-num {_OTHERS}")
    return "\n".join(["*filter", *lines, "COMMIT", ""])


def _tables(host: Namespace) -> list[str]:
    """Return the command that loads a packet filter with queues on this kernel."""
    # The older tables first: some kernels have the NFQUEUE target only for them, others have only the newer.
    programs = [name for name in ("iptables-legacy-restore", "iptables-restore") if shutil.which(name) is not None]
    if not programs:
        raise CannotEmulateError(
            "delays need the program iptables where the kernel has no netem, and so do delays, jitters and losses of "
            "links everywhere; install the Debian package iptables."
        )
    errors: list[str] = []
    for program in programs:
        # Each host has tables of its own, so nobody needs the lock, whose file an ordinary user may not write.
        command = ["env", "XTABLES_LOCKFILE=/dev/null", program]
        try:
            host.run(*command, text=_rules(others=True, sources=[]))
        except CannotEmulateError as error:
            errors.append(str(error))
        else:
            return command
    raise CannotEmulateError(
        "this kernel's packet filter has no NFQUEUE (module xt_NFQUEUE), which holds packets where there is no netem: "
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
