"""Rows in MLflow, on a server or in a folder."""

import time
from collections.abc import Mapping
from typing import Any

from pliant.metrics.base import require

__all__ = ["MLflow"]

_ROWS = 20


class MLflow:
    """Metrics ``pliant/step_s`` and so on, and the plan's name as the tag ``pliant/plan``, in a run of MLflow.

    Rows are written in batches, since MLflow's stores take about a millisecond each.

    Args:
        run_id: The run; None for the one that is active when the first row is written. It stays open.
        tracking_uri: Of the store; None for MLflow's own choice.

    Raises:
        ModuleNotFoundError: MLflow is not installed.

    """

    def __init__(self, run_id: str | None = None, *, tracking_uri: str | None = None) -> None:
        self._mlflow = require("mlflow", "mlflow-skinny")
        self._run_id, self._uri = run_id, tracking_uri
        self._client: Any = None
        self._metrics: list[Any] = []
        self._rows = 0

    def log(self, step: int, values: Mapping[str, float | str]) -> None:
        """Take the values of a step, and write those of the last 20. Raises RuntimeError if no run is active."""
        if self._client is None:
            self._client = self._open()
        now_ms = int(time.time() * 1000)
        for name, value in values.items():
            if isinstance(value, str):
                self._client.set_tag(self._run_id, f"pliant/{name}", value)
            else:
                self._metrics.append(self._mlflow.entities.Metric(f"pliant/{name}", float(value), now_ms, step))
        self._rows += 1
        if self._rows == _ROWS:
            self._write()

    def close(self) -> None:
        """Write what is held back; the run stays open, since it belongs to the training loop."""
        self._write()

    def _open(self) -> Any:
        if self._run_id is None:
            active = self._mlflow.active_run()
            if active is None:
                raise RuntimeError(
                    "no run of MLflow is active; call mlflow.start_run() before, or give MLflow() its id"
                )
            self._run_id = active.info.run_id
        return self._mlflow.MlflowClient(self._uri)

    def _write(self) -> None:
        metrics, self._metrics, self._rows = self._metrics, [], 0
        if metrics:
            self._client.log_batch(self._run_id, metrics=metrics)
