"""Time of messages on a topology: the busiest link decides, then the slowest path."""

import numpy as np

from pliant.simulator.messages import Floats, Pairs, Product
from pliant.spec import Topology

__all__ = ["Links"]


class Links:
    """The rates of a topology, ready to be asked.

    All messages of a round share each host's rate out and its rate in, those of the uplink where they leave a rack,
    links of their own where the topology names some, and the memory of their host where they stay inside. The round
    takes as long as the resource that is loaded most, over its rate: so owners that all send to, and one slow host,
    need no rule of their own. Latency is the largest on any path that is used: the delay of the receiving host, or that
    of the link; around a ring their mean.
    """

    def __init__(self, topology: Topology) -> None:
        hosts = topology.hosts
        self.num_ranks = topology.num_ranks
        self.host_of = np.repeat(np.arange(len(hosts)), [host.num_ranks for host in hosts])  # (num_ranks,)
        self._firsts = np.concatenate([[0], np.cumsum([host.num_ranks for host in hosts])[:-1]])  # (num_hosts,)
        self._out_s = np.array([_per_byte(host.send_bytes_per_s) for host in hosts])  # (num_hosts,) seconds per byte
        self._in_s = np.array([_per_byte(host.receive_bytes_per_s) for host in hosts])
        self._delay_s = np.array([host.delay_s for host in hosts])
        self._rack_of = np.array(topology.rack_of())  # (num_hosts,)
        self._up_s = np.array([_per_byte(rack.send_bytes_per_s) for rack in topology.racks])  # (num_racks,)
        self._down_s = np.array([_per_byte(rack.receive_bytes_per_s) for rack in topology.racks])
        index = {host.name: k for k, host in enumerate(hosts)}
        links = sorted(topology.links, key=lambda link: (index[link.source], index[link.target]))
        self._link_source = np.array([index[link.source] for link in links], dtype=np.int64)  # (num_links,)
        self._link_target = np.array([index[link.target] for link in links], dtype=np.int64)
        self._link_s = np.array([_per_byte(link.bytes_per_s) for link in links])
        self._link_latency_s = np.array([link.latency_s for link in links])

    def load(self, messages: Pairs | Product) -> tuple[Floats, Floats, Floats]:
        """Return what a round asks of the network, for each bucket, (num_buckets,) each.

        That is: seconds of the busiest link; bytes through the busiest host's memory; seconds of latency.
        """
        return self._of_pairs(messages) if isinstance(messages, Pairs) else self._of_product(messages)

    def _of_pairs(self, messages: Pairs) -> tuple[Floats, Floats, Floats]:
        num_hosts = len(self._out_s)
        source, target = self.host_of[messages.source], self.host_of[messages.target]
        outside = source != target
        share = messages.share * outside
        busiest_s = np.max(np.bincount(source, share, num_hosts) * self._out_s)
        busiest_s = max(busiest_s, np.max(np.bincount(target, share, num_hosts) * self._in_s))
        if len(self._up_s):
            gives, takes = self._rack_of[source], self._rack_of[target]
            crossing = messages.share * (gives != takes)
            busiest_s = max(busiest_s, np.max(np.bincount(gives, crossing, len(self._up_s)) * self._up_s))
            busiest_s = max(busiest_s, np.max(np.bincount(takes, crossing, len(self._up_s)) * self._down_s))
        inside = float(np.max(np.bincount(source, messages.share * ~outside, num_hosts)))
        delay_s = np.where(outside, self._delay_s[target], 0.0)
        if len(self._link_s) and len(source):
            codes = self._link_source * num_hosts + self._link_target
            asked = source * num_hosts + target
            at = np.minimum(np.searchsorted(codes, asked), len(codes) - 1)
            known = outside & (codes[at] == asked)
            loads = np.bincount(at[known], share[known], len(codes))
            busiest_s = max(busiest_s, np.max(loads * self._link_s))
            delay_s = np.where(known, self._link_latency_s[at], delay_s)
        latency_s = float(np.mean(delay_s) if messages.cyclic else np.max(delay_s, initial=0.0))
        size = messages.num_bytes
        return size * float(busiest_s), size * inside, np.where(size > 0, latency_s, 0.0)

    def _of_product(self, messages: Product) -> tuple[Floats, Floats, Floats]:
        give = np.add.reduceat(messages.give, self._firsts, axis=1)  # (num_buckets, num_hosts)
        take = np.add.reduceat(messages.take, self._firsts, axis=1)
        out = give * (take.sum(1, keepdims=True) - take)
        into = take * (give.sum(1, keepdims=True) - give)
        own = np.add.reduceat(messages.give * messages.take, self._firsts, axis=1)  # nobody sends to itself
        wire_s = np.maximum((out * self._out_s).max(1), (into * self._in_s).max(1))
        latency_s = ((into > 0) * self._delay_s).max(1)
        if len(self._up_s):
            member = self._rack_of[:, None] == np.arange(len(self._up_s))  # (num_hosts, num_racks)
            gives, takes = give @ member, take @ member  # (num_buckets, num_racks)
            up = gives * (takes.sum(1, keepdims=True) - takes)
            down = takes * (gives.sum(1, keepdims=True) - gives)
            wire_s = np.maximum(wire_s, np.maximum((up * self._up_s).max(1), (down * self._down_s).max(1)))
        if len(self._link_s):
            loads = give[:, self._link_source] * take[:, self._link_target]  # (num_buckets, num_links)
            wire_s = np.maximum(wire_s, (loads * self._link_s).max(1))
            latency_s = np.maximum(latency_s, ((loads > 0) * self._link_latency_s).max(1))
        return wire_s, (give * take - own).max(1), latency_s


def _per_byte(bytes_per_s: float) -> float:
    return 1 / bytes_per_s if bytes_per_s > 0 else 0.0
