"""Rows in MLflow, on a server or in a folder."""

import queue
import threading
import time
from collections.abc import Mapping
from typing import Any

from pliant.metrics.base import require

__all__ = ["MLflow"]

_ROWS = 20
_BATCHES = 5
"""Batches that may wait for the store."""
_PATIENCE_S = 10.0
"""Longest wait for the store at the end."""


class MLflow:
    """Metrics ``pliant/step_s`` and so on, and the plan's name as the tag ``pliant/plan``, in a run of MLflow.

    Rows are written in batches, since MLflow's stores take about a millisecond each, and by a thread, since MLflow asks
    a server that does not answer again for minutes. If some 100 rows wait for the store, `log` raises TimeoutError.

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
        self._tags: list[Any] = []
        self._rows = 0
        self._batches: queue.Queue[tuple[list[Any], list[Any]] | None] = queue.Queue(_BATCHES)
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._write_all, name="pliant-mlflow", daemon=True)

    def log(self, step: int, values: Mapping[str, float | str]) -> None:
        """Take the values of a step, and let those of the last 20 be written.

        Raises:
            RuntimeError: No run is active.
            TimeoutError: The store does not answer.
            Exception: What MLflow has raised for rows before.

        """
        if self._client is None:
            self._client = self._open()
            self._thread.start()
        now_ms = int(time.time() * 1000)
        for name, value in values.items():
            if isinstance(value, str):
                self._tags.append(self._mlflow.entities.RunTag(f"pliant/{name}", value))
            else:
                self._metrics.append(self._mlflow.entities.Metric(f"pliant/{name}", float(value), now_ms, step))
        self._rows += 1
        if self._rows == _ROWS:
            self._send(timeout_s=0)

    def close(self) -> None:
        """Write what is held back; the run stays open, since it belongs to the training loop.

        Raises:
            TimeoutError: The store has not answered for 10 s.
            Exception: What MLflow has raised.

        """
        if self._client is None:
            return
        self._send(timeout_s=_PATIENCE_S)
        self._put(None, _PATIENCE_S)
        self._thread.join(_PATIENCE_S)
        if self._thread.is_alive():
            raise self._no_answer()
        if self._failure is not None:
            raise self._failure

    def _open(self) -> Any:
        if self._run_id is None:
            active = self._mlflow.active_run()
            if active is None:
                raise RuntimeError(
                    "no run of MLflow is active; call mlflow.start_run() before, or give MLflow() its id"
                )
            self._run_id = active.info.run_id
        return self._mlflow.MlflowClient(self._uri)

    def _send(self, timeout_s: float) -> None:
        if self._failure is not None:
            raise self._failure
        batch = self._metrics, self._tags
        self._metrics, self._tags, self._rows = [], [], 0
        self._put(batch, timeout_s)

    def _put(self, batch: tuple[list[Any], list[Any]] | None, timeout_s: float) -> None:
        try:
            self._batches.put(batch, timeout_s > 0, timeout_s)
        except queue.Full:
            raise self._no_answer() from None

    def _no_answer(self) -> TimeoutError:
        where = self._uri or self._mlflow.get_tracking_uri()
        return TimeoutError(f"MLflow's store {where} does not answer; start it, or log to a folder or a .csv file")

    def _write_all(self) -> None:
        """Write batches as they come, until there is none or one fails; those after it are lost."""
        while (batch := self._batches.get()) is not None:
            try:
                self._client.log_batch(self._run_id, metrics=batch[0], tags=batch[1])
            except Exception as error:  # noqa: BLE001  the next call raises it in the training loop's thread
                self._failure = error
                break
