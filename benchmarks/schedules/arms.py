"""Ways to sum over ranks what each rank has chosen, and what the alpha-beta model says that each takes.

Every arm has a vector of its own for the result, made once, as an algorithm in training has.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from pliant.collectives import BlockGrid, SharedBlockAverage
from pliant.comm import Comm, broadcast_text
from pliant.layouts.blocks import divide_blocks
from pliant.netmodel import Links, Overheads
from pliant.schedules import (
    Candidate,
    Collective,
    Cost,
    ScheduledAllReduce,
    SparseAllReduce,
    candidates,
    improve_owners,
    improve_rounds,
    merge_blocks,
    predict_cost,
)
from pliant.simulator.collective_rounds import ring, ring_all_gather
from pliant.simulator.round import Round
from pliant.spec import Schedule, Selection, Topology, ValueBits, from_json, to_json
from pliant.spec.selection import VALUE_BYTES

_RESCORE = 8
CLASSIC = ("direct", "ring", "halving")
"""Shapes that are always measured, with greedy owners; and the best of those that know of racks, or of two levels."""


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One way, ready to be timed."""

    name: str
    run: Callable[[int], Tensor]
    """Called with the number of the call; returns the sum, (numel,), which the next call overwrites."""
    predicted_s: float
    wanted: str
    """Which sum is right: of 'all' elements, of those 'chosen' by each rank, or 'agreed' upon."""
    about: str = ""
    rounds: int = 0
    off: float = 0.0
    """How far from the right sum an element may be."""


@dataclass(frozen=True, kw_only=True)
class Given:
    """What all arms work on: a vector of `num_blocks` blocks of `block` elements, and who has chosen which."""

    x: Tensor
    """(numel,) of this rank."""
    held: np.ndarray
    """(num_ranks, num_blocks) of bool; the same number for each rank."""
    block: int
    topology: Topology
    comm: Comm

    @property
    def count(self) -> int:
        """Blocks that each rank has chosen."""
        return int(self.held[0].sum())

    @property
    def numels(self) -> list[int]:
        """Elements of each block."""
        return [self.block] * self.held.shape[1]

    def put(self, held: np.ndarray, y: Tensor) -> None:
        """Copy into y, (numel,), the blocks of x that this rank holds."""
        mine = torch.from_numpy(np.flatnonzero(held[self.comm.rank]))
        y.view(-1, self.block).index_copy_(0, mine, self.x.view(-1, self.block).index_select(0, mine))

    def collective(self, held: np.ndarray | None = None) -> Collective:
        """Return who holds what, as a condition."""
        return Collective.of(self.held if held is None else held, 4 * self.block)


def arms_of(given: Given, draw: Callable[[int], np.ndarray], limit_s: float) -> list[Arm]:
    """Return all arms.

    Args:
        given: What is to be summed.
        draw: Another choice of blocks, by number: for the arm in which each call has one of its own.
        limit_s: How long each integer program may look, on rank 0.

    """
    found = candidates(merge_blocks(given.collective()), given.topology)
    by_name = {each.name: each for each in reversed(found)}  # the fastest of a name
    made = [_dense(given), _gathered(given), _agreed(given), _agreed_by_schedule(given)]
    made += [make(given, bits) for bits in (32, 4) for make in (_agreed_as_tasc, _agreed_before)]
    made += [_scheduled(name, by_name[name], given) for name in CLASSIC]
    # Two levels, the racks' or, where there are none, whatever factors are predicted to be best.
    levels = [each for each in found if each.recipe is not None and len(each.recipe.shape.levels) == 2]
    if levels:
        made.append(_scheduled("two levels", levels[0], given))
    made.append(_scheduled("best of the family", found[0], given))
    made += _improved(given, found[0], limit_s)
    made += [_sparse(given), _sparse_anew(given, draw)]
    return made


def _dense(given: Given) -> Arm:
    y = torch.empty_like(given.x)

    def run(_: int) -> Tensor:
        y.copy_(given.x)
        dist.all_reduce(y)
        return y

    predicted_s = _in_turn([ring(np.array([given.x.nbytes * 1.0]), given.comm.size)], given.topology)
    return Arm(name="dense", run=run, predicted_s=predicted_s, wanted="all", about="torch's Gloo all-reduce")


def _gathered(given: Given) -> Arm:
    """All-gather of (numbers of blocks, blocks), and everybody adds up."""
    mine = torch.from_numpy(np.flatnonzero(given.held[given.comm.rank]).astype(np.int32))
    k, wide, size = given.count, 4 * given.block, given.comm.size
    rows = given.x.view(-1, given.block)
    packed = torch.empty(k * (4 + wide), dtype=torch.uint8)
    everybody = torch.empty(size * len(packed), dtype=torch.uint8)
    y = torch.empty_like(given.x)

    def run(_: int) -> Tensor:
        packed[: 4 * k].view(torch.int32).copy_(mine)
        torch.index_select(rows, 0, mine, out=packed[4 * k :].view(torch.float32).view(k, given.block))
        given.comm.all_gather(everybody, packed).wait()
        y.zero_()
        for part in everybody.view(size, -1):
            theirs = part[4 * k :].view(torch.float32).view(k, given.block)
            y.view(-1, given.block).index_add_(0, part[: 4 * k].view(torch.int32), theirs)
        return y

    predicted_s = _in_turn([ring_all_gather(np.array([packed.nbytes * 1.0]), size)], given.topology)
    return Arm(name="all-gather", run=run, predicted_s=predicted_s, wanted="chosen", about="of numbers and blocks")


def agreed(given: Given, add_up: Callable[[Tensor], object] = dist.all_reduce) -> Tensor:
    """Return the blocks, (count,), of which all ranks' norms are the largest in sum: the same on all ranks."""
    scores = torch.linalg.vector_norm(given.x.view(-1, given.block), dim=1).round()  # no order of summing rounds it
    add_up(scores)
    return scores.topk(given.count, sorted=False).indices.sort().values


def _agreed(given: Given) -> Arm:
    """All-reduce of scores, then of the blocks that have the largest: everybody sends the same."""
    rows = given.x.view(-1, given.block)
    y = torch.empty_like(rows)

    def run(_: int) -> Tensor:
        chosen = agreed(given)
        compact = rows.index_select(0, chosen)
        dist.all_reduce(compact)
        return y.zero_().index_copy_(0, chosen, compact).view(-1)

    sizes = np.array([4.0 * len(rows)]), np.array([4.0 * given.count * given.block])
    predicted_s = sum(_in_turn([ring(each, given.comm.size)], given.topology) for each in sizes)
    return Arm(
        name="agreed mask",
        run=run,
        predicted_s=predicted_s,
        wanted="agreed",
        about="all-reduces of scores, of blocks",
    )


def _agreed_by_schedule(given: Given) -> Arm:
    """The same by the best schedules for vectors that all hold: fewer rounds than a ring where messages are small."""
    rows = given.x.view(-1, given.block)
    y, compact = torch.empty_like(rows), torch.empty(given.count, given.block)
    scores_s, add_scores = _all_held(given, torch.empty(len(rows)))
    blocks_s, add_blocks = _all_held(given, compact.view(-1))

    def run(_: int) -> Tensor:
        chosen = agreed(given, add_scores)
        torch.index_select(rows, 0, chosen, out=compact)
        add_blocks(compact.view(-1))
        return y.zero_().index_copy_(0, chosen, compact).view(-1)

    return Arm(
        name="agreed mask, scheduled",
        run=run,
        predicted_s=scores_s + blocks_s,
        wanted="agreed",
        about="the same, by the best schedules",
    )


def _agreed_as_tasc(given: Given, bits: ValueBits) -> Arm:
    """What the algorithm tasc does: an eighth of the scores goes behind the values of the exchange before."""
    carry, grid, off = _compact(given, bits)
    rows, y = given.x.view(-1, given.block), torch.zeros(given.x.numel())
    known = grid.squares(given.x).sqrt_().round_()
    dist.all_reduce(known)
    sent = torch.empty(0, dtype=torch.int64)

    def run(number: int) -> Tensor:
        nonlocal sent
        told = slice(number % _RESCORE, None, _RESCORE)
        chosen = torch.zeros(len(rows), dtype=torch.bool)
        chosen[known.topk(given.count, sorted=False).indices] = True
        scores = grid.squares(given.x).sqrt_().round_()
        carried = carry(given.x, chosen, scores[told], poisoned=False)
        known[told] = carried.told * given.comm.size
        y.index_fill_(0, sent, 0)
        sent = carried.index
        return y.index_copy_(0, sent, carried.got[0][1].mul_(given.comm.size))

    return Arm(
        name=f"agreed mask, as tasc, {bits} bits",
        run=run,
        predicted_s=_all_held_s(given, VALUE_BYTES[bits] * given.count * given.block + 4 * -(-len(rows) // _RESCORE)),
        wanted="agreed",
        about="an eighth of the scores with the values",
        off=off,
    )


def _agreed_before(given: Given, bits: ValueBits) -> Arm:
    """The exchange alone."""
    carry, _, off = _compact(given, bits)
    chosen = torch.zeros(given.held.shape[1], dtype=torch.bool)
    chosen[agreed(given)] = True
    y, nothing = torch.zeros(given.x.numel()), torch.empty(0)

    def run(_: int) -> Tensor:
        carried = carry(given.x, chosen, nothing, poisoned=False)
        return y.index_copy_(0, carried.index, carried.got[0][1].mul_(given.comm.size))

    return Arm(
        name=f"agreed mask, known before, {bits} bits",
        run=run,
        predicted_s=_all_held_s(given, VALUE_BYTES[bits] * given.count * given.block),
        wanted="agreed",
        about="the exchange of values alone",
        off=off,
    )


def _compact(given: Given, bits: ValueBits) -> tuple[SharedBlockAverage, BlockGrid, float]:
    """Return what exchanges as many blocks as each rank has chosen, and how far off a sum of codes may be."""
    shape = (given.held.shape[1], given.block)
    selection = Selection(
        block=given.block, dense=0.0, agreement="global", rescore=_RESCORE, value_bits=bits, curvature=None
    )
    paid_bytes = selection.value_bytes * (given.count * given.block + 0.5) + selection.score_bytes(shape[0])
    ratio = paid_bytes / (4 * given.x.numel())
    grid = BlockGrid([shape], divide_blocks([shape], selection, given.comm.size), given.x.device)
    largest = given.x.abs().max()
    given.comm.all_reduce(largest, "max").wait()
    steps = 0.0 if bits == 32 else 2 * given.comm.size / 14  # each rank's rounding, and the mean's: half a step of 7
    return SharedBlockAverage(grid, ratio, given.comm), grid, steps * float(largest)


def _all_held_s(given: Given, num_bytes: float) -> float:
    """Return what a direct sum of so many bytes that all hold is predicted to take."""
    size = given.comm.size
    collective = Collective.of(np.ones((size, size), dtype=bool), [int(num_bytes) // size] * size)
    found = candidates(merge_blocks(collective), given.topology)
    return next(each.cost.total_s for each in found if each.name == "direct")


def _all_held(given: Given, like: Tensor) -> tuple[float, ScheduledAllReduce]:
    """Return the best schedule's predicted time, and what carries it out, for vectors that all ranks hold."""
    size = given.comm.size
    parts = 8 * size
    numels = [len(like) * (k + 1) // parts - len(like) * k // parts for k in range(parts)]
    collective = Collective.of(np.ones((size, parts), dtype=bool), [4 * numel for numel in numels])
    best = candidates(merge_blocks(collective), given.topology)[0]
    add_up = ScheduledAllReduce(best.schedule, best.merged, collective, numels, given.comm, like=like)
    return best.cost.total_s, add_up


def _scheduled(name: str, candidate: Candidate, given: Given) -> Arm:
    add_up = ScheduledAllReduce(
        candidate.schedule, candidate.merged, given.collective(), given.numels, given.comm, like=given.x
    )

    y = torch.empty_like(given.x)

    def run(_: int) -> Tensor:
        given.put(given.held, y)
        add_up(y)
        return y

    return Arm(
        name=name,
        run=run,
        predicted_s=candidate.cost.total_s,
        wanted="chosen",
        about=candidate.name,
        rounds=len(candidate.schedule.rounds),
    )


def _improved(given: Given, best: Candidate, limit_s: float) -> list[Arm]:
    """What programs find, on rank 0, and all others are told."""
    found = dict[str, Any]()
    if limit_s > 0 and given.comm.rank == 0:
        found = _asked(given, best, limit_s)
    arms: list[Arm] = []
    for name, told in json.loads(broadcast_text(json.dumps(found), given.comm)).items():
        if "schedule" not in told:
            if given.comm.rank == 0:
                print(f"{name}: {told['why']}", flush=True)
            continue
        schedule = from_json(Schedule, told["schedule"])
        merged = merge_blocks(given.collective(), told["pieces"])
        predicted: Cost = predict_cost(schedule, merged.collective, given.topology, Overheads())
        candidate = Candidate(name=schedule.name, merged=merged, schedule=schedule, cost=predicted)
        arms.append(_scheduled(name, candidate, given))
    return arms


def _asked(given: Given, best: Candidate, limit_s: float) -> dict[str, Any]:
    coarse = 2 * given.comm.size  # super-blocks of better_rounds
    tried: Sequence[tuple[str, Callable[[], Candidate]]] = (
        ("program: owners", lambda: improve_owners(best, given.topology, limit_s=limit_s)),
        ("program: rounds", lambda: improve_rounds(best, given.collective(), given.topology, limit_s=limit_s)),
    )
    found: dict[str, Any] = {}
    for name, improve in tried:
        try:
            better = improve()
        except (ValueError, RuntimeError) as error:
            found[name] = {"why": str(error)}
            continue
        pieces = 0 if better.merged == best.merged else coarse
        found[name] = {"schedule": to_json(better.schedule), "pieces": pieces}
        if better is best:
            found[name] = {"why": f"nothing faster than {best.name} in {limit_s:g} s"}
    return found


def _sparse(given: Given) -> Arm:
    """As a training step would: who holds what is asked anew each time, but is what it was."""
    add_up = SparseAllReduce(given.numels, given.topology, given.comm, like=given.x)
    mine = given.held[given.comm.rank]
    y = torch.empty_like(given.x)

    def run(_: int) -> Tensor:
        given.put(given.held, y)
        add_up(y, mine)
        return y

    best = candidates(merge_blocks(given.collective()), given.topology)[0]
    return Arm(
        name="SparseSum, same blocks",
        run=run,
        predicted_s=best.cost.total_s + _bitmap_s(given),
        wanted="chosen",
        about=f"bitmaps, then {best.name}",
        rounds=len(best.schedule.rounds),
    )


def _sparse_anew(given: Given, draw: Callable[[int], np.ndarray]) -> Arm:
    """The same with other blocks in each call, so that each is chosen for, verified and compared."""
    add_up = SparseAllReduce(given.numels, given.topology, given.comm, like=given.x)

    y = torch.empty_like(given.x)

    def run(number: int) -> Tensor:
        held = draw(number)  # the first is what is given
        given.put(held, y)
        add_up(y, held[given.comm.rank])
        return y

    best = candidates(merge_blocks(given.collective()), given.topology)[0]
    return Arm(
        name="SparseSum, new blocks",
        run=run,
        predicted_s=best.cost.total_s + 2 * _bitmap_s(given),
        wanted="chosen",
        about="bitmaps, choice, proof, comparison, and the schedule",
    )


def _bitmap_s(given: Given) -> float:
    return _in_turn([ring_all_gather(np.array([given.held.shape[1] / 8]), given.comm.size)], given.topology)


def _in_turn(rounds: Sequence[Round], topology: Topology) -> float:
    """Return what rounds around a ring take, with the same overheads as schedules: a rank sends one and gets one."""
    overheads = Overheads()
    total_s = 0.0
    for each in rounds:
        if each.messages is None:
            continue
        wire_s, _, latency_s = Links(topology).load(each.messages)
        once_s = overheads.wire_factor * float(wire_s[0]) + float(latency_s[0]) + 2 * overheads.message_s
        total_s += each.repeat * once_s
    return total_s
