"""Protocols of algorithms: frozen values with explicit state, whose methods the engine calls."""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from torch import Tensor
from torch.optim import Optimizer

from pliant.buckets import Bucket
from pliant.collectives.pair_average import PairRule
from pliant.comm.base import Comm
from pliant.spec import CurvatureSpec, Exchange

__all__ = [
    "CURVATURE",
    "AcceptsPrescaled",
    "Algorithm",
    "AveragesPairs",
    "ChecksOptimizer",
    "Deferred",
    "ExchangesWeights",
    "InitializesFromOptimizer",
    "RatioSetting",
    "State",
    "StateSpec",
    "StepContext",
    "UsesCurvature",
    "UsesCurvatureUnder",
    "WorksInStages",
    "innermost",
    "prefix_slots",
    "start_innermost",
]

StateSpec = Mapping[str, tuple[int, ...] | None]
"""Names of state tensors: with their shape, or None for one float32 per element of the parameter."""

CURVATURE = "curvature"
"""Slot into which the engine writes the curvature of a `UsesCurvature`."""

Deferred = Callable[[], None]
"""Work that is left when a result is handed over.

Note [deferred work]: `on_ready` and `exchange_weights` may return it, as `DelayedExecutor` returns the exchange of a
late gradient. The communication thread that runs them keeps it in the place of its task. The last task of the pass runs
all of it, in the order in which exchanges were submitted, after every bucket was handed over. So it is finished before
the same bucket's next exchange begins, and only a drain waits for it. A pass that is broken off drops its list.
"""


@dataclass(frozen=True, kw_only=True)
class State:
    """State of one bucket on one rank. The engine owns the tensors and saves them per parameter."""

    flat: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    """Slot -> float32 (bucket.numel,), in the bucket's order, zero at first."""
    of: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict[str, Mapping[str, Tensor]])
    """Slot -> parameter -> float32 tensor of the slot's own shape, zero at first."""
    workspace: Any = None
    """Result of `prepare`: buffers and collectives, made once for each layout of buckets, never saved."""

    def part(self, prefix: str, workspace: Any) -> "State":
        """Return the state of one member of a combinator, whose slots carry a prefix such as ``first/``."""
        return State(
            flat={k.removeprefix(prefix): v for k, v in self.flat.items() if k.startswith(prefix)},
            of={k.removeprefix(prefix): v for k, v in self.of.items() if k.startswith(prefix)},
            workspace=workspace,
        )


@dataclass(kw_only=True)
class RatioSetting:
    """Ratio shared by the ratio controller and algorithms with a target; used in the communication thread only."""

    ratio: float = 0.0
    """Share of the elements to send, the same on all ranks; 0 for the plan's own."""
    reuse: int = 1
    """Factor of the number of steps for which one selection is used."""
    used: float = 0.0
    """Ratio of the last exchange."""
    left: Tensor | None = None
    """Squared norm of the elements that were not sent, summed over exchanges, (); None before the first."""
    whole: Tensor | None = None
    """Squared norm of all elements, summed likewise."""

    def report(self, ratio: float, left: Tensor, whole: Tensor) -> None:
        """Report an exchange; called by algorithms."""
        self.used = ratio
        self.left = left if self.left is None else self.left + left
        self.whole = whole if self.whole is None else self.whole + whole

    def pop_dropped_share(self) -> float:
        """Return the share of the squared norm that was not sent since the last call; 0 if nothing was exchanged."""
        left, whole, self.left, self.whole = self.left, self.whole, None, None
        if left is None or whole is None or not 0 < float(whole) < float("inf"):
            return 0.0
        return float(left) / float(whole)


@dataclass(frozen=True, kw_only=True)
class StepContext:
    """Step, seed and learning rate of one exchange."""

    step: int
    """Optimizer steps completed before this one."""
    seed: int
    """Equal on all ranks, different for each exchange of each bucket."""
    round: int = 0
    """Exchanges of the same weights before this one."""
    lr: float = 0.0
    """Largest learning rate of the optimizer's groups, the same on all ranks; 0 where weights are exchanged."""
    loss_scale: float = 1.0
    """Factor of all gradients that a GradScaler gives; what has another unit than theirs must know it."""
    ratio_setting: RatioSetting | None = None
    """Ratio setting of the controller, if the node has a target."""
    share: float = 1.0
    """This rank's share of all ranks' work since the last exchange of weights, times the number of ranks."""
    is_due: bool = True
    """Whether a period has ended; a round that only waits for ranks to come makes no step of a momentum."""

    def ratio(self, own: float, ramp_steps: int) -> float:
        """Return the ratio of this exchange: the controller's, once a ramp is over, or else the algorithm's own."""
        set_by = self.ratio_setting.ratio if self.ratio_setting is not None and self.step >= ramp_steps else 0.0
        return set_by or own


class Algorithm(Protocol):
    """Protocol of an algorithm, which carries out a node of a plan."""

    @property
    def node(self) -> Exchange:
        """Node of a plan that this carries out: `executor_for(node)` gives an equal value back."""
        ...

    def slots(self, shape: tuple[int, ...], comm: Comm) -> StateSpec:
        """Return the state tensors of a parameter of this shape; `comm` is the one that will exchange it."""
        ...

    def prepare(self, bucket: Bucket, comm: Comm) -> Any:
        """Return the workspace for one bucket: buffers are allocated here and not while training."""
        ...

    def on_ready(self, bucket: Bucket, state: State, comm: Comm, context: StepContext) -> Deferred | None:
        """Replace the complete local gradients in bucket.flat by those for the optimizer.

        Runs in the communication thread, beside the rest of backward. bucket.flat is float32 if the node works in it,
        otherwise of the model's dtype (Note [who owns a bucket's buffer]). Where a rank's gradients hold a NaN or an
        Inf, so must every rank's result.
        """
        ...


@runtime_checkable
class ExchangesWeights(Protocol):
    """Protocol of algorithms that exchange weights between steps. Their `on_ready` leaves gradients with their rank."""

    def reset_reference(self, bucket: Bucket, state: State) -> None:
        """Begin from the weights in bucket.flat, which are equal on all ranks. No communication."""
        ...

    def exchange_weights(self, bucket: Bucket, state: State, comm: Comm, context: StepContext) -> Deferred | None:
        """Replace the weights in bucket.flat, float32, by the new ones.

        Runs in the communication thread. Where the node has a delay or a free pace, the engine adds what has happened
        to the weights meanwhile to the result.
        """
        ...


@runtime_checkable
class AveragesPairs(Protocol):
    """Protocol of algorithms that exchange weights in pairs at a free pace."""

    def pair_rule(self, numel: int, state: State) -> PairRule:
        """Return the rule by which two ranks average a bucket of so many elements, float32, whose state this is."""
        ...


@runtime_checkable
class AcceptsPrescaled(Protocol):
    """Protocol of algorithms that accept gradients already divided by the number of ranks.

    The engine divides in the pass that looks for NaN, which saves one. Where a rank's gradients are all NaN, so is
    every element of the result.
    """

    def on_prescaled(self, bucket: Bucket, state: State, comm: Comm, context: StepContext) -> None:
        """Do what `on_ready` does, except for the division."""
        ...


@runtime_checkable
class WorksInStages(Protocol):
    """Protocol of algorithms whose exchange of gradients comes in stages that overlap with those of other buckets."""

    def stages(
        self, bucket: Bucket, state: State, comm: Comm, context: StepContext, *, prescaled: bool = False
    ) -> Generator[None]:
        """Do what `on_ready` does, or `on_prescaled`, and yield where another bucket's stage may go before the rest.

        There are three stages at most. They may run in threads of their own, each in the same order of buckets on all
        ranks: the first uses the comm, the second sends under tag 1 only, the third waits and no more.
        """
        ...


@runtime_checkable
class ChecksOptimizer(Protocol):
    """Protocol of algorithms that depend on the optimizer's settings."""

    def check_optimizer(self, optimizer: Optimizer) -> None:
        """Raise ValueError, naming both sides, for an optimizer that does not fit."""
        ...


@runtime_checkable
class InitializesFromOptimizer(Protocol):
    """Protocol of algorithms whose state starts from the optimizer's."""

    def start_from(self, optimizer: Optimizer, parameter: Tensor, slots: Mapping[str, Tensor]) -> None:
        """Fill a parameter's slots from the optimizer's state; called when a run begins or switches to it."""
        ...


@runtime_checkable
class UsesCurvature(Protocol):
    """Protocol of algorithms that need the curvature of their blocks.

    Its slots hold ``CURVATURE: (len(blocks(shape)),)`` for each parameter that has blocks. There the engine writes,
    between steps, the mean of the positive part of the Hessian's diagonal over each block, in units of the mean loss
    over squared weight. It is averaged over ranks and estimates, shrunk and clipped as the settings say, and the same
    on all ranks. All zero, as slots begin, means that there is no estimate yet.
    """

    @property
    def curvature(self) -> CurvatureSpec | None:
        """Settings of the estimate; None for no estimate, and then there is no such slot."""
        ...

    def blocks(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the elements of each contiguous block of a parameter of this shape; none if it needs no estimate."""
        ...


@runtime_checkable
class UsesCurvatureUnder(Protocol):
    """Protocol of algorithms for which the optimizer decides whether curvature is needed."""

    def uses_curvature_under(self, optimizer: Optimizer) -> bool:
        """Say whether the curvature counts; if not, it is not estimated, and its slots stay zero."""
        ...


def start_innermost(algorithm: Algorithm, optimizer: Optimizer, parameter: Tensor, slots: Mapping[str, Tensor]) -> None:
    """Start the state of the innermost algorithm from the optimizer's, if it does so and has slots on this rank."""
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
    """Return the innermost algorithm of combinators that hold one, or the algorithm itself."""
    while (inner := getattr(algorithm, "inner", None)) is not None:
        algorithm = inner
    return algorithm
