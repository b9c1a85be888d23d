"""Buckets of one state of the optimizer: which parameters have it, when its mean is due, and where it goes."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from pliant.algorithms.base import Algorithm, State
from pliant.algorithms.executors import executor_for
from pliant.buckets import Bucket, as_real, real_shape, spans_of
from pliant.comm.base import Comm
from pliant.engine.comm_thread import TaskHandle
from pliant.engine.comms import Comms
from pliant.engine.state_shapes import StateShapes
from pliant.engine.weight_parts import WeightPart, require_finite
from pliant.spec import OptimizerState, Timing, averaged_states
from pliant.spec.optimizer_state import FIRST_MOMENT, MOMENTUM, SECOND_MOMENT

__all__ = ["StatePart", "largest_ratios", "split_states"]

_ROOM = 4.0
"""Where ranks' gradients are somewhat unlike, means stay as they are."""


@dataclass(kw_only=True)
class StatePart:
    """A state of the parameters of a `WeightPart`, as far as their optimizers have it."""

    key: str
    """Name under which an optimizer keeps it."""
    period: int
    weights: Timing
    """Timing of the weights, in whose proportion its period is stretched."""
    algorithm: Algorithm
    bucket: Bucket
    views: list[Tensor]
    """View of each parameter's state in bucket.flat, in its own shape."""
    comm: Comm
    state: State
    last: int
    """Step of the last mean."""
    delay_steps: int = 0
    """Steps from a mean to its use."""
    correction: Tensor | None = None
    """Of a late mean: minus what this rank has put in, and then the mean minus that, (numel,)."""
    handle: TaskHandle | None = None
    """Of a late mean that was not used yet."""
    round: int = 0
    """Means so far."""

    def due(self, step: int, lr: float) -> bool:
        """Say whether it is averaged after this many steps."""
        stretch = self.weights.stretch
        stretched = int((stretch / lr) ** 2) * self.period // self.weights.period if stretch and lr > 0 else 0
        return step - self.last >= max(self.period, stretched)

    @torch.no_grad()
    def load(self, optimizer: Optimizer) -> None:
        """Copy the state into the bucket: zeros where a parameter has had no gradient yet, as its optimizer begins."""
        for view, held in zip(self.views, self._held(optimizer, self.key), strict=True):
            if held is None:
                view.zero_()
            else:
                view.copy_(held)

    def require_finite(self, step: int) -> None:
        """Raise NonFiniteGradientError if there is a NaN or an Inf in the bucket, before it is sent."""
        require_finite(self.bucket, f"{self.key} of", self.comm.rank, step)

    @torch.no_grad()
    def store(self, optimizer: Optimizer) -> None:
        """Store the mean, wherever the optimizer has begun."""
        for view, held in zip(self.views, self._held(optimizer, self.key), strict=True):
            if held is not None:
                held.copy_(view)

    def decays(self, optimizer: Optimizer) -> list[float]:
        """Return the part of each parameter's moment that a step leaves.

        Raises:
            ValueError: A group of the optimizer does not say.

        """
        groups = {p: group for group in optimizer.param_groups for p in group["params"]}
        setting = "momentum" if self.key == MOMENTUM else "betas"
        if any(setting not in groups[p] for p in self.bucket.weights):
            raise ValueError(
                f"the plan uses means of {self.key!r} {self.delay_steps} steps late, but the optimizer has no "
                f"{setting!r} that says how it forgets; leave delay_steps of this state out."
            )
        found = [groups[p][setting] for p in self.bucket.weights]
        return [float(each if self.key == MOMENTUM else each[self.key == SECOND_MOMENT]) for each in found]

    @torch.no_grad()
    def correct(self, optimizer: Optimizer, correction: Tensor, step: int) -> None:
        """Add what a late mean changes, of which the steps since then have left a part (`OptimizerState`)."""
        self.bucket.flat.copy_(correction)
        for decay, view, held in zip(self.decays(optimizer), self.views, self._held(optimizer, self.key), strict=True):
            if held is not None:
                held.add_(view, alpha=decay ** (step - self.last))
                if self.key == SECOND_MOMENT:
                    held.clamp_(min=0)  # below it by a rounding at most

    @torch.no_grad()
    def bound(self, optimizer: Optimizer, ratios: Mapping[Tensor, float]) -> None:
        """Cut the mean of Adam's first moments m to four times what they can be beside this rank's second moments v.

        Adam's m and v are sums of (1 - b1) b1^k g and (1 - b2) b2^k g^2 over the same gradients g, k steps old. So |m|
        is at most (1 - b1) / sqrt((1 - b2) (1 - b1^2 / b2)) sqrt(v) (Cauchy and Schwarz). The mean of m need not be,
        where the rank has seen far smaller gradients than others. Where it has seen none, a step would be lr m / eps.
        """
        moments = zip(self._held(optimizer, FIRST_MOMENT), self._held(optimizer, SECOND_MOMENT), strict=True)
        for parameter, (m, v) in zip(self.bucket.weights, moments, strict=True):
            if m is not None and v is not None and (ratio := ratios.get(parameter, math.inf)) < math.inf:
                limit = v.sqrt().mul_(_ROOM * ratio)
                m.clamp_(-limit, limit)

    def _held(self, optimizer: Optimizer, key: str) -> Iterator[Tensor | None]:
        """Yield what the optimizer keeps of each parameter; None before its first step with a gradient."""
        for span, parameter in zip(self.bucket.spans, self.bucket.weights, strict=True):
            held = optimizer.state.get(parameter, {}).get(key)
            if held is not None and held.layout != torch.strided:
                raise ValueError(
                    f"the plan averages {self.key!r} of the optimizer, but of {span.name} it is a sparse tensor, which "
                    "other ranks have in other places; make the layer with sparse=False."
                )
            yield None if held is None else as_real(held)


def split_states(parts: Sequence[WeightPart], shapes: StateShapes, comms: Comms, step: int) -> list[StatePart]:
    """Return the states that are averaged beside weights, in buckets; those at once share one buffer, in turns.

    Args:
        parts: Buckets of weights that keep step.
        shapes: What optimizers keep of each parameter.
        comms: Comms of the states alone.
        step: Steps made so far.

    """
    wanted = [(part, each) for part in parts for each in averaged_states(part.node)]
    split = [_split(part, each, shapes, comms.of(each.averaging), step) for part, each in wanted]
    made = [part for part in split if part.bucket.spans]
    longest = max((_numel(part) for part in made if not part.delay_steps), default=0)
    buffer = torch.empty(longest, dtype=torch.float32, device=parts[0].bucket.flat.device)
    for part in made:
        part.bucket.flat = buffer[: _numel(part)]
        if part.delay_steps:  # it is under way while others are due
            part.bucket.flat, part.correction = buffer.new_empty(_numel(part)), buffer.new_zeros(_numel(part))
        part.views = [part.bucket.view(span) for span in part.bucket.spans]
        part.state = State(workspace=part.algorithm.prepare(part.bucket, part.comm))
    return made


def _split(part: WeightPart, wanted: OptimizerState, shapes: StateShapes, comm: Comm, step: int) -> StatePart:
    """Return a state without buffers. Where weights are exchanged in fragments, it is due beside its own."""
    names = [span.name for span in part.bucket.spans]
    having = [k for k, name in enumerate(names) if wanted.name in shapes[name]]
    spans = spans_of([names[k] for k in having], [real_shape(shapes[names[k]][wanted.name]) for k in having])
    weights = tuple(part.bucket.weights[k] for k in having)
    name = f"{wanted.name} of {part.bucket.name}"
    return StatePart(
        key=wanted.name,
        period=wanted.period,
        weights=part.timing,
        algorithm=executor_for(wanted.averaging),
        bucket=Bucket(name=name, spans=spans, weights=weights, flat=torch.empty(0)),
        views=[],
        comm=comm,
        state=State(),
        last=max(step, part.timing.until_step) - -part.offset % wanted.period,
        delay_steps=wanted.delay_steps,
    )


def _numel(part: StatePart) -> int:
    return sum(span.numel for span in part.bucket.spans)


def largest_ratios(optimizer: Optimizer) -> dict[Tensor, float]:
    """Return the largest |m| / sqrt(v) that Adam's moments of each parameter can have (`StatePart.bound`)."""
    return {p: _largest_ratio(group) for group in optimizer.param_groups for p in group["params"]}


def _largest_ratio(group: Mapping[str, Any]) -> float:
    """Return the ratio for the betas of a group; infinity where gradients do not bound it."""
    b1, b2 = (float(beta) for beta in group.get("betas", (0.0, 0.0)))
    return (1 - b1) / math.sqrt((1 - b2) * (1 - b1**2 / b2)) if b1**2 < b2 < 1 else math.inf
