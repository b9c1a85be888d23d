"""The switch of a rack, and its connection to the other racks: plugged once, shaped as often as one likes."""

from collections.abc import Sequence

from pliant.network.host_shape import HostShape
from pliant.network.namespaces import Namespace
from pliant.network.shaping import tbf_command
from pliant.spec import Rack, Topology

__all__ = ["CORE", "RackSwitch", "shape_uplinks"]

CORE = "br0"
"""The switch that joins racks, or, where there are none, hosts."""


class RackSwitch:
    """A switch in the bridges' namespace, and a pair of ports between it and the core: what leaves by one is shaped."""

    def __init__(self, bridge: Namespace, number: int, burst: int) -> None:
        self._bridge, self._burst = bridge, burst
        self.switch = f"rack{number}"
        """Where the rack's hosts are plugged in."""
        self._up, self._down = f"up{number}", f"down{number}"
        self._shaped = set[str]()
        bridge.run("ip", "link", "add", self.switch, "type", "bridge")
        bridge.run("ip", "link", "set", self.switch, "up")
        bridge.run("ip", "link", "add", self._up, "type", "veth", "peer", "name", self._down)
        bridge.run("ip", "link", "set", self._up, "master", self.switch, "up")
        bridge.run("ip", "link", "set", self._down, "master", CORE, "up")

    def shape(self, spec: Rack, round_trip_s: float = 0.0) -> None:
        """Give the uplink a rack's rates, in the place of what it had; packets that wait keep waiting.

        Args:
            spec: The rack.
            round_trip_s: Longest one of its hosts, for which its queues have room.

        """
        for port, rate in ((self._up, spec.send_bytes_per_s), (self._down, spec.receive_bytes_per_s)):
            if command := tbf_command(port, rate, burst=self._burst, round_trip_s=round_trip_s):
                self._bridge.run(*command)
                self._shaped.add(port)
            elif port in self._shaped:
                self._bridge.run("tc", "qdisc", "del", "dev", port, "root")
                self._shaped.remove(port)


def shape_uplinks(uplinks: Sequence[RackSwitch], topology: Topology, shapes: Sequence[HostShape]) -> None:
    """Give uplinks the rates of a topology's racks, and room for the round trips of hosts, which have these shapes."""
    for k, (uplink, rack) in enumerate(zip(uplinks, topology.racks, strict=True)):
        inside = (shape for shape, at in zip(shapes, topology.rack_of(), strict=True) if at == k)
        uplink.shape(rack, max(shape.round_trip_s for shape in inside))
