"""The connection of one host to a switch: plugged once, shaped as often as one likes."""

from pathlib import Path

from pliant.network.delay import DelayRelay, delay_with_netem
from pliant.network.host_shape import HostShape
from pliant.network.namespaces import CannotEmulateError, Namespace
from pliant.network.shaping import gso_bytes, htb_lines, tbf_command
from pliant.network.tcp_settings import TcpSettings

__all__ = ["ShapedLink", "require_congestion"]

_AVAILABLE = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")


def require_congestion(name: str) -> None:
    """Raise CannotEmulateError for a congestion control that this kernel has not loaded."""
    available = _AVAILABLE.read_text(encoding="ascii").split()
    if name not in available:
        raise CannotEmulateError(
            f"the congestion control {name!r} is asked for, but this kernel has {', '.join(available)}; name one of "
            f"them, or load it (modprobe tcp_{name})."
        )


class ShapedLink:
    """A host's interface and its port of a switch. Both go with their namespaces; `close` ends the delay relay."""

    def __init__(
        self,
        host: Namespace,
        bridge: Namespace,
        number: int,
        address: str,
        *,
        switch: str,
        burst: int,
        tcp: TcpSettings,
    ) -> None:
        self._burst, self._number = burst, number
        self._host, self._bridge, self._port = host, bridge, f"port{number}"
        self._relay: DelayRelay | None = None
        self._sending: tuple[object, ...] = ()
        """Kind of shaper on eth0, and its classes; empty without one."""
        self._held = self._limited = False
        """Whether the port has netem, and whether it has a shaper."""
        bridge.run("ip", "link", "add", self._port, "type", "veth", "peer", "name", "eth0", "netns", str(host.pid))
        bridge.run("ip", "link", "set", self._port, "master", switch, "up")
        host.run("ip", "link", "set", "lo", "up")
        host.run("ip", "addr", "add", f"{address}/24", "dev", "eth0")
        host.run("ip", "link", "set", "eth0", "up")
        tcp.apply(host, address)

    def shape(self, spec: HostShape) -> None:
        """Give the link rates, delays, jitters and losses, in the place of what it had.

        Where only figures change, packets that wait keep waiting. The calling thread must live as long as the delays
        shall.
        """
        self._shape_sending(spec)
        self._shape_receiving(spec)
        if self._relay is None and spec.is_late and not self._held:
            self._relay = DelayRelay(self._host, seed=self._number + 1)
        if self._relay is not None:
            self._relay.shape(spec.delay_s, spec.incoming)

    def close(self) -> None:
        """End the delay relay, if there is one."""
        if self._relay is not None:
            self._relay.close()

    def _shape_sending(self, spec: HostShape) -> None:
        before = self._sending
        self._host.run("ip", "link", "set", "eth0", "gso_max_size", str(gso_bytes(spec)))
        targets = tuple(o.target for o in spec.outgoing)
        command = tbf_command("eth0", spec.send_bytes_per_s, burst=self._burst, round_trip_s=spec.round_trip_s)
        self._sending = ("htb", bool(command), targets) if targets else ("tbf",) if command else ()
        if before and before != self._sending:
            self._host.run("tc", "qdisc", "del", "dev", "eth0", "root")
        if targets:
            lines = htb_lines("eth0", spec, burst=self._burst, fresh=before != self._sending)
            self._host.run("tc", "-batch", "-", text="\n".join(lines) + "\n")
        elif command:
            self._host.run(*command)

    def _shape_receiving(self, spec: HostShape) -> None:
        """Limit what arrives, and delay it with netem, if all of it is equally late and the kernel can."""
        hold = bool(spec.delay_s) and not spec.incoming and self._relay is None
        if self._held and not hold:
            self._bridge.run("tc", "qdisc", "del", "dev", self._port, "root")
            self._held = self._limited = False
        if hold and delay_with_netem(self._bridge, self._port, spec.delay_s):
            self._limited = self._limited and self._held  # a shaper that was alone has made room for netem
            self._held = True
        rate, trip_s = spec.receive_bytes_per_s, spec.round_trip_s
        command = tbf_command(self._port, rate, behind_delay=self._held, burst=self._burst, round_trip_s=trip_s)
        if command:
            self._bridge.run(*command)
        elif self._limited:
            self._bridge.run("tc", "qdisc", "del", "dev", self._port, *(("parent", "1:1") if self._held else ("root",)))
        self._limited = bool(command)
