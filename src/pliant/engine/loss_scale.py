"""The loss scale of a GradScaler: what a plan keeps of gradients is in its unit, and follows when it changes."""

import math

import torch

from pliant.comm.torch_private import scaler_at_work
from pliant.engine.algorithm_state import AlgorithmState
from pliant.spec import DecoupledMomentum, Exchange

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
        self.num_skipped = 0
        """Steps that the scaler has skipped on this rank, and that nobody has asked for yet."""
        self.is_sought = True
        """Whether no step was made yet, so that nobody knows if there is a scaler."""
        self._early = 0
        """Steps that were skipped by then, as far as they have been noticed."""
        self._loaded = False
        """Whether something is kept in that scale, of a run that was saved, and its scaler has not been found yet."""

    def notice(self, store: AlgorithmState, passes: int) -> None:
        """Look who calls the optimizer; to be called in its step.

        Args:
            store: What is kept.
            passes: Backward passes that the run has seen.

        Raises:
            ValueError: An algorithm hands over signs, which a scaler would divide by its scale; or what was loaded is
                in another scale than the gradients to which it was added.

        """
        scaler, self.is_sought = scaler_at_work(), False
        if scaler is None or scaler is self._scaler:
            return
        signed = next((name for name, node in store.nodes.items() if _hands_over_signs(node)), None)
        if signed is not None and scaler.is_enabled():
            raise ValueError(
                f"a GradScaler makes this step, and divides gradients by its scale of {scaler.get_scale():g}, but what "
                f"{signed!r} gets are signs ({store.nodes[signed]}); use decoupled_momentum(signed=False), or "
                "bfloat16 without a scaler."
            )
        if self._loaded and store.keeps_gradients and self._unit != scaler.get_scale():
            raise ValueError(
                f"what the loaded state still owes is in a loss scale of {self._unit:g}, but the GradScaler's is "
                f"{scaler.get_scale():g}: its own state was not loaded, or steps were skipped before it was found; "
                "load both, and tell the run of it: run.load_state_dict(state, scaler=scaler). No weight was changed."
            )
        if self._scaler is None and scaler.is_enabled():  # whose first steps may have been skipped
            total = _skips(scaler._init_scale, scaler.get_scale(), scaler)  # pyright: ignore[reportPrivateUsage]
            self.num_skipped += max(0, min(passes - 1, total) - self._early)
        self._scaler, self._unit, self._loaded = scaler, float(scaler.get_scale()), False

    def skip(self) -> None:
        """Note a step that was skipped before the first one was made."""
        self.num_skipped += 1
        self._early += 1

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
            self.num_skipped += _skips(before, self._unit, self._scaler)
        return self._unit / before


def _skips(before: float, now: float, scaler: torch.amp.GradScaler) -> int:
    """Return how often a scale was lowered, as it is for each step that is skipped."""
    return round(math.log(now / before) / math.log(scaler.get_backoff_factor())) if 0 < now < before else 0


def _hands_over_signs(node: Exchange) -> bool:
    return any(isinstance(inner, DecoupledMomentum) and inner.signed for inner in node.walk())
