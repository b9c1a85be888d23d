"""Places to which `Run.log_to` writes what steps cost; each loads its library only when it is made."""

from pathlib import Path

from pliant.metrics.base import LogTarget
from pliant.metrics.files import CsvFile, JsonLines, read_rows
from pliant.metrics.mlflow import MLflow
from pliant.metrics.opentelemetry import OpenTelemetry
from pliant.metrics.prometheus import Prometheus
from pliant.metrics.tensorboard import TensorBoard
from pliant.metrics.wandb import WandB

__all__ = [
    "CsvFile",
    "JsonLines",
    "LogTarget",
    "MLflow",
    "OpenTelemetry",
    "Prometheus",
    "TensorBoard",
    "WandB",
    "open_target",
    "read_rows",
]


def open_target(path: str | Path) -> LogTarget:
    """Return the writer of a file, by the end of its name. Raises ValueError for another end."""
    kinds = {".csv": CsvFile, ".jsonl": JsonLines}
    if (kind := kinds.get(Path(path).suffix)) is None:
        raise ValueError(
            f"{str(path)!r} is no log that can be written: its name ends neither in .csv nor in .jsonl; name such a "
            "file, or give a target such as pliant.metrics.TensorBoard(folder)."
        )
    return kind(path)
