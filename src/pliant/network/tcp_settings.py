"""Settings of TCP that an emulated host has in its own network namespace."""

from dataclasses import dataclass

from pliant.network.addresses import PREFIX
from pliant.network.namespaces import Namespace
from pliant.spec import Topology

__all__ = ["CONGESTION", "IN_FLIGHT", "TcpSettings", "with_send_buffer"]

CONGESTION = "reno"
"""Congestion control of emulated hosts, unless another is asked for. bbr paces by itself, and so fights the shapers."""
IN_FLIGHT = 0.65
"""Part of a send buffer that is payload on its way; the rest is what the kernel needs to keep it."""
_SETTINGS = "/proc/sys/net/ipv4/"
_LEAST_BYTES, _FIRST_BYTES = 4096, 16384
"""First two numbers of tcp_wmem, which are the kernel's."""
_RECEIVED = 2
"""Receive buffer for each byte of a send buffer, at least: of it half or more is the window that Linux announces."""


@dataclass(frozen=True, kw_only=True)
class TcpSettings:
    """Congestion control, restarts after a pause, and the largest send buffer."""

    congestion: str = CONGESTION
    slow_start_after_idle: bool = True
    send_buffer_bytes: int = 0
    """0: what the machine has."""

    @classmethod
    def of(cls, topology: Topology, congestion: str) -> "TcpSettings":
        """Return what a topology states (`restarts_slowly`, `window_bytes`)."""
        buffer_bytes = round(topology.window_bytes / IN_FLIGHT)
        return cls(
            congestion=congestion,
            slow_start_after_idle=topology.restarts_slowly,
            send_buffer_bytes=max(buffer_bytes, _FIRST_BYTES) if buffer_bytes else 0,
        )

    @property
    def text(self) -> str:
        """All settings in words, for a table."""
        buffer = f", tcp_wmem = {self.send_buffer_bytes} bytes" if self.send_buffer_bytes else ""
        idle = f"tcp_slow_start_after_idle = {int(self.slow_start_after_idle)}"
        return f"TCP's congestion control is {self.congestion}, {idle}{buffer}"

    def apply(self, host: Namespace, address: str) -> None:
        """Write them in a host's namespace, in which eth0 has this address."""
        host.run("tee", f"{_SETTINGS}tcp_congestion_control", text=CONGESTION)
        host.run("tee", f"{_SETTINGS}tcp_slow_start_after_idle", text=str(int(self.slow_start_after_idle)))
        if self.send_buffer_bytes:
            three = f"{_LEAST_BYTES} {_FIRST_BYTES} {self.send_buffer_bytes}"
            host.run("tee", f"{_SETTINGS}tcp_wmem", text=three)
            least, first, most = host.run("cat", f"{_SETTINGS}tcp_rmem").split()
            if (wanted := _RECEIVED * self.send_buffer_bytes) > int(most):  # else the receiver would hold senders up
                host.run("tee", f"{_SETTINGS}tcp_rmem", text=f"{least} {first} {wanted}")
        if self.congestion != CONGESTION:
            # By the route, since inside a namespace a kernel may allow less for the setting above (not cubic).
            where = (PREFIX, "dev", "eth0", "proto", "kernel", "scope", "link", "src", address)
            host.run("ip", "route", "replace", *where, "congctl", self.congestion)


def with_send_buffer(buffer_bytes: int) -> float:
    """Return the payload that a connection has on its way, with so large a send buffer; for `Topology.window_bytes`.

    Raises:
        ValueError: The buffer is smaller than the kernel's first one.

    """
    if buffer_bytes and buffer_bytes < _FIRST_BYTES:
        raise ValueError(
            f"a send buffer of {buffer_bytes} bytes is below the {_FIRST_BYTES} that a connection begins with; give at "
            "least as many, or 0 for the machine's own."
        )
    return IN_FLIGHT * buffer_bytes
