"""The state of a search: what all tables together make ranks do, and what a step takes if one of them changes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pliant.netmodel import Links
from pliant.recsys.placement.cost import all_reduce_time
from pliant.recsys.placement.loads import Shared
from pliant.recsys.placement.problem import Problem
from pliant.spec import EmbeddingPlan

__all__ = ["PlacementModel", "ScoredStates", "longest_first"]

Floats = npt.NDArray[np.float64]

_SIZES_BYTES = 32.0
"""Of the message of sizes, whatever groups there are: the exact cost of a finished plan knows them."""
_BEYOND = 1e3
"""Seconds for a limit that is exceeded twofold: what is forbidden is worse than anything that is allowed."""


@dataclass(frozen=True, eq=False)
class ScoredStates:
    """Scores and costs of states, (m,) each."""

    score: Floats
    """Seconds of a step, and a penalty for what exceeds a limit"""
    step_s: Floats
    held_bytes: Floats
    """Of the rank that holds most"""


class PlacementModel:
    """The cost framework on sums of contributions (15, ranks), many states at a time."""

    def __init__(self, problem: Problem, frame: EmbeddingPlan) -> None:
        links = self.links = Links(problem.topology, problem.rates.overheads)
        self.rates, self.limits, self.overlap = problem.rates, problem.limits, problem.overlap
        self.dense_s = problem.dense_sample_s * frame.batch_size
        self._delay_s = float(links.delays_s.max(initial=0.0))
        unit_s, messages = all_reduce_time(2.0**30, links, hierarchical=frame.hierarchical)
        fixed_s, _ = all_reduce_time(1e-9, links, hierarchical=frame.hierarchical)
        self.sync_s = (unit_s - fixed_s) / 2.0**30
        """Of a byte all-reduced"""
        self.sync_fixed_s = 2 * (fixed_s + messages * links.overheads.message_s) / frame.every
        """Of rows of one dim on all ranks, however few"""
        self.lookup_s = self.rates.lookup_s * links.topology.ranks_per_cpu

    def shared_s(self, shared: Iterable[Shared]) -> float:
        """Return seconds of what tables share, however little is asked of it."""
        return sum(self.sync_fixed_s if key[0] == "sum" else self.lookup_s for key in shared)

    def evaluate(self, states: Floats, shared_s: Floats) -> ScoredStates:
        """Judge states.

        Args:
            states: (m, 15, ranks), sums of contributions.
            shared_s: (m,), of what tables share.

        """
        n, message_s = self.links.num_ranks, self.links.overheads.message_s
        stages = states[:, :6].max(axis=-1)  # (m, stages)
        speaks = -np.expm1(states[:, 14])  # (m, ranks)
        handled = (speaks.sum(axis=-1, keepdims=True) + (n - 2) * speaks).max(axis=-1) if n > 1 else speaks[:, 0] * 0.0
        exchanges = (speaks.max(axis=-1) > 0) & (n > 1)
        request_s, gradients_s = self._wire(states[:, 6], speaks), self._wire(states[:, 7], speaks)
        answer_s = self._wire(states[:, 7], speaks, back=True)
        sizes_s = self._wire(np.full((1, n), _SIZES_BYTES), np.ones((1, n)))[0]
        talk_s = handled * message_s + self._delay_s * np.minimum(1.0, speaks.max(axis=-1))
        first_s = exchanges * (sizes_s + 2 * (n - 1) * message_s + self._delay_s)
        ahead_s = stages[:, 0] + first_s + request_s + talk_s
        sync_s = stages[:, 5] + self.sync_s * states[:, 12:14, 0].sum(axis=-1)
        hidden_s = np.minimum(ahead_s, self.dense_s) if self.overlap else 0.0
        rest_s = stages[:, 1:5].sum(axis=-1) + answer_s + gradients_s + 2 * talk_s + sync_s + shared_s
        step_s = ahead_s + rest_s + self.dense_s + self.rates.step_s - hidden_s
        held = (states[:, 8] + states[:, 9] + np.maximum(states[:, 10], states[:, 11])).max(axis=-1)
        asked = states[:, 6] + states[:, 7]
        sent = asked.sum(axis=-1, keepdims=True) - asked + (n - 1) * states[:, 7]
        sent = sent.max(axis=-1) + 2 * (n - 1) / n * states[:, 12:14, 0].sum(axis=-1) + (n - 1) * _SIZES_BYTES
        beyond = np.zeros_like(step_s)
        limits = self.limits
        uses = (held, limits.memory_bytes), (sent, limits.sent_bytes), (stages.sum(axis=-1), limits.work_s)
        for used, limit in uses:
            if limit is not None:
                beyond = beyond + np.maximum(used / max(limit, 1e-12) - 1, 0.0)
        return ScoredStates(step_s + _BEYOND * beyond, step_s, held)

    def _wire(self, asked: Floats, speaks: Floats, *, back: bool = False) -> Floats:
        """Return how long bytes take, (m,), of each requester to each owner; or of each owner, back.

        Args:
            asked: (m, ranks) bytes that each requester has for an owner.
            speaks: (m, ranks) chance that it has any.
            back: Whether owners send them.

        """
        if self.links.num_ranks == 1:
            return np.zeros(len(asked))
        num_bytes, flows = self._between_hosts(asked), self._between_hosts(speaks)
        if back:
            num_bytes, flows = np.swapaxes(num_bytes, -1, -2), np.swapaxes(flows, -1, -2)
        return self.links.between_hosts(num_bytes, flows).busy_s

    def _between_hosts(self, asked: Floats) -> Floats:
        """Return (m, hosts, hosts), from requesters to owners, of what each requester has for an owner, (m, ranks)."""
        per_host = np.add.reduceat(asked, self.links.starts, axis=-1)  # (m, hosts)
        hosts = self.links.sizes[:, None] * per_host[:, None, :]
        own = np.arange(self.links.num_hosts)
        hosts[:, own, own] -= per_host
        return hosts


def longest_first(
    seconds: Sequence[float], sizes: Sequence[float], parts: Sequence[int], room: Floats
) -> list[tuple[int, ...]]:
    """Return homes for tables: the longest processing time first, each part where least is to be done and it fits.

    Args:
        seconds: Of each part of each table.
        sizes: Bytes of each part.
        parts: Of each table, at different ranks.
        room: (ranks,), bytes that each may take; where no rank has room, the one with most gets it.

    """
    room, busy = room.copy(), np.zeros(room.size)
    homes: list[tuple[int, ...]] = [()] * len(seconds)
    for k in sorted(range(len(seconds)), key=lambda k: -seconds[k]):
        taken: list[int] = []
        free = np.ones(room.size, np.bool_)
        for _ in range(parts[k]):
            fits = free & (room >= sizes[k])
            rank = int(np.where(fits, busy, np.inf).argmin() if fits.any() else np.where(free, room, -np.inf).argmax())
            taken.append(rank)
            free[rank] = False
            room[rank] -= sizes[k]
            busy[rank] += seconds[k]
        homes[k] = tuple(taken)
    return homes
