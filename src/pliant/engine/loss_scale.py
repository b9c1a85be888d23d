"""Loss scale of a GradScaler: kept gradients are in its unit, and follow when it changes."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from pliant.comm.torch_private import has_ended_step, scaler_at_work, steps_since_update
from pliant.engine.algorithm_state import AlgorithmState
from pliant.spec import DecoupledMomentum, Exchange, Sharded

__all__ = ["LossScale"]


class LossScale:
    """Knows the scale of gradients, since a GradScaler calls the optimizer's step.

    A scaler is found in the first step that it makes; until then nothing is kept: steps before it were skipped, and a
    skipped step leaves no trace in the state (`Undo`). All ranks change the scale alike, because all see the same
    overflow.
    """

    def __init__(self) -> None:
        self._scaler: torch.amp.GradScaler | None = None
        self._unit = 1.0
        """Scale of the kept gradients."""
        self._num_skipped = 0
        """Steps that the scaler has skipped on this rank and that were not counted yet."""
        self.is_sought = True
        """Whether no step was made yet, so that it is not known if there is a scaler."""
        self._early = 0
        """Steps skipped before the scaler was found, as far as they were noticed."""
        self._left_out: dict[int, Tensor] = {}
        """Id of a fused optimizer -> whether it has left out the update of its last step."""
        self._steps: Mapping[int, Any] = {}
        """Notes of the scaler on steps, from one of its updates to the next."""
        self._noticed: set[int] = set()
        """Ids of optimizers whose step in these notes is known here."""
        self._loaded = False
        """Whether gradients of a saved run are kept in that scale, and its scaler has not been found yet."""

    def notice(self, store: AlgorithmState, passes: int) -> None:
        """Find the scaler that calls the optimizer; to be called in its step.

        Args:
            store: State of the algorithms.
            passes: Backward passes that the run has seen.

        Raises:
            ValueError: An algorithm hands over signs, which a scaler would divide by its scale; or loaded gradients are
                in another scale than those to which they were added.

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
        # Residuals of shards are not in the store.
        of_shards = any(isinstance(node, Sharded) and node.keeps_gradients for node in store.nodes.values())
        if self._loaded and (store.keeps_gradients or of_shards) and self._unit != scaler.get_scale():
            raise ValueError(
                f"what the loaded state still owes is in a loss scale of {self._unit:g}, but the GradScaler's is "
                f"{scaler.get_scale():g}: its own state was not loaded, or steps were skipped before it was found; "
                "load both, and tell the run of it: run.load_state_dict(state, scaler=scaler). No weight was changed."
            )
        if self._scaler is None and scaler.is_enabled():  # whose first steps may have been skipped
            first = self._unit if self._loaded else scaler._init_scale  # pyright: ignore[reportPrivateUsage]
            total = _skips(first, scaler.get_scale(), scaler)
            self._num_skipped += max(0, min(passes - 1, total) - self._early)
        self._scaler, self._unit, self._loaded = scaler, float(scaler.get_scale()), False

    def watch(self, optimizer: Optimizer) -> None:
        """Note that an optimizer steps; to be called in its step.

        A fused one is called where gradients overflow too, and leaves out its update: such a step is counted already.
        """
        self._noticed.add(id(optimizer))
        if (overflows := getattr(optimizer, "found_inf", None)) is not None:
            self._left_out[id(optimizer)] = overflows

    def pop_skipped(self, optimizers: Sequence[Optimizer]) -> list[Optimizer]:
        """Return, once, of which optimizers the scaler has skipped a step; after `notice`, and before each pass.

        A scaler forgets its notes in its update, but not those that are held here. Of steps between two updates that
        were all skipped, with no pass noticed before them, nothing is known.
        """
        if self._scaler is None or not self._scaler.is_enabled():
            return []
        skipped: list[Optimizer] = []
        for steps in (self._steps, steps_since_update(self._scaler)):
            if steps is not self._steps:
                self._steps, self._noticed = steps, set()
            found = [o for o in optimizers if id(o) not in self._noticed and has_ended_step(steps, o)]
            self._noticed.update(map(id, found))
            skipped += found
        return skipped

    def skip(self) -> None:
        """Note a step that was skipped before the first one was made."""
        self._num_skipped += 1
        self._early += 1

    def take_skips(self, *, in_part: bool) -> int:
        """Return, once, how many steps were skipped and are not counted yet.

        Args:
            in_part: Whether only some optimizers have made the last step, which then is not counted yet either.

        """
        skipped, self._num_skipped = self._num_skipped, 0
        if not skipped:
            return 0
        left_out = any(map(bool, self._left_out.values()))
        self._left_out.clear()
        return skipped - 1 if left_out and not in_part else skipped

    @property
    def unit(self) -> float:
        """Scale of the kept gradients, to be saved with them; 0 if no scaler was found."""
        return self._unit if self._scaler is not None or self._loaded else 0.0

    def load(self, unit: float, scaler: torch.amp.GradScaler | None) -> None:
        """Set the scale of the kept gradients to a saved one.

        Args:
            unit: Saved scale; 0 if there was none.
            scaler: GradScaler that will make steps, if the caller knows it.

        """
        self._scaler = scaler or self._scaler
        if unit:
            self._unit, self._loaded = unit, self._scaler is None
        elif self._scaler is not None:
            self._unit = float(self._scaler.get_scale())

    def change(self) -> float:
        """Return the factor for all kept gradients; to be called before a backward pass is exchanged."""
        before = self._unit
        if self._scaler is not None:
            self._unit = float(self._scaler.get_scale())
            self._num_skipped += _skips(before, self._unit, self._scaler)
        return self._unit / before


def _skips(before: float, now: float, scaler: torch.amp.GradScaler) -> int:
    """Return how often a scale was lowered, which it is for each skipped step."""
    return round(math.log(now / before) / math.log(scaler.get_backoff_factor())) if 0 < now < before else 0


def _hands_over_signs(node: Exchange) -> bool:
    return any(isinstance(inner, DecoupledMomentum) and inner.signed for inner in node.walk())
