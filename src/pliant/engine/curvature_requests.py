"""Requests for the curvature and its samples: records between a plan and who looks."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from torch import Tensor
from torch.optim import Optimizer

from pliant.algorithms.base import CURVATURE, Algorithm, UsesCurvature, UsesCurvatureUnder, innermost
from pliant.algorithms.executors.timing import AfterExecutor
from pliant.curvature import LossName, find_logits
from pliant.engine.algorithm_state import AlgorithmState
from pliant.spec import CurvatureSpec

__all__ = ["Curvature", "CurvatureRequest", "CurvatureSample", "requests_in"]


@dataclass(frozen=True, kw_only=True)
class CurvatureSample:
    """Result of one look at the curvature, the same on all ranks."""

    step: int
    """Optimizer steps completed before it."""
    means: Mapping[str, float]
    """Parameter -> mean of the positive part of the Hessian's diagonal, over elements, ranks and earlier looks."""
    ranks: float
    """Spearman's correlation, over all blocks, of what algorithms read from now on with what they read before."""
    shift: float
    """Median over all blocks of the logarithm of what they read from now on over what they read before."""
    cost_s: float
    """Time that it took on the slowest rank."""
    next_steps: int
    """Steps until the next one."""


class Curvature:
    """Curvature of the loss that a run has sampled."""

    def __init__(self) -> None:
        self.history: list[CurvatureSample] = []
        """All looks, in order, under whichever plan."""
        self.seconds = 0.0
        """Time that they have taken on this rank, with their sums over ranks."""
        self.unsampled = ""
        """Why it is not felt, once that is known; empty on all ranks, or on none."""
        self.logits: Callable[[Any], Tensor] = find_logits
        self.loss: Callable[[Any], Tensor] | None = None
        self.loss_name: LossName | None = None

    @property
    def is_told(self) -> bool:
        """Whether the caller has said how to read the output."""
        return self.loss_name is not None or self.loss is not None or self.logits is not find_logits

    def reads(
        self,
        *,
        logits: Callable[[Any], Tensor] = find_logits,
        loss: Callable[[Any], Tensor] | LossName | None = None,
    ) -> None:
        """Say how the model's output is to be read; on all ranks, before the first step.

        Args:
            logits: From the output to logits, (..., classes), where they are not found by themselves; of other losses
                than a softmax's to what they are taken of.
            loss: Its name, where it is not recognized by its gradient: "cross_entropy" of a softmax,
                "binary_cross_entropy" of sigmoids, or "squared_error". Or a function from the output to the mean loss,
                or to losses of samples, for estimators that take one.

        Raises:
            ValueError: The loss is none of the names.

        """
        if loss is not None and not callable(loss) and loss not in get_args(LossName):
            raise ValueError(f"the loss is {loss!r}, but curvature knows {', '.join(get_args(LossName))}; name one.")
        self.logits, self.unsampled = logits, ""
        self.loss, self.loss_name = (loss, None) if loss is None or callable(loss) else (None, loss)


@dataclass(frozen=True, kw_only=True)
class CurvatureRequest:
    """Curvature that a plan's algorithms ask for."""

    spec: CurvatureSpec
    numels: Mapping[str, tuple[int, ...]]
    """Parameter -> elements of each of its blocks."""
    slots: Mapping[str, tuple[Tensor, ...]]
    """Parameter -> where to write, float32 (num_blocks,); nothing on ranks that do not exchange it themselves."""
    sent_numel: float
    """Elements of these parameters that exchanges send in a step, by the ratios of the plan."""


def requests_in(store: AlgorithmState, steppers: Mapping[int, Optimizer]) -> CurvatureRequest | None:
    """Return what the algorithms of a store ask for, or None.

    Args:
        store: Nodes and state of all parameters.
        steppers: Parameter's id -> the optimizer that holds it.

    Raises:
        ValueError: Two of them ask for different settings, or one has no common step at which to look.

    """
    numels: dict[str, tuple[int, ...]] = {}
    specs: dict[CurvatureSpec, str] = {}
    sent_numel = 0.0
    for name, parameter in store.parameters.items():
        node = store.nodes[name]
        for member in _curvature_users(store.algorithms[node]):
            blocks = member.blocks(tuple(parameter.shape))
            if member.curvature is None or not blocks:
                continue
            optimizer = steppers.get(id(parameter))
            if (
                optimizer is not None
                and isinstance(member, UsesCurvatureUnder)
                and not member.uses_curvature_under(optimizer)
            ):
                continue
            if parameter.is_complex():
                raise ValueError(
                    f"{name!r} is complex, and its algorithm asks for the curvature, which is felt along real numbers "
                    f"only: {node}; give complex parameters another rule, such as pliant.allreduce(), or power 0."
                )
            if node.timing.pace == "free":
                raise ValueError(
                    f"{name!r} is exchanged by an algorithm that asks for the curvature, which all ranks feel after "
                    f"the same step, but at a free pace, at which they have none in common: {node}; let it keep step."
                )
            if numels.setdefault(name, blocks) != blocks:
                raise ValueError(f"two algorithms of {name!r} ask for curvature over different blocks; give them one.")
            specs.setdefault(member.curvature, name)
            sent_numel += parameter.numel() * (1.0 if node.ratio is None else node.ratio) / node.timing.period
    if len(specs) > 1:
        (one, first), (other, second), *_ = specs.items()
        raise ValueError(
            f"{first!r} asks for the curvature as {one}, and {second!r} as {other}; it is felt once for all, so give "
            "all rules of the plan the same settings."
        )
    if not specs:
        return None
    slots = {
        name: tuple(t for slot, t in store.tensors[name].items() if slot.rpartition("/")[2] == CURVATURE)
        for name in numels
    }
    return CurvatureRequest(spec=next(iter(specs)), numels=numels, slots=slots, sent_numel=sent_numel)


def _curvature_users(algorithm: Algorithm) -> list[UsesCurvature]:
    """Return what feels in an algorithm: itself, or the members of a combinator."""
    own = innermost(algorithm)
    if isinstance(own, AfterExecutor):
        return _curvature_users(own.first) + _curvature_users(own.then)
    return [own] if isinstance(own, UsesCurvature) else []
