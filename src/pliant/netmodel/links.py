"""Time of messages on a topology: that of the interface whose last message arrives last."""

from dataclasses import replace

import numpy as np

from pliant.netmodel.gpu_rings import by_nccl
from pliant.netmodel.interfaces import Interfaces
from pliant.netmodel.loading import Loading
from pliant.netmodel.loads import Loads
from pliant.netmodel.messages import Floats, Messages, RankMatrix
from pliant.netmodel.own_interface import bytes_outside
from pliant.netmodel.paths import lost_s
from pliant.netmodel.round_time import RoundTime
from pliant.netmodel.slow_start import LEAST_TIMEOUT_S

__all__ = ["Links"]


class Links(Interfaces):
    """Rates of a topology; turns messages into seconds. It is the one model of the wire for all predictions.

    All messages of a round share each host's rate out and its rate in, those of the uplink where they leave a rack, and
    links that the topology names; rates count headers, too (`Overheads.wire_factor`). Messages inside a host share its
    loopback. The round takes as long as the resource that is done last: its bytes over its rate, and the longest delay
    of its messages, which is that of the receiving host or of the link. So owners that all send to, and one slow host,
    need no rule of their own. Flows that share a host's interface, f at once, take `Overheads.sharing_factor` times as
    long (docs/schedules.md); flows on uplinks do not. Where ranks share CPUs, messages take `Topology.ranks_per_cpu`
    times as long. After a pause TCP starts slowly on each path (`netmodel.slow_start`).
    """

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
        asks = not posted and not self.overheads.nccl
        loads = Loading(links=self, opening=self._opens(pause_s), asks=asks).of(messages, repeat)
        found = self._time(loads, repeat, repeat * _busiest_count(messages, self.num_ranks), pause_s)
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

    def between_hosts(self, num_bytes: Floats, flows: Floats) -> RoundTime:
        """Return what a round takes of which only sums over the ranks of hosts are known; no time of messages.

        Args:
            num_bytes: (num_buckets, num_hosts, num_hosts) from row to column, on the diagonal between a host's ranks.
            flows: Pairs of ranks that communicate, likewise; expected ones may be fractions.

        """
        loads = Loading(links=self, opening=False, asks=False).of_hosts(num_bytes, flows)
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
        busy_s, wire_s = times * self.overheads.wire_factor, rate_s * self.overheads.wire_factor
        uplinks = np.tile(loads.late_out.max(1, keepdims=True), 2 * len(self.up_s))
        last_s = (busy_s + np.concatenate([loads.late_out, loads.late_into, uplinks, loads.late_links], axis=1)).max(1)
        return RoundTime(
            links=self,
            rate_s=repeat * rate_s,
            loopback_bytes=repeat * (loads.inside * self.inside_factor).max(1),
            latency_s=loads.around_s + repeat * (last_s - wire_s),
            start_s=lost_s(self, loads.paths, busy_s, last_s, pause_s),
            staging_s=np.zeros(len(times)),
            num_messages=handled,
            busiest=at,
        )


def _busiest_count(messages: Messages, num_ranks: int) -> Floats:
    """Return the messages of the rank that handles the most, (num_buckets,)."""
    if isinstance(messages, RankMatrix):
        counts = messages.num_messages * (1 - np.eye(num_ranks))
        return (counts.sum(-1) + counts.sum(-2)).max(-1)
    return messages.handled(num_ranks).max(1, initial=0)
