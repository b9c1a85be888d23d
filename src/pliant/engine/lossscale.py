"""The loss scale of a GradScaler: what a plan keeps of gradients is in its unit, and follows when it changes."""

import sys
from types import FrameType

import torch

from pliant.engine.store import Store

__all__ = ["LossScale"]


class LossScale:
    """Knows the scale in which gradients come, since a GradScaler calls the optimizer's step.

    A scaler is found in the first step that it makes; until then nothing is kept: steps before it were skipped, and a
    skipped step leaves no trace in the state (`Undo`).

    Note: all ranks change the scale alike, because all see the same overflow.
    """

    def __init__(self) -> None:
        self._scaler: torch.amp.GradScaler | None = None
        self._unit = 1.0
        """The scale of what is kept."""

    def notice(self, store: Store) -> None:
        """Look who calls the optimizer; to be called in its step.

        Raises:
            ValueError: An algorithm hands over signs, which a scaler would divide by its scale.

        """
        scaler = _scaler_at_work()
        if scaler is None or scaler is self._scaler:
            return
        signed = next((name for name, choice in store.choices.items() if choice.signed), None)
        if signed is not None and scaler.is_enabled():
            raise ValueError(
                f"a GradScaler makes this step, and divides gradients by its scale of {scaler.get_scale():g}, but what "
                f"{signed!r} gets are signs ({store.choices[signed]}); use demo(signed=False), or bfloat16 without a "
                "scaler."
            )
        self._scaler = scaler
        self.begin_anew()

    def begin_anew(self) -> None:
        """Take what is kept to be in the scale of now: it was just loaded, as the scaler's own state was."""
        if self._scaler is not None:
            self._unit = float(self._scaler.get_scale())

    def change(self) -> float:
        """Return what to multiply by whatever is kept; to be called before a backward pass is exchanged."""
        before = self._unit
        self.begin_anew()
        return self._unit / before


def _scaler_at_work() -> torch.amp.GradScaler | None:
    """Return the GradScaler whose step() has called this, or None; enabled or not.

    A scaler tells an optimizer nothing, but it is among the callers of the optimizer's hooks.
    """
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        if frame.f_code is torch.amp.GradScaler.step.__code__:
            return frame.f_locals["self"]
        frame = frame.f_back
    return None
