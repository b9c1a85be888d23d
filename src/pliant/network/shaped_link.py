"""The connection of one host to a switch: plugged once, shaped as often as one likes."""

from pliant.network.delay import DelayRelay, delay_with_netem
from pliant.network.namespaces import Namespace
from pliant.network.shaping import tbf_command
from pliant.spec import Host

__all__ = ["ShapedLink"]


class ShapedLink:
    """A host's interface and its port of a switch. Both go with their namespaces; `close` ends the delay relay."""

    def __init__(
        self, host: Namespace, bridge: Namespace, number: int, address: str, *, switch: str, burst: int
    ) -> None:
        self._burst = burst
        self._host, self._bridge, self._port = host, bridge, f"port{number}"
        self._relay: DelayRelay | None = None
        self._shaped: list[tuple[Namespace, str]] = []
        bridge.run("ip", "link", "add", self._port, "type", "veth", "peer", "name", "eth0", "netns", str(host.pid))
        bridge.run("ip", "link", "set", self._port, "master", switch, "up")
        host.run("ip", "link", "set", "lo", "up")
        host.run("ip", "addr", "add", f"{address}/24", "dev", "eth0")
        host.run("ip", "link", "set", "eth0", "up")
        # bbr fights the shapers, and cubic may not be set inside a namespace.
        host.run("tee", "/proc/sys/net/ipv4/tcp_congestion_control", text="reno")

    def shape(self, spec: Host) -> None:
        """Give the link a host's rates and delay, in the place of what it had.

        The calling thread must live as long as the delay shall.
        """
        self._clear()
        if command := tbf_command("eth0", spec.send_bytes_per_s, burst=self._burst):
            self._host.run(*command)
            self._shaped.append((self._host, "eth0"))
        held = bool(spec.delay_s) and delay_with_netem(self._bridge, self._port, spec.delay_s)
        command = tbf_command(self._port, spec.receive_bytes_per_s, behind_delay=held, burst=self._burst)
        if command:
            self._bridge.run(*command)
        if command or held:
            self._shaped.append((self._bridge, self._port))
        if spec.delay_s and not held:
            self._relay = DelayRelay(self._host, spec.delay_s)

    def close(self) -> None:
        """End the delay relay, if there is one."""
        if self._relay is not None:
            self._relay.close()

    def _clear(self) -> None:
        if self._relay is not None:
            self._relay.remove()
            self._relay = None
        while self._shaped:
            namespace, device = self._shaped.pop()
            namespace.run("tc", "qdisc", "del", "dev", device, "root")
