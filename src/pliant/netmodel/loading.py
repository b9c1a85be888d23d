"""Loads of messages: bytes and delays on everything of a topology that has a rate."""

from dataclasses import dataclass

import numpy as np

from pliant.netmodel.interfaces import Interfaces
from pliant.netmodel.loads import Loads, Paths, at_once, elsewhere, largest_elsewhere
from pliant.netmodel.messages import (
    DenseExchange,
    Floats,
    HostExchange,
    Ints,
    Messages,
    PointToPoint,
    RankMatrix,
    Together,
)
from pliant.netmodel.paths import all_pairs, all_to_all, host_pairs
from pliant.netmodel.rings import lag_s, turn_s

__all__ = ["Loading"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Loading:
    """Loads of rounds of messages on a network."""

    links: Interfaces
    opening: bool
    """Whether TCP's windows may be too small, so that paths are wanted."""
    asks: bool
    """Whether a message leaves once its receiver has told that it waits: its delay is that of both ways."""

    def of(self, messages: Messages, repeat: int = 1) -> Loads:
        """Return the load of one round, of which there are `repeat`."""
        if isinstance(messages, Together):
            return at_once([self.of(part, repeat) for part in messages.parts])
        if isinstance(messages, PointToPoint):
            return self._of_pairs(messages, repeat)
        if isinstance(messages, RankMatrix):
            apart = 1 - np.eye(self.links.num_ranks)
            flows = np.minimum(messages.num_messages, 1.0) * apart
            return self.of_hosts(self.links.by_host(messages.num_bytes * apart), self.links.by_host(flows))
        return self._of_dense(messages)

    def of_hosts(self, num_bytes: Floats, flows: Floats) -> Loads:
        """Return the load of bytes and of pairs of ranks, (num_buckets, num_hosts, num_hosts) from row to column."""
        links = self.links
        apart = 1 - np.eye(links.num_hosts)
        between, flows = num_bytes * apart, flows * apart
        member = (links.rack_of[:, None] == np.arange(len(links.up_s))).astype(np.float64)
        racks = (member.T @ between @ member) * (1 - np.eye(len(links.up_s)))
        return Loads(
            out=between.sum(-1),
            into=between.sum(-2),
            flows_out=flows.sum(-1),
            flows_into=flows.sum(-2),
            up=racks.sum(-1),
            down=racks.sum(-2),
            links=between[:, links.link_source, links.link_target],
            inside=np.diagonal(num_bytes, axis1=-2, axis2=-1),
            **self._late(np.minimum(flows, 1.0) * self._waits_s),
            around_s=np.zeros(1),
            paths=(all_pairs(links, between, flows, asks=self.asks),) if self.opening else (),
        )

    def _of_pairs(self, messages: PointToPoint, repeat: int) -> Loads:
        links, num_hosts, num_racks = self.links, self.links.num_hosts, len(self.links.up_s)
        source, target = links.host_of[messages.source], links.host_of[messages.target]
        outside = source != target
        share = messages.share * outside
        used = (share > 0).astype(np.float64)  # messages with the same ends are one flow
        if (self.opening or links.overheads.sharing) and not messages.cyclic:
            used *= self._first_of_pair(messages)
        gives, takes = links.rack_of[source], links.rack_of[target]
        crossing = messages.share * (gives != takes)
        size, sent = messages.num_bytes[:, None], (messages.num_bytes > 0)[:, None]
        there_s, back_s = links.delay_s[target], links.delay_s[source]
        over, late_links = np.zeros((2, len(links.link_s)))
        if len(over):  # else nobody asks for a table of all pairs of hosts
            there_s, back_s = links.delays_s[source, target], links.delays_s[target, source]
            pairs = np.bincount(source * num_hosts + target, share, num_hosts * num_hosts)
            over = pairs[links.link_source * num_hosts + links.link_target]
            late_links = (over > 0) * self._waits_s[links.link_source, links.link_target] * (not messages.cyclic)
        up, down = (np.bincount(racks, crossing, num_racks)[:num_racks] for racks in (gives, takes))
        late = np.zeros((2, num_hosts))
        if not messages.cyclic:
            for ends, longest_s in zip((source, target), late, strict=True):
                np.maximum.at(longest_s, ends, used * (there_s + self.asks * back_s))
        return Loads(
            out=size * np.bincount(source, share, num_hosts),
            into=size * np.bincount(target, share, num_hosts),
            flows_out=np.bincount(source, used, num_hosts)[None].astype(np.float64),
            flows_into=np.bincount(target, used, num_hosts)[None].astype(np.float64),
            up=size * up if num_racks else np.zeros((len(size), 0)),
            down=size * down if num_racks else np.zeros((len(size), 0)),
            links=size * over,
            inside=size * np.bincount(source, messages.share * ~outside, num_hosts),
            late_out=sent * late[0],
            late_into=sent * late[1],
            late_links=sent * late_links,
            around_s=self._lag_s(messages, repeat) if messages.cyclic and outside.any() else np.zeros(1),
            paths=(self._paths_of(messages, source * num_hosts + target, used),) if self.opening else (),
        )

    def _lag_s(self, messages: PointToPoint, repeat: int) -> Floats:
        """Return what rounds around a ring take beyond the busiest hop's time of each, (num_buckets,)."""
        links, num_hosts, share = self.links, self.links.num_hosts, messages.share
        source, target = links.host_of[messages.source], links.host_of[messages.target]
        outside = source != target
        own_s = links.out_s[source] * np.bincount(source, share * outside, num_hosts)[source]
        own_s = np.maximum(own_s, links.in_s[target] * np.bincount(target, share * outside, num_hosts)[target])
        delay_s, back_s = links.delay_s[target] * outside, links.delay_s[source] * outside
        if len(links.link_s):
            delay_s, back_s = links.delays_s[source, target], links.delays_s[target, source]
            over, at = np.zeros(num_hosts * num_hosts), source * num_hosts + target
            over[links.link_source * num_hosts + links.link_target] = links.link_s
            own_s = np.maximum(own_s, over[at] * np.bincount(at, share, num_hosts * num_hosts)[at])
        if num_racks := len(links.up_s):
            gives, takes = links.rack_of[source], links.rack_of[target]
            crossing = share * (gives != takes)
            for rack, rack_s in ((gives, links.up_s), (takes, links.down_s)):
                shared_s = rack_s * np.bincount(rack, crossing, num_racks)[:num_racks]
                own_s = np.maximum(own_s, np.where(crossing > 0, shared_s[rack], 0.0))
        costs = links.overheads
        inside_s = np.bincount(source, share * ~outside, num_hosts) * links.inside_factor / costs.loopback_bytes_per_s
        hops = np.stack([np.where(outside, costs.wire_factor * own_s, inside_s[source]), delay_s, delay_s + back_s])
        if not np.ptp(hops, axis=1).any():
            hops = hops[:, :1]  # all alike: one stands for all
        hop_s, delay_s, trip_s = hops
        num_bytes = messages.num_bytes[:, None]
        trip_s = 0.0 * trip_s if costs.nccl else trip_s  # NCCL has windows of its own
        waits_s = turn_s(num_bytes * share.max(), len(share), trip_s, links.topology.connections)
        return np.where(messages.num_bytes > 0, lag_s(num_bytes * hop_s, delay_s, waits_s, repeat), 0.0)

    def _paths_of(self, messages: PointToPoint, pairs: Ints, used: Floats) -> Paths:
        """Return the paths of messages between pairs of hosts, those of a pair together."""
        num_hosts = self.links.num_hosts
        outside = (pairs // num_hosts != pairs % num_hosts) & (messages.share > 0)
        different, where = np.unique(pairs[outside], return_inverse=True)
        num_bytes = messages.num_bytes[:, None] * np.bincount(where, messages.share[outside], len(different))
        flows = np.bincount(where, used[outside], len(different)).astype(np.float64)
        blocks = len(pairs) if messages.cyclic else 1
        return host_pairs(self.links, different, num_bytes, flows[None], ring_blocks=blocks, asks=self.asks)

    def _first_of_pair(self, messages: PointToPoint) -> Floats:
        first = np.zeros(len(messages.source))
        first[np.unique(messages.source * self.links.num_ranks + messages.target, return_index=True)[1]] = 1.0
        return first

    def _of_dense(self, messages: DenseExchange | HostExchange) -> Loads:
        links, per_host = self.links, self.links.per_host
        if isinstance(messages, HostExchange):
            give, take, rotated = messages.give, messages.take, True
            givers, takers = (per_host(x > 0) for x in (messages.out, messages.into))
            inside = per_host(messages.out) * messages.stays_inside
        else:
            give, take, rotated = per_host(messages.give), per_host(messages.take), messages.rotated
            givers, takers = per_host(messages.give > 0), per_host(messages.take > 0)
            inside = give * take - per_host(messages.give * messages.take)  # nobody sends to itself
        member = (links.rack_of[:, None] == np.arange(len(links.up_s))).astype(np.float64)  # (num_hosts, num_racks)
        gives, takes = give @ member, take @ member  # (num_buckets, num_racks)
        out, into = give * elsewhere(take), take * elsewhere(give)
        if len(links.link_s):
            both = [a[:, :, None] * b[:, None, :] for a, b in ((give, take), (givers, takers))]
            late = self._late((both[0] > 0) * self._waits_s)
            paths = (all_pairs(links, *both, asks=self.asks),) if self.opening else ()
        else:
            to_s, from_s = (largest_elsewhere(np.where(x > 0, links.delay_s, 0.0)) for x in (take, give))
            late = {
                "late_out": (out > 0) * (to_s + self.asks * links.delay_s),
                "late_into": (into > 0) * (links.delay_s + self.asks * from_s),
                "late_links": np.zeros((len(out), 0)),
            }
            sides = (out, givers * elsewhere(takers), to_s), (into, takers * elsewhere(givers), from_s)
            paths = all_to_all(links, *sides, asks=self.asks) if self.opening else ()
        return Loads(
            out=out,
            into=into,
            flows_out=np.where(rotated, givers, givers * elsewhere(takers)),
            flows_into=np.where(rotated, takers, takers * elsewhere(givers)),
            up=gives * elsewhere(takes),
            down=takes * elsewhere(gives),
            links=give[:, links.link_source] * take[:, links.link_target],
            inside=inside,
            **late,
            around_s=np.zeros(1),
            paths=paths,
        )

    @property
    def _waits_s(self) -> Floats:
        """Time for which a message is on its way from host to host, (num_hosts, num_hosts)."""
        return self.links.delays_s + self.asks * self.links.delays_s.T

    def _late(self, waits_s: Floats) -> dict[str, Floats]:
        """Return the longest delay out of each host, into it and over each link, of those from row to column."""
        own_s = waits_s[..., self.links.link_source, self.links.link_target]
        return {"late_out": waits_s.max(-1), "late_into": waits_s.max(-2), "late_links": own_s}
