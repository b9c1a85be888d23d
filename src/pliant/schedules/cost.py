"""Cost of a schedule on a topology, block by block, and a bound that none can beat."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pliant.schedules.collective import Collective
from pliant.spec import Schedule, Topology

__all__ = ["Cost", "Overheads", "Prices", "RoundCost", "cost", "lower_bound_s"]


@dataclass(frozen=True, kw_only=True)
class Overheads:
    """Cost of messages beside the links that a topology describes. Defaults are the simulator's, but for sharing."""

    message_s: float = 1.5e-4
    """Of a rank, for each message that it sends or receives: alpha."""
    wire_factor: float = 1.05
    """Time on a link over bytes / rate: headers, and what TCP does not use."""
    sharing: float = 0.17
    """Flows that share an interface get in each other's way: f at once take 1 + sharing (1 - 1/f) times as long.

    1 - 1/f is how often the next of a queue's bytes is another flow's than the last one. Fitted: see docs/schedules.md.
    """
    memory_bytes_per_s: float = 3e9
    """Between ranks of one host."""
    reduce_bytes_per_s: float = 1.2e10
    """Of sums: 1 / gamma."""

    def __post_init__(self) -> None:
        rates = self.memory_bytes_per_s, self.reduce_bytes_per_s
        if self.message_s < 0 or self.wire_factor <= 0 or self.sharing < 0 or min(rates) <= 0:
            raise ValueError(
                f"{self} cannot be: a message's time and sharing are at least 0, the factor and rates above 0."
            )

    def shared(self, num_flows: int) -> float:
        """Return how many times as long an interface takes for so many flows at once as for one."""
        return 1 + self.sharing * (1 - 1 / num_flows)


@dataclass(frozen=True, kw_only=True)
class RoundCost:
    """One round: the sum of these times."""

    wire_s: float
    """Of the busiest resource: a host's or a rack's rate out, its rate in, or a link with a rate of its own."""
    latency_s: float
    """The largest on a path that is used."""
    message_s: float
    """Of the rank that handles the most messages."""
    memory_s: float
    """Of the host with the most bytes between its own ranks."""
    reduce_s: float
    """Of the rank that adds the most up."""

    @property
    def total_s(self) -> float:
        """Seconds of the round."""
        return self.wire_s + self.latency_s + self.message_s + self.memory_s + self.reduce_s


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Predicted cost of a schedule."""

    rounds: tuple[RoundCost, ...]
    sent_bytes: tuple[int, ...]
    """Of each rank."""
    num_messages: int

    @property
    def total_s(self) -> float:
        """Rounds follow one another."""
        return sum(each.total_s for each in self.rounds)


class Prices:
    """A topology as seconds per byte, by host and rack; ranks of one host share its interface, hosts the uplink."""

    def __init__(self, topology: Topology, overheads: Overheads) -> None:
        self.host_of = [k for k, host in enumerate(topology.hosts) for _ in range(host.num_ranks)]  # (num_ranks,)
        self.num_hosts = len(topology.hosts)
        factor = overheads.wire_factor
        self.out_s = [_per_byte(host.send_bytes_per_s, factor) for host in topology.hosts]
        self.in_s = [_per_byte(host.receive_bytes_per_s, factor) for host in topology.hosts]
        self.delay_s = [host.delay_s for host in topology.hosts]
        self.rack_of = topology.rack_of()  # (num_hosts,)
        self.up_s = [_per_byte(rack.send_bytes_per_s, factor) for rack in topology.racks]  # (num_racks,)
        self.down_s = [_per_byte(rack.receive_bytes_per_s, factor) for rack in topology.racks]
        index = {host.name: k for k, host in enumerate(topology.hosts)}
        self.links = {
            (index[link.source], index[link.target]): (_per_byte(link.bytes_per_s, factor), link.latency_s)
            for link in topology.links
        }

    def latency_s(self, source: int, target: int) -> float:
        """Return the one-way delay from host to host, which a link of its own replaces."""
        link = self.links.get((source, target))
        return self.delay_s[target] if link is None else link[1]


def cost(schedule: Schedule, collective: Collective, topology: Topology, overheads: Overheads | None = None) -> Cost:
    """Predict a schedule: alpha, beta and gamma with the bytes that this bitmap asks for, round by round.

    A round lasts as long as its busiest resource, an interface longer if flows share it (`Overheads.sharing`); since
    rounds wait for one another at every rank that takes part, their times add up. Two ranks of one host load its memory
    and not its link.

    Raises:
        ValueError: The topology has another number of ranks.

    """
    overheads = overheads if overheads is not None else Overheads()
    if topology.num_ranks != schedule.num_ranks:
        raise ValueError(
            f"the schedule {schedule.name!r} is for {schedule.num_ranks} ranks, but the topology has "
            f"{topology.num_ranks}."
        )
    prices = Prices(topology, overheads)
    rounds: list[RoundCost] = []
    sent = [0] * schedule.num_ranks
    num_messages = 0
    for moves in schedule.rounds:
        pair_bytes: Counter[tuple[int, int]] = Counter()
        reduced: Counter[int] = Counter()
        for move in moves:
            num_bytes = collective.block_bytes[move.block]
            pair_bytes[move.source, move.target] += num_bytes
            if move.kind == "reduce":
                reduced[move.target] += num_bytes
        for (source, _), num_bytes in pair_bytes.items():
            sent[source] += num_bytes
        num_messages += len(pair_bytes)
        rounds.append(_round(pair_bytes, reduced, prices, overheads))
    return Cost(rounds=tuple(rounds), sent_bytes=tuple(sent), num_messages=num_messages)


def _round(
    pair_bytes: Counter[tuple[int, int]], reduced: Counter[int], prices: Prices, overheads: Overheads
) -> RoundCost:
    host_of = prices.host_of
    out: Counter[int] = Counter()
    into: Counter[int] = Counter()
    inside: Counter[int] = Counter()
    up: Counter[int] = Counter()
    down: Counter[int] = Counter()
    link: Counter[tuple[int, int]] = Counter()
    handled: Counter[int] = Counter()
    leaving: Counter[int] = Counter()  # flows of each host
    coming: Counter[int] = Counter()
    latency_s = 0.0
    for (source, target), num_bytes in pair_bytes.items():
        handled[source] += 1
        handled[target] += 1
        a, b = host_of[source], host_of[target]
        if a == b:
            inside[a] += num_bytes
            continue
        leaving[a] += 1
        coming[b] += 1
        out[a] += num_bytes
        into[b] += num_bytes
        link[a, b] += num_bytes
        if prices.rack_of[a] != prices.rack_of[b]:
            up[prices.rack_of[a]] += num_bytes
            down[prices.rack_of[b]] += num_bytes
        latency_s = max(latency_s, prices.latency_s(a, b))
    wires = [n * prices.out_s[a] * overheads.shared(leaving[a]) for a, n in out.items()]
    wires += [n * prices.in_s[b] * overheads.shared(coming[b]) for b, n in into.items()]
    wires += [n * prices.up_s[g] for g, n in up.items()] + [n * prices.down_s[h] for h, n in down.items()]
    wires += [n * prices.links[pair][0] for pair, n in link.items() if pair in prices.links]
    return RoundCost(
        wire_s=max(wires, default=0.0),
        latency_s=latency_s,
        message_s=_most(handled.values()) * overheads.message_s,
        memory_s=_most(inside.values()) / overheads.memory_bytes_per_s,
        reduce_s=_most(reduced.values()) / overheads.reduce_bytes_per_s,
    )


def lower_bound_s(collective: Collective, topology: Topology, overheads: Overheads | None = None) -> float:
    """Return a time that no schedule of moves beats, whatever its owners and rounds are.

    Bytes: a host with something that others need sends it once at least, and one that needs what others have receives
    it once at least; and a block that is held on p hosts and needed on q crosses between hosts p - 1 times to become
    one sum, and q - 1 times to be everywhere (q, if nobody who holds it needs it), at the rates of all hosts together.
    So it is with racks and their uplinks. With all bytes held and needed by all this is the bound 2 (n - 1)/n of
    all-reduce. Latency: a sum over hosts that is needed on several has two rounds between hosts. The largest of the
    byte bounds, and the latency.
    """
    overheads = overheads if overheads is not None else Overheads()
    prices = Prices(topology, overheads)
    num_rounds = num_crossings = 0
    for held, needed in zip(collective.holders, collective.needers, strict=True):
        if held and needed:
            holding, needing = {prices.host_of[r] for r in held}, {prices.host_of[r] for r in needed}
            # Forming the sum and spreading it are rounds of their own, unless one rank, or one host, does without.
            num_rounds = max(num_rounds, (len(held) > 1) + (len(needed) > 1) or int(held != needed))
            num_crossings = max(num_crossings, (len(holding) > 1) + (len(needing) > 1) or int(holding != needing))
    rack_of = [prices.rack_of[host] for host in prices.host_of]  # (num_ranks,)
    wire_s = max(
        _crossing_s(collective, prices.host_of, prices.out_s, prices.in_s),
        _crossing_s(collective, rack_of, prices.up_s, prices.down_s),
    )
    hosts = range(prices.num_hosts)
    shortest_s = min((prices.latency_s(a, b) for a in hosts for b in hosts if a != b), default=0.0)
    return wire_s + num_crossings * shortest_s + num_rounds * overheads.message_s


def _crossing_s(
    collective: Collective, place_of: Sequence[int], out_s: Sequence[float], in_s: Sequence[float]
) -> float:
    """Return how long bytes take at least between places: hosts, or racks.

    Args:
        collective: What has to be achieved.
        place_of: The place of each rank.
        out_s: Seconds per byte out of each place; there are no places if empty.
        in_s: And into it.

    """
    if not out_s:
        return 0.0
    out, into = [0] * len(out_s), [0] * len(in_s)
    crossing = 0
    for held, needed, num_bytes in zip(collective.holders, collective.needers, collective.block_bytes, strict=True):
        if not (held and needed):
            continue
        holding, needing = {place_of[r] for r in held}, {place_of[r] for r in needed}
        for place in holding:
            out[place] += num_bytes * bool(needing - {place})
        for place in needing:
            into[place] += num_bytes * bool(holding - {place})
        crossing += num_bytes * (len(holding) - 1 + len(needing) - bool(holding & needing))
    wires = [n * s for n, s in zip(out + into, (*out_s, *in_s), strict=True)]
    for side_s in (out_s, in_s):
        if min(side_s) > 0:
            wires.append(crossing / sum(1 / s for s in side_s))
    return max(wires)


def _per_byte(bytes_per_s: float, wire_factor: float) -> float:
    return wire_factor / bytes_per_s if bytes_per_s > 0 else 0.0


def _most(counts: Iterable[int]) -> int:
    return max(counts, default=0)
