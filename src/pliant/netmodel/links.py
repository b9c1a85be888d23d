"""Time of messages on a topology: the busiest interface decides, then the slowest path."""

from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pliant.netmodel.gpu_rings import by_nccl
from pliant.netmodel.interfaces import Interfaces
from pliant.netmodel.loads import Loads, Paths, at_once, elsewhere, largest_elsewhere
from pliant.netmodel.messages import DenseExchange, Floats, HostExchange, Messages, PointToPoint, RankMatrix, Together
from pliant.netmodel.own_interface import bytes_outside
from pliant.netmodel.paths import all_to_all, host_pairs, lost_s
from pliant.netmodel.rings import path_s, turn_s
from pliant.netmodel.round_time import RoundTime
from pliant.netmodel.slow_start import LEAST_TIMEOUT_S

__all__ = ["Links"]


class Links(Interfaces):
    """Rates of a topology; turns messages into seconds. It is the one model of the wire for all predictions.

    All messages of a round share each host's rate out and its rate in, those of the uplink where they leave a rack, and
    links that the topology names; rates count headers, too (`Overheads.wire_factor`). Messages inside a host share its
    loopback. The round takes as long as its busiest resource, over its rate: so owners that all send to, and one slow
    host, need no rule of their own. Flows that share a host's interface, f at once, take `Overheads.sharing_factor`
    times as long (docs/schedules.md); flows on uplinks do not. Where ranks share CPUs, messages take
    `Topology.ranks_per_cpu` times as long. Latency is the largest on any path that is used: the delay of the receiving
    host, or that of the link. After a pause TCP starts slowly on each path (`netmodel.slow_start`).
    """

    @cached_property
    def _names(self) -> tuple[str, ...]:
        hosts = [host.name for host in self.topology.hosts]
        racks = [rack.name for rack in self.topology.racks]
        pairs = zip(self.link_source, self.link_target, strict=True)
        return (
            *(f"{name} {way}" for way in ("out", "in") for name in hosts),
            *(f"{name} {way}" for way in ("up", "down") for name in racks),
            *(f"{hosts[a]} -> {hosts[b]}" for a, b in pairs),
        )

    def load(
        self, messages: Messages, repeat: int = 1, pause_s: float | None = None, *, posted: bool = True
    ) -> RoundTime:
        """Return the time of messages that are sent at once, `repeat` times one after another.

        Rounds that are repeated wait for one another at every rank, so that all times count `repeat` times; around a
        ring (`PointToPoint.cyclic`) the delay is that of the longest path of `repeat` hops, or the round trips for
        which its segments wait (`rings`). Slow start counts once: of rounds over the same pairs the first opens the
        windows.

        Over Gloo a message leaves once its receiver has told that it waits (gloo/transport/tcp/pair.cc). Where both
        begin a round at the same time, it takes the way back and the way there.

        Args:
            messages: Of one round.
            repeat: How often.
            pause_s: Time without messages before; if None that of the overheads.
            posted: Whether receivers have told before that they wait; a ring's segments say so themselves.

        """
        pause_s = self.overheads.pause_s if pause_s is None else pause_s
        found = self._shared(messages, repeat, pause_s, asks=not posted and not self.overheads.nccl)
        if self.overheads.nccl and (by_rings := by_nccl(found, messages, repeat, self)) is not None:
            return by_rings
        return self._of_one_rank(found, messages, repeat)

    def _of_one_rank(self, found: RoundTime, messages: Messages, repeat: int) -> RoundTime:
        """Add what the busiest rank's own interface takes, where hosts have several, and copies of staged messages."""
        staging = self.overheads.staging_bytes_per_s
        if not staging and not self.own_s.any():
            return found
        out, into = bytes_outside(messages, self)
        own_s = repeat * (np.maximum(out, into) * self.own_s[self.host_of]).max(axis=1)
        copied_s = repeat * (out + into).max(axis=1) / staging if staging else 0.0
        return replace(found, rate_s=np.maximum(found.rate_s, own_s), staging_s=found.staging_s + copied_s)

    def _shared(self, messages: Messages, repeat: int, pause_s: float, *, asks: bool) -> RoundTime:
        """Return the time on everything that ranks share; where one asks, delays are those of both ways."""
        opening = self._opens(pause_s)
        handled = repeat * _busiest_count(messages, self.num_ranks)
        if isinstance(messages, Together):
            loads = [self._of(part, repeat, opening=opening, asks=asks) for part in messages.parts]
            return self._time(at_once(loads), repeat, handled, pause_s)
        if not isinstance(messages, RankMatrix):
            return self._time(self._of(messages, repeat, opening=opening, asks=asks), repeat, handled, pause_s)
        apart = 1 - np.eye(self.num_ranks)
        num_bytes = self.by_host(messages.num_bytes * apart)
        flows = self.by_host(np.minimum(messages.num_messages, 1.0) * apart)
        loads = self._of_hosts(num_bytes, flows, repeat, opening=opening, asks=asks)
        return self._time(loads, repeat, handled, pause_s)

    def between_hosts(self, num_bytes: Floats, flows: Floats) -> RoundTime:
        """Return what a round takes of which only sums over the ranks of hosts are known; no time of messages.

        Args:
            num_bytes: (num_buckets, num_hosts, num_hosts) from row to column, on the diagonal between a host's ranks.
            flows: Pairs of ranks that communicate, likewise; expected ones may be fractions.

        """
        loads = self._of_hosts(num_bytes, flows, 1, opening=False, asks=False)
        return self._time(loads, 1, np.zeros(len(num_bytes)), 0.0)

    def _opens(self, pause_s: float) -> bool:
        """Return whether a window may be too small for a link, so that somebody has to look."""
        restarts = self.topology.restarts_slowly and pause_s > LEAST_TIMEOUT_S
        late = self.delay_s.any() or self.link_latency_s.any()
        return bool(late and (restarts or self.topology.window_bytes))

    def _time(self, loads: Loads, repeat: int, handled: Floats, pause_s: float) -> RoundTime:
        shared = self.overheads.sharing_factor
        times = np.concatenate(
            [
                loads.out * self.out_s * shared(loads.flows_out),
                loads.into * self.in_s * shared(loads.flows_into),
                loads.up * self.up_s,
                loads.down * self.down_s,
                loads.links * self.link_s,
            ],
            axis=1,
        )  # (num_buckets, num_interfaces)
        at = times.argmax(1)
        rate_s = times[np.arange(len(times)), at]
        inside, latency_s = (loads.inside * self.inside_factor).max(1), loads.latency_s
        if not self.overheads.nccl:  # which has windows of its own
            busy_s = np.maximum(rate_s * self.overheads.wire_factor, inside / self.overheads.loopback_bytes_per_s)
            latency_s = np.maximum(latency_s, repeat * (loads.turn_s - busy_s / 2))
        return RoundTime(
            overheads=self.overheads,
            ranks_per_cpu=self.topology.ranks_per_cpu,
            rate_s=repeat * rate_s,
            loopback_bytes=repeat * inside,
            latency_s=latency_s,
            start_s=lost_s(self, loads.paths, times * self.overheads.wire_factor, pause_s),
            staging_s=np.zeros(len(times)),
            num_messages=handled,
            busiest=tuple(self._names[k] for k in at),
        )

    def _of(
        self, messages: PointToPoint | DenseExchange | HostExchange, repeat: int, *, opening: bool, asks: bool
    ) -> Loads:
        if isinstance(messages, PointToPoint):
            return self._of_pairs(messages, repeat, opening=opening, asks=asks)
        return self._of_dense(messages, repeat, opening=opening, asks=asks)

    def _of_pairs(self, messages: PointToPoint, repeat: int, *, opening: bool, asks: bool) -> Loads:
        num_hosts, num_racks = self.num_hosts, len(self.up_s)
        source, target = self.host_of[messages.source], self.host_of[messages.target]
        outside = source != target
        share = messages.share * outside
        used = (share > 0).astype(np.float64)  # messages with the same ends are one flow
        if (opening or self.overheads.sharing) and not messages.cyclic:
            used *= self._first_of_pair(messages)
        gives, takes = self.rack_of[source], self.rack_of[target]
        crossing = messages.share * (gives != takes)
        size = messages.num_bytes[:, None]
        delay_s, back_s = self.delay_s[target], self.delay_s[source]
        links = np.zeros(len(self.link_s))
        if len(self.link_s):  # else nobody asks for a table of all pairs of hosts
            delay_s, back_s = self.delays_s[source, target], self.delays_s[target, source]
            pairs = np.bincount(source * num_hosts + target, share, num_hosts * num_hosts)
            links = pairs[self.link_source * num_hosts + self.link_target]
        up, down = (np.bincount(racks, crossing, num_racks)[:num_racks] for racks in (gives, takes))
        trip_s = float(np.max(used * (delay_s + back_s), initial=0.0)) if messages.cyclic else 0.0
        block_bytes = messages.num_bytes * share.max(initial=0.0)
        one_s = float(np.max(used * (delay_s + asks * back_s), initial=0.0))
        latency_s = path_s(used * delay_s, repeat) if messages.cyclic else repeat * one_s
        return Loads(
            out=size * np.bincount(source, share, num_hosts),
            into=size * np.bincount(target, share, num_hosts),
            flows_out=np.bincount(source, used, num_hosts)[None].astype(np.float64),
            flows_into=np.bincount(target, used, num_hosts)[None].astype(np.float64),
            up=size * up if num_racks else np.zeros((len(size), 0)),
            down=size * down if num_racks else np.zeros((len(size), 0)),
            links=size * links,
            inside=size * np.bincount(source, messages.share * ~outside, num_hosts),
            latency_s=np.where(messages.num_bytes > 0, latency_s, 0.0),
            turn_s=turn_s(block_bytes, len(share), trip_s, self.topology.connections),
            paths=(self._paths_of(messages, source * num_hosts + target, used),) if opening else (),
        )

    def _paths_of(self, messages: PointToPoint, pairs: NDArray[np.int64], used: Floats) -> Paths:
        """Return the paths of messages between pairs of hosts, those of a pair together."""
        outside = (pairs // self.num_hosts != pairs % self.num_hosts) & (messages.share > 0)
        different, where = np.unique(pairs[outside], return_inverse=True)
        shares = np.bincount(where, messages.share[outside], len(different))
        flows = np.bincount(where, used[outside], len(different)).astype(np.float64)
        blocks = len(pairs) if messages.cyclic else 1
        return host_pairs(self, different, messages.num_bytes[:, None] * shares, flows[None], blocks)

    def _first_of_pair(self, messages: PointToPoint) -> Floats:
        first = np.zeros(len(messages.source))
        first[np.unique(messages.source * self.num_ranks + messages.target, return_index=True)[1]] = 1.0
        return first

    def _of_dense(self, messages: DenseExchange | HostExchange, repeat: int, *, opening: bool, asks: bool) -> Loads:
        if isinstance(messages, HostExchange):
            give, take, rotated = messages.give, messages.take, True
            givers, takers = (self._by_host(x > 0) for x in (messages.out, messages.into))
            inside = self._by_host(messages.out) * messages.stays_inside
        else:
            give, take, rotated = self._by_host(messages.give), self._by_host(messages.take), messages.rotated
            givers, takers = self._by_host(messages.give > 0), self._by_host(messages.take > 0)
            inside = give * take - self._by_host(messages.give * messages.take)  # nobody sends to itself
        member = (self.rack_of[:, None] == np.arange(len(self.up_s))).astype(np.float64)  # (num_hosts, num_racks)
        gives, takes = give @ member, take @ member  # (num_buckets, num_racks)
        into = take * elsewhere(give)
        back_s = largest_elsewhere(np.where(give > 0, self.delay_s, 0.0)) * asks
        latency_s = ((into > 0) * (self.delay_s + back_s)).max(1)
        if len(self.link_s):
            used = (give > 0)[:, :, None] & (take > 0)[:, None, :]  # (num_buckets, num_hosts, num_hosts)
            latency_s = (used * (self.delays_s + asks * self.delays_s.T)).max((1, 2))
        return Loads(
            out=give * elsewhere(take),
            into=into,
            flows_out=np.where(rotated, givers, givers * elsewhere(takers)),
            flows_into=np.where(rotated, takers, takers * elsewhere(givers)),
            up=gives * elsewhere(takes),
            down=takes * elsewhere(gives),
            links=give[:, self.link_source] * take[:, self.link_target],
            inside=inside,
            latency_s=repeat * latency_s,
            turn_s=np.zeros(1),
            paths=self._dense_paths(give, take, givers, takers) if opening else (),
        )

    def _dense_paths(self, give: Floats, take: Floats, givers: Floats, takers: Floats) -> tuple[Paths, ...]:
        if len(self.link_s):
            return (self._all_pairs(*(a[:, :, None] * b[:, None, :] for a, b in ((give, take), (givers, takers)))),)
        far = [((x > 0) * self.delay_s).max(axis=1, keepdims=True) for x in (give, take)]
        out = give * elsewhere(take), givers * elsewhere(takers), far[1]
        return all_to_all(self, out, (take * elsewhere(give), takers * elsewhere(givers), far[0]))

    def _all_pairs(self, num_bytes: Floats, flows: Floats) -> Paths:
        """Return the paths between all hosts, of (num_buckets, num_hosts, num_hosts) bytes and pairs of ranks."""
        apart = np.flatnonzero(~np.eye(self.num_hosts, dtype=bool))
        num_bytes, flows = (x.reshape(len(x), -1)[:, apart] for x in (num_bytes, flows))
        return host_pairs(self, apart, num_bytes, flows)

    def _of_hosts(self, hosts: Floats, flows: Floats, repeat: int, *, opening: bool, asks: bool) -> Loads:
        apart = 1 - np.eye(self.num_hosts)
        inside = np.diagonal(hosts, axis1=-2, axis2=-1)
        between, flows = hosts * apart, flows * apart  # (num_buckets, num_hosts, num_hosts)
        member = (self.rack_of[:, None] == np.arange(len(self.up_s))).astype(np.float64)
        racks = member.T @ between @ member
        racks = racks * (1 - np.eye(len(self.up_s)))
        return Loads(
            out=between.sum(-1),
            into=between.sum(-2),
            flows_out=flows.sum(-1),
            flows_into=flows.sum(-2),
            up=racks.sum(-1),
            down=racks.sum(-2),
            links=between[:, self.link_source, self.link_target],
            inside=inside,
            latency_s=repeat * (np.minimum(flows, 1.0) * (self.delays_s + asks * self.delays_s.T)).max((-2, -1)),
            turn_s=np.zeros(1),
            paths=(self._all_pairs(between, flows),) if opening else (),
        )

    def _by_host(self, x: "Floats | NDArray[np.bool_]") -> Floats:
        """Sum (num_buckets, num_ranks) to (num_buckets, num_hosts)."""
        return np.add.reduceat(x.astype(np.float64), self.starts, axis=1)

    def by_host(self, pairs: Floats) -> Floats:
        """Sum (..., num_ranks, num_ranks) to (..., num_hosts, num_hosts)."""
        return np.add.reduceat(np.add.reduceat(pairs, self.starts, axis=-1), self.starts, axis=-2)


def _busiest_count(messages: Messages, num_ranks: int) -> Floats:
    """Return the messages of the rank that handles the most, (num_buckets,)."""
    if isinstance(messages, RankMatrix):
        counts = messages.num_messages * (1 - np.eye(num_ranks))
        return (counts.sum(-1) + counts.sum(-2)).max(-1)
    return messages.handled(num_ranks).max(1, initial=0)
