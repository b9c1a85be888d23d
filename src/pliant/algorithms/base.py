"""Protocols of algorithms: frozen values with explicit state, which the engine calls at named moments."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from torch import Tensor
from torch.optim import Optimizer

from pliant.buckets import Bucket
from pliant.comm.base import Comm
from pliant.spec import CurvatureSpec, Exchange

__all__ = [
    "CURVATURE",
    "AcceptsPrescaled",
    "Algorithm",
    "ChecksOptimizer",
    "Deferred",
    "ExchangesWeights",
    "UsesCurvatureUnder",
    "InitializesFromOptimizer",
    "RatioSetting",
    "State",
    "StateSpec",
    "StepContext",
    "UsesCurvature",
    "prefix_slots",
    "start_innermost",
    "innermost",
]

StateSpec = Mapping[str, tuple[int, ...] | None]
"""Names of state tensors: with their shape, or None for one float32 per element of the parameter."""

CURVATURE = "curvature"
"""The slot into which the engine writes what a `UsesCurvature` asks for."""

Deferred = Callable[[], None]
"""What is left to do once the result is handed over: nobody waits for it before the same bucket's next exchange."""


@dataclass(frozen=True, kw_only=True)
class State:
    """State of one bucket on one rank. The engine owns the tensors and saves them per parameter."""

    flat: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    """Slot -> float32 (bucket.numel,), in the bucket's order, zero at first."""
    of: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict[str, Mapping[str, Tensor]])
    """Slot -> parameter -> float32 tensor of the slot's own shape, zero at first."""
    workspace: Any = None
    """Buffers and live collectives from `prepare`: made once for each layout of buckets, never saved."""

    def part(self, prefix: str, workspace: Any) -> "State":
        """Return what belongs to one member of a combinator, whose slots carry a prefix such as ``first/``."""
        return State(
            flat={k.removeprefix(prefix): v for k, v in self.flat.items() if k.startswith(prefix)},
            of={k.removeprefix(prefix): v for k, v in self.of.items() if k.startswith(prefix)},
            workspace=workspace,
        )


@dataclass(kw_only=True)
class RatioSetting:
    """Between a controller and the algorithms whose node has a target; read and written in the comm thread only."""

    ratio: float = 0.0
    """What to send, the same on all ranks; 0 for the plan's own."""
    reuse: int = 1
    """How many times longer than planned what a selection has found out serves, where an algorithm keeps something."""
    used: float = 0.0
    """The ratio of the last exchange."""
    left: Tensor | None = None
    """Squared norm of what was not sent, summed over exchanges, (); None before the first."""
    whole: Tensor | None = None
    """The same of all that could have been sent."""

    def report(self, ratio: float, left: Tensor, whole: Tensor) -> None:
        """Say what has become of an exchange; called by algorithms."""
        self.used = ratio
        self.left = left if self.left is None else self.left + left
        self.whole = whole if self.whole is None else self.whole + whole

    def pop_dropped_share(self) -> float:
        """Return the part of the squared norm that was left behind since the last call; 0 if nothing was sent."""
        left, whole, self.left, self.whole = self.left, self.whole, None, None
        if left is None or whole is None or not 0 < float(whole) < float("inf"):
            return 0.0
        return float(left) / float(whole)


@dataclass(frozen=True, kw_only=True)
class StepContext:
    """Step, seed and rate of one exchange."""

    step: int
    """Optimizer steps completed before this one."""
    seed: int
    """Equal on all ranks, different for each exchange of each bucket."""
    round: int = 0
    """Exchanges of the same weights before this one."""
    lr: float = 0.0
    """Of gradients: the largest learning rate of the optimizer's groups, the same on all ranks."""
    ratio_setting: RatioSetting | None = None
    """Where a controller says how much to send, if the node has a target."""
    share: float = 1.0
    """This rank's part of all ranks' work since the last exchange of weights, times the number of ranks."""

    def ratio(self, own: float, ramp_steps: int) -> float:
        """Return the ratio of this exchange: what a controller has set, once a ramp is over, or the algorithm's own."""
        set_by = self.ratio_setting.ratio if self.ratio_setting is not None and self.step >= ramp_steps else 0.0
        return set_by or own


class Algorithm(Protocol):
    """A relaxation of synchronous training, as a value."""

    @property
    def node(self) -> Exchange:
        """Node of a plan that this carries out: `executor_for(node)` gives an equal value back."""
        ...

    def slots(self, shape: tuple[int, ...], comm: Comm) -> StateSpec:
        """Return the state tensors that a parameter of this shape needs; comm is who will exchange it."""
        ...

    def prepare(self, bucket: Bucket, comm: Comm) -> Any:
        """Return the workspace for one bucket: buffers are made here and not while training."""
        ...

    def on_ready(self, bucket: Bucket, state: State, comm: Comm, context: StepContext) -> Deferred | None:
        """Replace the complete local gradients in bucket.flat by what the optimizer shall use.

        Runs in the engine's communication comm thread, beside the rest of backward. bucket.flat is float32 if the node
        works in it, otherwise of the model's dtype; it is not the algorithm's any
        more when this returns. Where a rank's gradients hold a NaN or an Inf, so must every rank's result.
        """
        ...


@runtime_checkable
class ExchangesWeights(Protocol):
    """An algorithm that exchanges weights between steps. Its `on_ready` leaves gradients with their rank."""

    def reset_reference(self, bucket: Bucket, state: State) -> None:
        """Begin from the weights in bucket.flat, which are equal on all ranks. No communication."""
        ...

    def exchange_weights(self, bucket: Bucket, state: State, comm: Comm, context: StepContext) -> Deferred | None:
        """Replace the weights in bucket.flat, float32, by those to go on from.

        Runs in the comm thread. Where the node has a delay or a free pace, what has happened to the weights meanwhile
        is added to the result.
        """
        ...


@runtime_checkable
class AcceptsPrescaled(Protocol):
    """An algorithm that can begin with gradients that were divided by the number of ranks already.

    The engine divides in the pass that looks for NaN, which saves one. Where a rank's shares are all NaN, so is every
    element of the result.
    """

    def on_prescaled(self, bucket: Bucket, state: State, comm: Comm, context: StepContext) -> None:
        """Do what `on_ready` does, except for the division."""
        ...


@runtime_checkable
class ChecksOptimizer(Protocol):
    """An algorithm that depends on what the optimizer does."""

    def check_optimizer(self, optimizer: Optimizer) -> None:
        """Raise ValueError, naming both sides, for an optimizer that does not fit."""
        ...


@runtime_checkable
class InitializesFromOptimizer(Protocol):
    """An algorithm whose state continues what the optimizer has gathered."""

    def start_from(self, optimizer: Optimizer, parameter: Tensor, slots: Mapping[str, Tensor]) -> None:
        """Fill a parameter's slots from the optimizer's state; called when a run begins or switches to it."""
        ...


@runtime_checkable
class UsesCurvature(Protocol):
    """An algorithm that wants to know how the loss curves along its blocks.

    Its slots hold ``CURVATURE: (len(blocks(shape)),)`` for each parameter that has blocks. There the engine writes, now
    and then and between steps, the mean of the positive part of the Hessian's diagonal over each block, in units of
    the mean loss over squared weight: averaged over ranks and refreshes, shrunk and clipped as the settings say, the
    same on all ranks. All zero, as slots begin, means that nobody has looked yet.
    """

    @property
    def curvature(self) -> CurvatureSpec | None:
        """Settings of the look; None for no look at all, and then there is no such slot."""
        ...

    def blocks(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the elements of each contiguous block of a parameter of this shape; none if it is not looked at."""
        ...


@runtime_checkable
class UsesCurvatureUnder(Protocol):
    """An algorithm of which it depends on the optimizer whether it wants to know the curvature."""

    def uses_curvature_under(self, optimizer: Optimizer) -> bool:
        """Say whether the curvature counts; if not, nobody looks, and its slots stay zero."""
        ...


def start_innermost(algorithm: Algorithm, optimizer: Optimizer, parameter: Tensor, slots: Mapping[str, Tensor]) -> None:
    """Let what exchanges inside combinators begin from the optimizer's state, if it does and has slots on this rank."""
    while (inner := getattr(algorithm, "inner", None)) is not None:
        prefix: str = getattr(algorithm, "prefix", "")
        slots = {name.removeprefix(prefix): slot for name, slot in slots.items() if name.startswith(prefix)}
        algorithm = inner
    if isinstance(algorithm, InitializesFromOptimizer) and slots:
        algorithm.start_from(optimizer, parameter, slots)


def prefix_slots(prefix: str, slots: StateSpec) -> StateSpec:
    """Return the slots of a combinator's member under names of their own."""
    return {f"{prefix}{name}": shape for name, shape in slots.items()}


def innermost(algorithm: Algorithm) -> Algorithm:
    """Return what exchanges: the innermost of combinators that hold one algorithm, or the algorithm itself."""
    while (inner := getattr(algorithm, "inner", None)) is not None:
        algorithm = inner
    return algorithm
