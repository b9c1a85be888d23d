"""A skipped step leaves no trace: what the plan kept before an exchange that was not finite comes back."""

from torch import Tensor

from pliant.algorithms.base import State
from pliant.codecs import all_finite
from pliant.spec import Exchange

__all__ = ["Undo"]


class Undo:
    """A copy of what one part of a bucket keeps, as it was when the step began.

    Gradients that come late are not in it: they belong to the step that uses them. Nor are gathered ones that have not
    been finite before, and are gone with the exchange that has found them. Memory: as much as the state.
    """

    def __init__(self, node: Exchange, state: State) -> None:
        of = [tensor for of in state.of.values() for tensor in of.values()]
        live = [] if _is_delayed(node) else [*state.flat.values(), *of]
        self._gathered = {id(tensor) for slot, tensor in state.flat.items() if slot.rpartition("/")[2] == "pending"}
        self._kept: list[tuple[Tensor, Tensor | None]] = [(tensor, None) for tensor in live]
        self._step = -1

    def begin(self, step: int) -> None:
        """Copy, once for each step."""
        if step != self._step:
            self._kept = [(t, t.clone() if copy is None else copy.copy_(t)) for t, copy in self._kept]
            self._step = step

    def restore(self) -> None:
        """Put back what was copied in this step, if anything was."""
        if self._step >= 0:
            for tensor, copy in self._kept:
                if copy is not None and (id(tensor) not in self._gathered or all_finite(copy)):
                    tensor.copy_(copy)
        self._step = -1


def _is_delayed(node: Exchange) -> bool:
    return node.timing.delay_steps > 0 or node.early_timing.delay_steps > 0
