"""Sums in codes that go by a schedule in the place of owners of equal parts."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise

import numpy as np

from pliant.layouts.payloads import granularity, payload_bytes
from pliant.netmodel import BucketBatch, Floats, PointToPoint, Round
from pliant.schedules.coded_rounds import CodedRound, coded_rounds, room
from pliant.schedules.dense import fastest_schedule
from pliant.simulator.rounds import scatter_gather_rounds
from pliant.simulator.scheduled import require_ranks
from pliant.spec import CodecSpec, ScatterGather, Schedule, Topology
from pliant.spec.exchange import Feedback

__all__ = ["coded_sum_rounds", "round_in_codes"]


def coded_sum_rounds(
    node: ScatterGather, batch: BucketBatch, topology: Topology, *, may_forward: bool = False
) -> list[Round]:
    """Return the rounds of a mean in codes: by owners, or by what its schedule says, for each size of a bucket.

    Payloads, and what each rank encodes and decodes in a round, are those of `ScheduledCodedAverage`.

    Raises:
        ValueError: The schedule is for another number of ranks.

    """
    require_ranks(node.schedule, topology)
    if node.schedule == "ring" or topology.num_ranks == 1:
        return scatter_gather_rounds(node, batch, topology.num_ranks, may_forward=may_forward)
    chosen = {float(numel): _schedule_for(node, int(numel), topology) for numel in np.unique(batch.numel) if numel}
    rounds: list[Round] = []
    by_owners = batch.numel * np.array([chosen.get(float(numel)) is None for numel in batch.numel])
    if by_owners.any():
        owned = replace(batch, numel=by_owners)
        rounds += scatter_gather_rounds(node, owned, topology.num_ranks, may_forward=may_forward)
    for numel, schedule in chosen.items():
        if schedule is not None:
            rounds += _rounds_of(schedule, node, int(numel), (batch.numel == numel).astype(np.float64))
    return rounds


def _schedule_for(node: ScatterGather, numel: int, topology: Topology) -> Schedule | None:
    """Return the way of a bucket's sum; None by owners."""
    if isinstance(node.schedule, Schedule):
        return node.schedule
    return fastest_schedule(payload_bytes(node.codec, numel), topology, is_coded=True)


def _rounds_of(schedule: Schedule, node: ScatterGather, numel: int, those: Floats) -> Iterator[Round]:
    """Yield the rounds of buckets of one size; `those`, (num_buckets,), is 1 for them and else 0."""
    cuts = schedule.cuts(numel, granularity(node.codec))
    sizes = tuple(end - first for first, end in pairwise(cuts))
    for each in _coded_rounds(schedule, sizes):
        yield round_in_codes(each, sizes, node.codec, those, node.feedback)


def round_in_codes(
    each: CodedRound, sizes: tuple[int, ...], codec: CodecSpec, those: Floats, feedback: Feedback = "none"
) -> Round:
    """Return a round of blocks of so many elements in payloads, for buckets for which `those`, (num_buckets,), is 1."""
    before, after = _work(each, sizes, codec.name, feedback)
    ends = np.array([(m.source, m.target) for m in each.messages], dtype=np.int64).reshape(-1, 2)
    share = np.array([float(sum(room(payload_bytes(codec, sizes[b])) for b in m.blocks)) for m in each.messages])
    return Round(
        messages=PointToPoint(source=ends[:, 0], target=ends[:, 1], share=share, num_bytes=those),
        before={key: those * value for key, value in before.items()},
        after={key: those * value for key, value in after.items()},
        posted=True,
    )


def _work(
    each: CodedRound, sizes: tuple[int, ...], codec: str, feedback: Feedback
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the elements that the busiest rank encodes before messages, and decodes after them, by `netmodel.KEYS`."""
    partial = f"{'encode' if feedback == 'none' else 'feedback'} {codec}"
    mean = f"{'feedback' if feedback == 'both' else 'encode'} {codec}"
    before, after = (defaultdict[str, dict[int, float]](lambda: defaultdict(float)) for _ in range(2))
    for rank, b in each.means:
        before[mean][rank] += sizes[b]
        before[f"decode {codec}"][rank] += sizes[b]
        before["reduce_bytes"][rank] += 8 * sizes[b]
    for m in each.messages:
        before[partial][m.source] += _elements(m.encoded, sizes)
        after[f"add {codec}"][m.target] += _elements(m.added, sizes)
        after[f"decode {codec}"][m.target] += _elements((*m.taken, *m.copied), sizes)
    most = ({key: max(ranks.values()) for key, ranks in its.items()} for its in (before, after))
    return next(most), next(most)


def _elements(blocks: tuple[int, ...], sizes: tuple[int, ...]) -> int:
    return sum(sizes[b] for b in blocks)


@lru_cache(maxsize=256)
def _coded_rounds(schedule: Schedule, sizes: tuple[int, ...]) -> tuple[CodedRound, ...]:
    return coded_rounds(schedule, sizes)
