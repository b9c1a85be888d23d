"""Buckets of weights: their content, when they are due, and where results go."""

import math
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import torch
from torch import Tensor
from torch.optim import Optimizer

from pliant.accelerator import finish_copies, is_accelerator, pinned
from pliant.algorithms.base import ExchangesWeights, State
from pliant.buckets import Bucket, as_real, real_shape, spans_of
from pliant.codecs import first_nonfinite, nonfinite_place
from pliant.comm.base import Comm
from pliant.engine.algorithm_state import CORRECTION, AlgorithmState
from pliant.engine.comm_thread import TaskHandle
from pliant.engine.comms import Comms
from pliant.engine.gradient_exchange import NonFiniteGradientError
from pliant.engine.outer_settings import describe_outer
from pliant.engine.parts import Part
from pliant.layouts.division import weight_buckets
from pliant.spec import Exchange, LocalSteps, Timing

__all__ = [
    "AmongAll",
    "BetweenSteps",
    "WeightPart",
    "change_norm",
    "first_bad",
    "largest_lr",
    "require_finite",
    "split_weights",
]


@dataclass(kw_only=True)
class WeightPart:
    """A bucket of weights with the same node (Note [who owns a bucket's buffer])."""

    node: Exchange
    timing: Timing
    """Cached timing of the node, which builds it on every access."""
    algorithm: ExchangesWeights
    bucket: Bucket
    views: list[Tensor]
    """View of each parameter in bucket.flat, in its own shape."""
    comm: Comm
    state: State
    offset: int
    """Steps by which its period begins before the plan's, at most 0, so that fragments are spread over a period."""
    last: int
    """Step of the last exchange."""
    round: int = 0
    """Exchanges so far."""
    work: float = 0.0
    """Work of this rank at the last exchange."""
    distance: float = 0.0
    """Euclidean norm of the last exchange's change."""
    changed: list[Tensor] = field(default_factory=list[Tensor])
    """The same per parameter, for an exchange whose result replaces the weights."""
    handle: TaskHandle | None = None
    """Handle of an exchange whose result was not stored yet."""

    @property
    def late(self) -> bool:
        """Whether steps are made between an exchange and the use of its result."""
        return self.timing.delay_steps > 0 or self.timing.pace == "free"

    @property
    def acts_alone(self) -> bool:
        """Whether an exchange changes something even with a single rank, as an outer optimizer does."""
        core = self.node.core
        return isinstance(core, LocalSteps) and not core.outer.takes_mean

    def due(self, step: int, lr: float) -> bool:
        """Say whether weights are exchanged after this many steps, or set out from anew without an exchange."""
        if step == self.timing.until_step:
            return True
        if step < self.timing.until_step and not self.timing.early_rounds:
            return False
        stretched = int((self.timing.stretch / lr) ** 2) if self.timing.stretch and lr > 0 else 0
        return step - self.last >= max(self.timing.period, stretched)

    def require_finite(self, step: int, flat: Tensor | None = None) -> None:
        """Raise NonFiniteGradientError if there is a NaN or Inf in the bucket, or in a copy of it, before it is sent.

        On an accelerator the thread that calls this waits for a copy of one number; the thread that trains goes on.
        """
        require_finite(self.bucket, "the weights of", self.comm.rank, step, flat)

    @torch.no_grad()
    def load(self) -> None:
        """Copy the weights into the bucket."""
        for view, weight in zip(self.views, self.bucket.weights, strict=True):
            view.copy_(as_real(weight))

    @torch.no_grad()
    def store(self) -> None:
        """Store the result: it replaces the weights, or, if it is late, its change is added to them."""
        if self.late:
            self.bucket.flat.copy_(self.state.flat[CORRECTION])
        self.changed.clear()
        for view, weight in zip(self.views, self.bucket.weights, strict=True):
            real = as_real(weight)
            if self.late:
                real.add_(view)
            else:
                self.changed.append(torch.linalg.vector_norm(real.sub_(view)))  # in place: it is replaced in any case
                real.copy_(view)


class BetweenSteps(Part):
    """Base of the parts of a run that exchange weights between steps.

    Args:
        parts: Buckets that it exchanges.

    """

    keeps_from_joining = "this plan exchanges weights between steps"
    makes_up_for_skips = True
    lets_ranks_differ = True

    def __init__(self, parts: Sequence[WeightPart]) -> None:
        self._parts = list(parts)

    def explain(self) -> str:
        """Say what outer optimizers are set to."""
        return describe_outer(part.node for part in self._parts)

    def reset_reference(self, which: Callable[[str], bool] = lambda _: True) -> None:
        """Begin from the weights, equal on all ranks, in every bucket with a parameter for which `which` is true."""
        for part in self._parts:
            if any(which(span.name) for span in part.bucket.spans):
                part.load()
                part.algorithm.reset_reference(part.bucket, part.state)

    @property
    def rounds(self) -> list[int]:
        """Exchanges so far of each bucket, as all ranks count them."""
        return [part.round for part in self._parts]

    @rounds.setter
    def rounds(self, counts: Sequence[int]) -> None:
        for part, count in zip(self._parts, counts, strict=True):
            part.round = count


class AmongAll(BetweenSteps):
    """Base of exchanges in which all ranks take part, with shares by the work that they report.

    Args:
        parts: Buckets that it exchanges.
        comms: Comms of weights alone, for nodes that need hosts and for those that do not.
        optimizer: Optimizer whose learning rate stretches periods.
        step: Steps made so far.

    """

    def __init__(self, parts: Sequence[WeightPart], comms: Comms, optimizer: Optimizer, step: int) -> None:
        super().__init__(parts)
        self._comms = comms
        self._optimizer = weakref.ref(optimizer)  # its hooks hold the run, which an exchange in flight must not
        self._device = parts[0].bucket.flat.device
        self._begun, self._counted = step, 0.0
        """Step at the begin, and work that the caller has reported since; if 0, steps count."""

    def report_work(self, work: float) -> None:
        """Add to the work that this rank has done since the start."""
        self._counted += work

    def _due(self, step: int) -> list[WeightPart]:
        """Return the buckets whose period is over behind a step."""
        optimizer = self._optimizer()
        lr = largest_lr(optimizer) if optimizer is not None else 0.0
        return [part for part in self._parts if part.due(step, lr)]


def split_weights(store: AlgorithmState, comms: Comms, step: int, nodes: Sequence[Exchange]) -> list[WeightPart]:
    """Group the parameters of these nodes by node and fragment, in buckets of limited size."""
    return [
        _split(f"weights {k}", fragment, names, store, comms, step)
        for k, (fragment, names) in enumerate(_buckets_of(store))
        if store.nodes[names[0]] in nodes
    ]


def _buckets_of(store: AlgorithmState) -> list[tuple[int, list[str]]]:
    buckets: list[tuple[int, list[str]]] = []
    for node in dict.fromkeys(node for node in store.nodes.values() if node.exchanges_weights):
        names = [name for name, own in store.nodes.items() if own == node]
        numels = [math.prod(real_shape(store.parameters[name])) for name in names]
        buckets += [(k, [names[i] for i in held]) for k, held in weight_buckets(numels, node.timing.fragments)]
    return buckets


def _split(
    name: str, fragment: int, names: Sequence[str], store: AlgorithmState, comms: Comms, step: int
) -> WeightPart:
    parameters = tuple(store.parameters[n] for n in names)
    spans = spans_of(names, [real_shape(p) for p in parameters])
    numel = sum(span.numel for span in spans)
    flat = torch.empty(numel, dtype=torch.float32, device=parameters[0].device)
    bucket = Bucket(name=name, spans=spans, weights=parameters, flat=flat)
    node = store.nodes[names[0]]
    algorithm, comm, timing = store.algorithms[node], comms.of(node), node.timing
    first_due = -(-timing.period * (fragment + 1) // timing.fragments)
    state = replace(store.state_of(bucket, between_steps=True), workspace=algorithm.prepare(bucket, comm))
    return WeightPart(
        node=node,
        timing=timing,
        algorithm=cast(ExchangesWeights, algorithm),
        bucket=bucket,
        views=[bucket.view(span) for span in spans],
        comm=comm,
        state=state,
        offset=first_due - timing.period,
        last=step + first_due - timing.period,
    )


def change_norm(parts: Sequence[WeightPart]) -> float:
    """Return the Euclidean norm of what the last exchanges have changed, in buckets whose corrections are posted."""
    norms = [torch.stack(part.changed).norm() for part in parts if part.changed]
    return float(torch.stack(norms).norm()) if norms else 0.0


def largest_lr(optimizer: Optimizer) -> float:
    """Return the largest learning rate of an optimizer's groups, by which periods are stretched."""
    return max(float(group["lr"]) for group in optimizer.param_groups)


def require_finite(bucket: Bucket, what: str, rank: int, step: int, flat: Tensor | None = None) -> None:
    """Raise NonFiniteGradientError if there is a NaN or Inf in a bucket of `what`, or in a copy of it."""
    if (bad := first_bad(bucket.flat if flat is None else flat)) >= 0:
        name = next(s.name for s in reversed(bucket.spans) if s.offset <= bad)
        raise NonFiniteGradientError(
            f"after step {step} rank {rank} has a NaN or Inf in {what} {name}, and has not sent it. Lower the learning "
            "rate or clip."
        )


def first_bad(flat: Tensor) -> int:
    """Return the index of the first NaN or Inf in a flat tensor, or -1; on an accelerator, wait for that number."""
    if not is_accelerator(flat.device):
        return first_nonfinite(flat)
    told = pinned((1,), torch.int64, flat.device)
    told.copy_(nonfinite_place(flat).view(1), non_blocking=True)
    finish_copies(flat.device)
    return int(told)
