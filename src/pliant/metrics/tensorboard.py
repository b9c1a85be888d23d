"""Rows in TensorBoard's event files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pliant.metrics.base import require

__all__ = ["TensorBoard"]


class TensorBoard:
    """Scalars ``pliant/step_s`` and so on, and the plan's name as a text, in torch's own event files.

    Args:
        folder: Folder of the event files; made with the first row.

    Raises:
        ModuleNotFoundError: TensorBoard is not installed.

    """

    def __init__(self, folder: str | Path) -> None:
        require("tensorboard", "tensorboard")
        self._folder = folder
        self._writer: Any = None

    def log(self, step: int, values: Mapping[str, float | str]) -> None:
        """Write scalars and texts at a step."""
        if self._writer is None:
            self._writer = require("torch.utils.tensorboard", "tensorboard").SummaryWriter(str(self._folder))
        for name, value in values.items():
            write = self._writer.add_text if isinstance(value, str) else self._writer.add_scalar
            write(f"pliant/{name}", value, step)

    def close(self) -> None:
        """Write what is held back, and close the file."""
        if self._writer is not None:
            self._writer.close()
