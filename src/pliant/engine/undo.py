"""A skipped step leaves no trace: what the plan kept before an exchange that was not finite comes back."""

from torch import Tensor

from pliant.algorithms.base import State
from pliant.spec import Choice

__all__ = ["Undo"]


class Undo:
    """A copy of what one part of a bucket keeps, as it was when the step began.

    Gradients that come late are not in it: they belong to the step that uses them. Nor are those that are gathered,
    which their algorithm keeps until an exchange has gone well. Memory: as much as the state.
    """

    def __init__(self, choice: Choice, state: State) -> None:
        flat = [tensor for slot, tensor in state.flat.items() if slot.rpartition("/")[2] != "pending"]
        live = [] if choice.delay_steps else [*flat, *(tensor for of in state.of.values() for tensor in of.values())]
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
                if copy is not None:
                    tensor.copy_(copy)
        self._step = -1
