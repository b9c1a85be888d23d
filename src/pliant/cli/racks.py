"""Racks as flags: so many, and the rate between them."""

import dataclasses
from itertools import pairwise
from typing import Annotated

import typer

from pliant.spec import Rack, Topology
from pliant.spec.units import parse_rate

__all__ = ["RacksOption", "UplinkOption", "split_into_racks"]

RacksOption = Annotated[int, typer.Option(help="Divide the hosts into so many racks; with --uplink.")]
UplinkOption = Annotated[str, typer.Option(help="Rate of each rack's link to the others, both ways: 25mbit, none.")]


def split_into_racks(topology: Topology, num_racks: int, uplink: str) -> Topology:
    """Return the hosts in so many racks of neighbours, as equal as may be, with this rate between them, both ways.

    Args:
        topology: Hosts without racks.
        num_racks: 0 leaves them so.
        uplink: Of each rack, such as '25mbit', or 'none'; empty if there are no racks.

    Raises:
        ValueError: One of the two is given without the other, or there are more racks than hosts.

    """
    if not num_racks and not uplink:
        return topology
    if num_racks < 1 or not uplink:
        raise ValueError(
            f"--racks is {num_racks} and --uplink {uplink or 'not given'}, but racks and the rate between them go "
            "together, as in --racks 2 --uplink 25mbit."
        )
    names = [host.name for host in topology.hosts]
    if num_racks > len(names):
        raise ValueError(f"--racks is {num_racks}, but there are {len(names)} hosts; a rack has at least one.")
    bytes_per_s = 0.0 if uplink == "none" else parse_rate(uplink)
    cuts = [len(names) * k // num_racks for k in range(num_racks + 1)]
    racks = tuple(
        Rack(name=f"rack{k}", hosts=tuple(names[a:b]), send_bytes_per_s=bytes_per_s, receive_bytes_per_s=bytes_per_s)
        for k, (a, b) in enumerate(pairwise(cuts))
    )
    return dataclasses.replace(topology, racks=racks)
