"""Check that an optimizer which takes momenta, once its warm-up is over, gets no gradients."""

from collections.abc import Mapping

from torch.optim import Optimizer

from pliant.algorithms.executors.compressed_momentum import OneBitAdam
from pliant.engine.algorithm_state import AlgorithmState
from pliant.engine.parts import Part
from pliant.spec import CompressedMomentum, Exchange

__all__ = ["MomentumCheck", "momentum_checks"]


class MomentumCheck(Part):
    """Refusal of steps in which an optimizer would take gradients for momenta.

    Args:
        wrong: Optimizer -> parameter of its, and a node under which gradients come to it.

    """

    def __init__(self, wrong: Mapping[OneBitAdam, tuple[str, Exchange]]) -> None:
        self._wrong = wrong

    def before_step(self, optimizer: Optimizer, step: int) -> None:
        """Raise ValueError once the optimizer's warm-up is over, in which it is an Adam for any plan."""
        if isinstance(optimizer, OneBitAdam) and optimizer in self._wrong and step >= optimizer.warmup_steps:
            name, node = self._wrong[optimizer]
            raise ValueError(
                f"after its {optimizer.warmup_steps} warm-up steps OneBitAdam takes what comes for a momentum, but "
                f"under this plan {name} gets gradients ({node}); call run.switch(optimizer.algorithm), or step with "
                "AdamW."
            )


def momentum_checks(store: AlgorithmState, steppers: Mapping[int, Optimizer]) -> tuple[MomentumCheck, ...]:
    """Return the check of a plan, if some optimizer needs it.

    Args:
        store: Nodes of all parameters.
        steppers: Parameter's id -> the optimizer that steps it.

    """
    wrong: dict[OneBitAdam, tuple[str, Exchange]] = {}
    for name, node in store.nodes.items():
        optimizer = steppers.get(id(store.parameters[name]))
        if isinstance(optimizer, OneBitAdam) and not isinstance(node.core, CompressedMomentum):
            wrong.setdefault(optimizer, (name, node))
    return (MomentumCheck(wrong),) if wrong else ()
