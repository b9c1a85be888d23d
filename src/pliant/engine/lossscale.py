"""The loss scale of a GradScaler: what a plan keeps of gradients is in its unit, and follows when it changes."""

import torch

from pliant.comm.torch_private import scaler_at_work
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
        self._loaded = False
        """Whether something is kept in that scale, of a run that was saved, and its scaler has not been found yet."""

    def notice(self, store: Store) -> None:
        """Look who calls the optimizer; to be called in its step.

        Raises:
            ValueError: An algorithm hands over signs, which a scaler would divide by its scale; or what was loaded is
                in another scale than the gradients to which it was added.

        """
        scaler = scaler_at_work()
        if scaler is None or scaler is self._scaler:
            return
        signed = next((name for name, choice in store.choices.items() if choice.signed), None)
        if signed is not None and scaler.is_enabled():
            raise ValueError(
                f"a GradScaler makes this step, and divides gradients by its scale of {scaler.get_scale():g}, but what "
                f"{signed!r} gets are signs ({store.choices[signed]}); use demo(signed=False), or bfloat16 without a "
                "scaler."
            )
        if self._loaded and store.keeps_gradients and self._unit != scaler.get_scale():
            raise ValueError(
                f"what the loaded state still owes is in a loss scale of {self._unit:g}, but the GradScaler's is "
                f"{scaler.get_scale():g}: its own state was not loaded, or steps were skipped before it was found; "
                "load both, and tell the run of it: run.load_state_dict(state, scaler=scaler). No weight was changed."
            )
        self._scaler, self._unit, self._loaded = scaler, float(scaler.get_scale()), False

    @property
    def unit(self) -> float:
        """The scale of what is kept, to be saved with it; 0 if no scaler was found."""
        return self._unit if self._scaler is not None or self._loaded else 0.0

    def load(self, unit: float, scaler: torch.amp.GradScaler | None) -> None:
        """Take what is kept to be in a scale that was saved with it.

        Args:
            unit: 0 if none was.
            scaler: Who makes steps, if the caller knows.

        """
        self._scaler = scaler or self._scaler
        if unit:
            self._unit, self._loaded = unit, self._scaler is None
        elif self._scaler is not None:
            self._unit = float(self._scaler.get_scale())

    def change(self) -> float:
        """Return what to multiply by whatever is kept; to be called before a backward pass is exchanged."""
        before = self._unit
        if self._scaler is not None:
            self._unit = float(self._scaler.get_scale())
        return self._unit / before
