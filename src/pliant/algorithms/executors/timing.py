"""Combinators of timing: every n-th step, one step late, or another algorithm in a warm-up."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim import Optimizer

from pliant.accelerator import is_accelerator
from pliant.algorithms.base import (
    Algorithm,
    AveragesPairs,
    ChecksOptimizer,
    Deferred,
    ExchangesWeights,
    State,
    StateSpec,
    StepContext,
    innermost,
    prefix_slots,
    start_innermost,
)
from pliant.algorithms.executors.local_steps import LocalStepsExecutor
from pliant.buckets import Bucket, as_real
from pliant.codecs import all_finite, finite_flag, keep_unless
from pliant.collectives.pair_average import PairRule
from pliant.comm.base import Comm
from pliant.comm.hierarchical import HierarchicalComm
from pliant.spec import After, Delayed, Every, Exchange

__all__ = ["AfterExecutor", "DelayedExecutor", "EveryExecutor"]


@dataclass(frozen=True)
class EveryExecutor:
    """Exchange gradients in every n-th step only.

    In the steps between, gradients are added up and the optimizer sees zeros, so that ranks stay equal; the n-th step
    exchanges their sum. Nothing is lost (Note [conservation]).
    """

    node: Every
    inner: Algorithm

    def slots(self, shape: tuple[int, ...], comm: Comm) -> StateSpec:
        """The pending gradient, and the inner algorithm's slots."""
        return {"pending": None, **self.inner.slots(shape, comm)}

    def prepare(self, bucket: Bucket, comm: Comm) -> Any:
        """Prepare the inner algorithm."""
        return self.inner.prepare(bucket, comm)

    def on_ready(self, bucket: Bucket, state: State, comm: Comm, context: StepContext) -> Deferred | None:
        """Gather, or add what was gathered and exchange."""
        g, pending = bucket.flat, state.flat["pending"]
        if (context.step + 1) % self.node.steps:
            pending.add_(g)  # an overflow too: all ranks see it when it is exchanged, and none before
            g.zero_()
            return None
        g.add_(pending)
        rest = self.inner.on_ready(bucket, state, comm, context)
        # An exchange that was not finite is undone with its step, and what was pending comes back with it. Where the
        # inner algorithm hands over what came before, g says nothing of this exchange, and has taken what was pending.
        if self.node.inner.timing_at(context.step).delay_steps:
            pending.zero_()
        elif is_accelerator(g.device):
            pending.masked_fill_(finite_flag(g) | ~finite_flag(pending), 0.0)
        elif all_finite(g) or not all_finite(pending):
            pending.zero_()
        return rest


@dataclass(frozen=True)
class DelayedExecutor:
    """The optimizer uses the gradients of the step before, while those of this step are exchanged.

    Li et al., Pipe-SGD (arXiv:1811.03619): x_{t+1} = x_t - lr g(x_{t-1}), so an exchange may take as long as a whole
    step without being waited for. With a compensation c, the late gradient is corrected for what the weights have done
    since it was taken (Zheng et al., DC-ASGD, arXiv:1609.08326, equation 10): g + c g o g o (x_t - x_{t-1}). With a
    lookahead k it is extrapolated: g(x_{t-1}) + k (g(x_{t-1}) - g(x_{t-2})). Where the loss is quadratic that is the
    gradient at weights predicted from their last move, x_{t-1} + k (x_{t-1} - x_{t-2}), as in SpecTrain (Chen et al.,
    arXiv:1809.02839). With k the momentum it does the same as Nesterov's momentum, and so stabilizes SGD with momentum
    m. On a curvature h, lr h must stay below 1 - m without it (0.1 for 0.9), and below 0.25 for 0.9 with it. The first
    step sees zeros. Memory: two gradients; one more with a lookahead, a copy of the weights with a compensation.
    """

    node: Delayed
    inner: Algorithm

    def slots(self, shape: tuple[int, ...], comm: Comm) -> StateSpec:
        """Slots of the late gradient, the one before, the weights at which it was taken, and the inner ones."""
        slots: StateSpec = {"on its way": None, **self.inner.slots(shape, comm)}
        slots = {**slots, "before": None} if self.node.lookahead else slots
        return {**slots, "taken at": None} if self.node.compensation else slots

    def prepare(self, bucket: Bucket, comm: Comm) -> Any:
        """Make a bucket of our own for what is on its way, and prepare the inner algorithm for it."""
        own = replace(bucket, flat=torch.empty(bucket.numel, dtype=torch.float32, device=bucket.flat.device))
        return own, torch.empty_like(own.flat), self.inner.prepare(own, comm)

    def on_ready(self, bucket: Bucket, state: State, comm: Comm, context: StepContext) -> Deferred | None:
        """Hand over what has arrived since the step before, and let this step's gradients follow."""
        g, arrived = bucket.flat, state.flat["on its way"]
        own, scratch, workspace = state.workspace
        scratch.copy_(g)
        g.copy_(arrived)
        arrived.copy_(scratch)
        if self.node.lookahead:
            self._extrapolate(g, state.flat["before"], scratch)
        if self.node.compensation:
            self._compensate(bucket, state.flat["taken at"], scratch, context.loss_scale)
        own.flat = arrived

        def exchange() -> None:
            rest = self.inner.on_ready(own, replace(state, workspace=workspace), comm, context)
            if rest is not None:
                rest()

        return exchange

    def _extrapolate(self, g: Tensor, before: Tensor, scratch: Tensor) -> None:
        torch.sub(g, before, out=scratch)
        if is_accelerator(g.device):
            keep_unless(finite_flag(g), before, g)
        elif all_finite(g):  # an overflow must not come back with the next step
            before.copy_(g)
        g.add_(scratch, alpha=self.node.lookahead)

    def _compensate(self, bucket: Bucket, taken_at: Tensor, scratch: Tensor, loss_scale: float) -> None:
        g, now = bucket.flat, scratch
        for span, weight in zip(bucket.spans, bucket.weights, strict=True):
            now[span.offset : span.offset + span.numel].view(span.shape).copy_(as_real(weight.detach()))
        moved = torch.sub(now, taken_at, out=taken_at)
        g.addcmul_(
            moved.mul_(g), g, value=self.node.compensation / loss_scale
        )  # g is in that scale, and once too often
        taken_at.copy_(now)


@dataclass(frozen=True)
class AfterExecutor:
    """Run `first` in the steps before `node.steps`, and `then` from there on.

    Its outer momentum may follow the warm-up: what each period has changed goes into it, and nothing else happens (Fan
    and Zhang, Pier, arXiv:2511.17849).
    """

    node: After
    first: Algorithm
    then: Algorithm

    def slots(self, shape: tuple[int, ...], comm: Comm) -> StateSpec:
        """Both sets of slots, those of the first under ``first/``."""
        first = self.first.slots(shape, _comm_under(comm, self.node.first))
        return {**prefix_slots("first/", first), **self.then.slots(shape, _comm_under(comm, self.node.then))}

    def check_optimizer(self, optimizer: Optimizer) -> None:
        """Let both algorithms check the optimizer."""
        for each in (self.first, self.then):
            inner = innermost(each)
            if isinstance(inner, ChecksOptimizer):
                inner.check_optimizer(optimizer)

    def start_from(self, optimizer: Optimizer, parameter: Tensor, slots: Mapping[str, Tensor]) -> None:
        """Let both begin from the optimizer's state."""
        first = {k.removeprefix("first/"): v for k, v in slots.items() if k.startswith("first/")}
        for each, own in ((self.first, first), (self.then, slots)):
            start_innermost(each, optimizer, parameter, own)

    def prepare(self, bucket: Bucket, comm: Comm) -> Any:
        """Prepare both of its algorithms."""
        first = self.first.prepare(bucket, _comm_under(comm, self.node.first))
        return first, self.then.prepare(bucket, _comm_under(comm, self.node.then))

    def on_ready(self, bucket: Bucket, state: State, comm: Comm, context: StepContext) -> Deferred | None:
        """Hand over to the one whose time it is."""
        if context.step < self.node.steps:
            early = state.part("first/", state.workspace[0])
            return self.first.on_ready(bucket, early, _comm_under(comm, self.node.first), context)
        return self.then.on_ready(bucket, self._later(state), _comm_under(comm, self.node.then), context)

    def reset_reference(self, bucket: Bucket, state: State) -> None:
        """Let the later one begin from these weights."""
        cast(ExchangesWeights, self.then).reset_reference(bucket, self._later(state))

    def exchange_weights(self, bucket: Bucket, state: State, comm: Comm, context: StepContext) -> Deferred | None:
        """Begin from the weights that the warm-up has made, then hand over to the later one."""
        if context.step <= self.node.steps and self.node.gathers_momentum:
            return cast(LocalStepsExecutor, self.then).gather_momentum(bucket, self._later(state), context)
        if context.step <= self.node.steps:
            return self.reset_reference(bucket, state)
        return cast(ExchangesWeights, self.then).exchange_weights(
            bucket, self._later(state), _comm_under(comm, self.node.then), context
        )

    def pair_rule(self, numel: int, state: State) -> PairRule:
        """Let the later one say how two ranks average."""
        return cast(AveragesPairs, self.then).pair_rule(numel, self._later(state))

    def _later(self, state: State) -> State:
        return replace(state, workspace=state.workspace[1])


def _comm_under(comm: Comm, node: Exchange) -> Comm:
    """Return the comm of a node: all ranks where only the other stage needs hosts."""
    return comm.flat if isinstance(comm, HierarchicalComm) and not node.levels else comm
