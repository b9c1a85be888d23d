"""Sentences about outer optimizers: what their settings ask of a run, and what they come to in it."""

import warnings
from collections.abc import Iterable, Sequence

from torch.optim import Optimizer

from pliant.engine.joint_optimizer import optimizer_name
from pliant.spec import Exchange, LocalSteps

__all__ = ["describe_outer", "require_inner_optimizers", "warn_of_few_rounds"]

_LONG_MOMENTUM = 0.9
_FEW_ROUNDS = 50
"""Rounds below which such a momentum mostly remembers the beginning of the training."""


def require_inner_optimizers(nodes: Iterable[Exchange], optimizers: Sequence[Optimizer]) -> None:
    """Raise ValueError unless the optimizer that outer settings are for is among those of the run."""
    wanted = {node.inner_optimizer for node in _local_steps(nodes)} - {"any"}
    for name in sorted(wanted):
        if not any(_is_a(name.lower(), optimizer) for optimizer in optimizers):
            there = " and ".join(sorted({optimizer_name(each) for each in optimizers}))
            raise ValueError(
                f"the plan's outer optimizer has settings for {name} inside, but this run steps with {there}; give "
                f"relax() [{name}(matrices), AdamW(all others)], or choose diloco, whose settings are for any."
            )


def _is_a(name: str, optimizer: Optimizer) -> bool:
    """Say whether a name is in that of a class of the optimizer's, or is the algorithm of one of its groups."""
    kinds = (kind.__name__.lower() for kind in type(optimizer).__mro__)
    groups = (str(group.get("algorithm", "")).lower() for group in optimizer.param_groups)
    return any(name in kind for kind in kinds) or name in groups


def warn_of_few_rounds(nodes: Iterable[Exchange]) -> None:
    """Warn of each long outer momentum that makes few steps in a training of known length."""
    for node in _local_steps(nodes):
        outer, num_rounds = node.outer, node.outer.num_rounds(node.period)
        if outer.momentum >= _LONG_MOMENTUM and 0 < num_rounds < _FEW_ROUNDS:
            warnings.warn(
                f"an outer momentum of {outer.momentum:g} makes {num_rounds:.0f} steps in the {outer.total_steps:,} of "
                f"this training, and needs {_FEW_ROUNDS} or more to pay; leave outer_momentum out, so that it follows "
                "from total_steps, or shorten the period.",
                stacklevel=2,
            )


def describe_outer(nodes: Iterable[Exchange]) -> str:
    """Return what outer optimizers are set to, and how many rounds they have; "" if there is none."""
    return " ".join(dict.fromkeys(_sentence(node) for node in _local_steps(nodes) if not node.outer.takes_mean))


def _sentence(node: LocalSteps) -> str:
    outer, settings = node.outer, list[str]()
    for name, first, points in (
        ("lr", outer.lr, outer.lr_points),
        ("momentum", outer.momentum, outer.momentum_points),
    ):
        later = "".join(f", {value:g} at step {share * outer.total_steps:.0f}" for share, value in points)
        settings.append(f"{name} {first:g}{later}")
    rounds = f"every {node.period} steps" if outer.every == 1 else f"every {outer.every} rounds of {node.period} steps"
    length = f", {outer.num_rounds(node.period):.0f} times in {outer.total_steps:,} steps" if outer.total_steps else ""
    plain = "" if outer.nesterov else "; the momentum does not look ahead"
    own = " Each rank has one of its own, and averages with neighbours alone." if node.differs_by_rank else ""
    return f"The outer optimizer steps {rounds}{length}, with {'; '.join(settings)}{plain}.{own}"


def _local_steps(nodes: Iterable[Exchange]) -> list[LocalSteps]:
    inside = (each for node in dict.fromkeys(nodes) for each in node.walk())
    return list(dict.fromkeys(each for each in inside if isinstance(each, LocalSteps)))
