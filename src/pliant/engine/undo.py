"""State before a step, put back when the exchange was not finite and a GradScaler skips the step."""

from torch import Tensor

from pliant.algorithms.base import State
from pliant.codecs import all_finite, finite_flag, keep_unless
from pliant.spec import Exchange

__all__ = ["Undo"]


class Undo:
    """A copy of the state of one part of a bucket, from before the step.

    Late gradients are not copied: they belong to the step that uses them. Nor are pending ones that were not finite
    before: they end with the exchange that finds them. Memory: as much as the state.
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

    def restore(self, spoiled: bool | Tensor) -> None:
        """Put back what was copied in this step, if anything was and the step is spoiled: known, or a flag () there."""
        if isinstance(spoiled, Tensor):
            self._restore_if(spoiled)
            return
        if self._step >= 0:
            for tensor, copy in self._kept:
                if copy is not None and (id(tensor) not in self._gathered or all_finite(copy)):
                    tensor.copy_(copy)
        self._step = -1

    def _restore_if(self, spoiled: Tensor) -> None:
        """Put it back where the device finds that it must be; nobody waits to know."""
        for tensor, copy in self._kept if self._step >= 0 else ():
            if copy is not None:
                gathered = id(tensor) in self._gathered
                keep_unless(spoiled & finite_flag(copy) if gathered else spoiled, tensor, copy)


def _is_delayed(node: Exchange) -> bool:
    return node.timing.delay_steps > 0 or node.early_timing.delay_steps > 0
