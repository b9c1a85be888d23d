"""Rows in Weights & Biases, online or offline."""

from collections.abc import Mapping
from typing import Any

from pliant.metrics.base import require

__all__ = ["WandB"]


class WandB:
    """Values ``pliant/step_s`` and so on in a run of W&B, over the axis ``pliant/step``.

    They have an axis of their own, since W&B's steps only go up, and the training loop logs there too. A row stands at
    the step at which W&B is, or at the next if that has one: so a loop that counts its own steps is not refused.

    Args:
        run: A run that ``wandb.init`` has returned; None for the one that is open when the first row is written. It
            stays open.

    Raises:
        ModuleNotFoundError: W&B is not installed.

    """

    def __init__(self, run: Any = None) -> None:
        self._wandb = require("wandb", "wandb")
        self._given, self._run = run, None
        self._at = -1
        """W&B's step of the last row."""

    def log(self, step: int, values: Mapping[str, float | str]) -> None:
        """Write the values of a step. Raises RuntimeError if no run of W&B is open."""
        if self._run is None:
            self._run = self._given if self._given is not None else self._wandb.run
            if self._run is None:
                raise RuntimeError("no run of W&B is open; call wandb.init() before, or give its result to WandB()")
            self._run.define_metric("pliant/step", hidden=True)
            self._run.define_metric("pliant/*", step_metric="pliant/step")
        self._at = self._run.step + (self._run.step == self._at)
        row = {"pliant/step": step, **{f"pliant/{name}": value for name, value in values.items()}}
        self._run.log(row, step=self._at)

    def close(self) -> None:
        """Leave the run open, since it belongs to the training loop."""
