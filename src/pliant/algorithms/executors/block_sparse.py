"""Whole blocks, ranked by what they do to the loss, in an exchange that holds nothing else."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import Optimizer

from pliant.algorithms.base import CURVATURE, State, StateSpec, StepContext
from pliant.algorithms.executors.budgets import minimum_counts, select_blocks
from pliant.algorithms.executors.coded_average import coded_average
from pliant.algorithms.executors.ratio_state import RATIO_STATE_NUMEL, RatioState, check_single_momentum, ramp_ratio
from pliant.algorithms.executors.scheduled_blocks import ScheduledBlockSum
from pliant.algorithms.registry import is_adaptive
from pliant.buckets import Bucket
from pliant.codecs import all_finite
from pliant.collectives import BlockAllGather, BlockGrid, BlockResult, LeaderMask, ScoreMean, SharedBlockAverage
from pliant.comm.base import Comm
from pliant.layouts.blocks import divide_blocks, row_blocks
from pliant.schedules.scheduled_comm import scheduled
from pliant.spec import BlockSparse, CurvatureSpec, Selection

__all__ = ["BlockSparseExecutor"]


class _Workspace:
    """Live exchanges of one bucket; that of values is made anew when the ratio changes."""

    def __init__(self, selection: Selection, bucket: Bucket, comm: Comm) -> None:
        shapes = [span.shape for span in bucket.spans]
        self.grid = BlockGrid(shapes, divide_blocks(shapes, selection, comm.size), bucket.flat.device)
        self.names = tuple(bucket.spans[place].name for place in self.grid.places)
        """Names of the parameters that have blocks."""
        self.mask = LeaderMask(self.grid, comm)
        self.scores = ScoreMean(len(self.grid.starts), comm, bucket.flat.device)
        self.comm, self._ratio = comm, 0.0
        self._carrier: Callable[..., BlockResult] | None = None

    def carrier(self, ratio: float) -> Callable[..., BlockResult]:
        """Return what moves values, made when a ratio is first asked for."""
        if self._carrier is None or ratio != self._ratio:
            selection, whole = self.grid.parts.selection, self.grid.parts.is_whole(ratio)
            self._ratio = ratio
            if selection.agreement != "local" or whole:
                self._carrier = SharedBlockAverage(self.grid, ratio, self.comm, coded=coded_average)
            elif selection.topology is not None:
                self._carrier = ScheduledBlockSum(self.grid, selection.topology, self.comm)
            else:
                self._carrier = BlockAllGather(self.grid, ratio, self.comm)
        return self._carrier

    def gather(self, slots: Mapping[str, Tensor]) -> Tensor:
        """Return a slot of all parameters that have blocks, one after another; a copy."""
        nothing = torch.empty(0, dtype=torch.float32, device=self.grid.device)
        return torch.cat([nothing, *(slots[name] for name in self.names)])

    def copy_to_parts(self, values: Tensor, slots: Mapping[str, Tensor]) -> None:
        """Write what `gather` returned back."""
        parts = values.split([len(slots[name]) for name in self.names])
        for name, part in zip(self.names, parts, strict=True):
            slots[name].copy_(part)


@dataclass(frozen=True)
class BlockSparseExecutor:
    """Send the blocks that matter most for their bytes; keep the others for later steps.

    After TASC (Dong, Liu, Keutzer); where it leaves something open, after the papers named here. Block b of u, h_b the
    mean curvature over it, c_b its bytes, w_b the exchanges that it has waited:

        u <- m u + g;  v <- v + u                      momentum correction (DGC, arXiv:1712.01887)
        s_b = h_b^p |v_b|^2 (1 + age ratio w_b)        cost of not sending b: L(w) - L(x) has 1/2 e'He
        S = argmax sum s_b  with  sum c_b <= budget    densest s_b / c_b first, floors of layers before (budgets.py)
        send v_S;  v_S <- 0,  u_S <- 0                 one mean of a compact vector where ranks agree on S

    Ranks agree on S by the mean of |v_b|^2 over ranks ('global'), or use the selection of one rank, each in rotation
    ('leader': ScaleCom, arXiv:2104.11125), or do not agree ('local': payloads are gathered, or summed by a schedule).
    With feedback 'difference' ranks send blocks of d = u - e, e <- e + sent, and use the mean of all e (EF21,
    arXiv:2106.05203; with momentum arXiv:2305.15155), which needs no bound on gradients. A ratio of 1 is SGD with
    momentum m. Bytes: the ratio's share of an all-reduce's, see `Selection.ratio`.
    """

    node: BlockSparse

    @property
    def curvature(self) -> CurvatureSpec | None:
        """Settings of the curvature estimate; None where it does not count."""
        return self.node.selection.curvature if self.node.selection.feels else None

    def blocks(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the elements of each block of a parameter."""
        rows = row_blocks(shape, self.node.selection.block)
        return () if rows is None else rows.numels

    def slots(self, shape: tuple[int, ...], comm: Comm) -> StateSpec:
        """Residuals or estimates; momentum; and of each block its age, last score and curvature."""
        kept: StateSpec = {"residual": None} if self.node.feedback == "worker" else {"estimate": None, "mean": None}
        slots: dict[str, tuple[int, ...] | None] = {**kept, "course": (RATIO_STATE_NUMEL,), "power": (1,)}
        if self.node.momentum:
            slots["velocity"] = None
        if num_blocks := len(self.blocks(shape)):
            slots |= {"age": (num_blocks,), "share": (1,)}
            slots |= {"score": (num_blocks,)} if self.node.selection.tells_in_turns else {}
            slots |= {CURVATURE: (num_blocks,)} if self.curvature is not None else {}
        return slots

    def prepare(self, bucket: Bucket, comm: Comm) -> _Workspace:
        """Lay out the blocks."""
        return _Workspace(self.node.selection, bucket, scheduled(comm, self.node.schedule))

    def start_from(self, optimizer: Optimizer, parameter: Tensor, slots: Mapping[str, Tensor]) -> None:
        """Note the power p, which depends on the optimizer."""
        if "power" in slots:
            power = self.node.selection.power
            slots["power"].fill_(float(not is_adaptive(optimizer)) if power is None else power)

    def uses_curvature_under(self, optimizer: Optimizer) -> bool:
        """Say whether p is not 0."""
        return self.node.selection.power is not None or not is_adaptive(optimizer)

    def check_optimizer(self, optimizer: Optimizer) -> None:
        """Refuse a second momentum in the optimizer."""
        check_single_momentum(self.node.momentum, optimizer)

    def on_ready(self, bucket: Bucket, state: State, comm: Comm, context: StepContext) -> None:
        """Accumulate, choose, exchange, mask. What a poisoned exchange has sent stays here."""
        if comm.size == 1 and not self.node.momentum:  # as of one host: nothing travels
            return
        g, work = bucket.flat, state.workspace
        ratio_state = RatioState.read(state.of["course"])
        ratio = context.ratio(
            ramp_ratio(self.node.selection.ratio, context.step, self.node.ramp_steps), self.node.ramp_steps
        )
        ratio = min(1.0, ratio * ratio_state.factor(self.node.selection))
        finite = all_finite(g)
        x = self._accumulate(g, state) if finite else g
        whole = work.grid.parts.is_whole(ratio)
        told, ratio_setting = g.new_empty(0), context.ratio_setting
        waited = work.gather(state.of.get("age", {}))  # no parameter may have blocks
        chosen = torch.ones_like(work.grid.starts, dtype=torch.bool)
        if not whole:
            scores, told = self._scores(x, waited, state, ratio_state)
            chosen = self._select(
                scores, waited, state, ratio_state, ratio, 1 if ratio_setting is None else ratio_setting.reuse
            )
        carried: BlockResult = work.carrier(ratio)(x, chosen, told, poisoned=not finite)
        if not carried.sound:
            g.fill_(torch.nan)
            return
        if ratio_setting is not None:
            ratio_setting.report(ratio, (norm := x.square().sum()) - carried.sent.square().sum(), norm)
        self._take(carried, g, state)
        if self.node.momentum and self.node.feedback == "worker" and not whole:
            state.flat["velocity"][work.grid.elements(chosen)] = 0
        self._note(chosen, carried.scores, waited, state, ratio_state)
        square = float(g.square().sum()) if self.node.selection.relief > 1 else 0.0
        ratio_state.advance(self.node.selection, square, context.lr)
        ratio_state.write(state.of["course"])

    def _accumulate(self, g: Tensor, state: State) -> Tensor:
        """Return the vector whose blocks are sent, (numel,)."""
        update = g
        if self.node.momentum:
            update = state.flat["velocity"].mul_(self.node.momentum).add_(g)
        if self.node.feedback == "worker":
            return state.flat["residual"].add_(update)
        return torch.sub(update, state.flat["estimate"], out=g)

    def _scores(self, x: Tensor, waited: Tensor, state: State, ratio_state: RatioState) -> tuple[Tensor, Tensor]:
        """Return squared norms of blocks, (num_blocks,), and those that are told behind the values, (num_told,)."""
        work, selection = state.workspace, self.node.selection
        own = work.grid.squares(x)
        if selection.agreement != "global":
            return _without_nonfinite(own), own[:0]
        if selection.rescore == 1:
            return _without_nonfinite(work.scores(own)), own[:0]
        waits = waited + 1
        rates = work.gather(state.of["score"])
        if not rates.any():  # at the start, all are told in a message of their own
            rates = _without_nonfinite(work.scores(own)) / waits
            work.copy_to_parts(rates, state.of["score"])
        return rates * waits, own[self._among(ratio_state)]

    def _among(self, ratio_state: RatioState) -> slice:
        """Return the blocks whose scores are told in this exchange."""
        return slice(int(ratio_state.count) % self.node.selection.rescore, None, self.node.selection.rescore)

    def _select(
        self, scores: Tensor, waited: Tensor, state: State, ratio_state: RatioState, ratio: float, reuse: int
    ) -> Tensor:
        """Return the blocks to send, bool (num_blocks,)."""
        work, leads = state.workspace, self.node.selection.agreement == "leader"
        leader = int(ratio_state.count) % work.comm.size
        if leads and work.comm.rank != leader:
            return work.mask(None, leader)
        density = self._density(scores, waited, state, ratio)
        grid, room = work.grid, work.grid.parts.room(ratio)
        due = leads or ratio_state.count % (self.node.selection.resolve * reuse) == 0
        if anew := due or abs(ratio_state.divided_for - ratio) > 1e-6 * ratio:
            first = minimum_counts(self.node.selection.floor, room, grid.layer_numels, grid.segments)
        else:
            first = work.gather(state.of["share"]).to(torch.int64)
        chosen = select_blocks(density, grid.numels, grid.layers, first, room)
        if anew:
            counts = torch.bincount(grid.layers[chosen], minlength=len(first))
            work.copy_to_parts(counts.to(torch.float32), state.of["share"])
            ratio_state.divided_for = 0.0 if leads else ratio  # alike on all ranks
        return work.mask(chosen, leader) if leads else chosen

    def _density(self, squares: Tensor, waited: Tensor, state: State, ratio: float) -> Tensor:
        """Return h^p |v_b|^2 (1 + age ratio w_b) / c_b, (num_blocks,)."""
        work = state.workspace
        density = squares * (1 + self.node.selection.age * ratio * waited) / work.grid.numels
        power = float(next(iter(state.of["power"].values())))
        if power and self.curvature is not None:
            h = work.gather(state.of[CURVATURE])
            if h.any():  # all zero: nobody has looked yet
                density = density * (h / h.mean()).clamp_min(1e-6).pow(power)
        return _without_nonfinite(density)

    def _take(self, carried: BlockResult, g: Tensor, state: State) -> None:
        """Replace g by the result for the optimizer, and keep what was not sent."""
        if self.node.feedback == "worker":
            state.flat["residual"].index_add_(0, carried.index, carried.sent, alpha=-1)
            out = g.zero_()
        else:
            state.flat["estimate"].index_add_(0, carried.index, carried.sent)
            out = state.flat["mean"]
        for index, mean in carried.means:
            out.index_add_(0, index, mean)
        if out is not g:
            g.copy_(out)

    def _note(self, chosen: Tensor, told: Tensor | None, waited: Tensor, state: State, ratio_state: RatioState) -> None:
        """Keep how long each block has waited, and what its squared norm has grown by in each exchange meanwhile."""
        work = state.workspace
        if not work.names:
            return
        waits = waited + 1
        if told is not None:
            rates, among = work.gather(state.of["score"]), self._among(ratio_state)
            rates[among] = _without_nonfinite(told) / waits[among]
            work.copy_to_parts(rates, state.of["score"])
        work.copy_to_parts(waits.masked_fill_(chosen, 0), state.of["age"])


def _without_nonfinite(x: Tensor) -> Tensor:
    """Return x without NaN or Inf: a poisoned exchange chooses something, alike on all ranks, and comes to nothing."""
    return torch.nan_to_num(x, nan=0.0)
