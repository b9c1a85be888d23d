"""The switch of a rack, and its connection to the other racks: plugged once, shaped as often as one likes."""

from pliant.network.namespaces import Namespace
from pliant.network.shaping import tbf_command
from pliant.spec import Rack

__all__ = ["CORE", "RackSwitch"]

CORE = "br0"
"""The switch that joins racks, or, where there are none, hosts."""


class RackSwitch:
    """A switch in the bridges' namespace, and a pair of ports between it and the core: what leaves by one is shaped."""

    def __init__(self, bridge: Namespace, number: int, burst: int) -> None:
        self._bridge, self._burst = bridge, burst
        self.switch = f"rack{number}"
        """Where the rack's hosts are plugged in."""
        self._up, self._down = f"up{number}", f"down{number}"
        self._shaped: list[str] = []
        bridge.run("ip", "link", "add", self.switch, "type", "bridge")
        bridge.run("ip", "link", "set", self.switch, "up")
        bridge.run("ip", "link", "add", self._up, "type", "veth", "peer", "name", self._down)
        bridge.run("ip", "link", "set", self._up, "master", self.switch, "up")
        bridge.run("ip", "link", "set", self._down, "master", CORE, "up")

    def shape(self, spec: Rack) -> None:
        """Give the uplink a rack's rates, in the place of what it had."""
        while self._shaped:
            self._bridge.run("tc", "qdisc", "del", "dev", self._shaped.pop(), "root")
        for port, rate in ((self._up, spec.send_bytes_per_s), (self._down, spec.receive_bytes_per_s)):
            if command := tbf_command(port, rate, burst=self._burst):
                self._bridge.run(*command)
                self._shaped.append(port)
