"""Rows as metrics of OpenTelemetry."""

from collections.abc import Mapping
from typing import Any

from pliant.metrics.base import require

__all__ = ["OpenTelemetry"]


class OpenTelemetry:
    """Gauges ``pliant.step_s``, ``pliant.sent_bytes`` and so on, with the plan in force as the attribute ``plan``.

    Args:
        meter: A meter of OpenTelemetry; None for that of the global provider, which the training script sets up.

    Raises:
        ModuleNotFoundError: The API is not installed.

    """

    def __init__(self, meter: Any = None) -> None:
        metrics = require("opentelemetry.metrics", "opentelemetry-sdk")
        self._meter = metrics.get_meter("pliant") if meter is None else meter
        self._gauges: dict[str, Any] = {}
        self._attributes: dict[str, str] = {}

    def log(self, step: int, values: Mapping[str, float | str]) -> None:
        """Set the gauges to the values of a step."""
        texts = {name: value for name, value in values.items() if isinstance(value, str)}
        self._attributes = {**self._attributes, **texts}  # anew: the SDK holds those of points that it has yet to send
        for name, value in {"step": float(step), **values}.items():
            if isinstance(value, str):
                continue
            if name not in self._gauges:
                unit = "s" if name.endswith("_s") else "By" if name.endswith("_bytes") else ""
                self._gauges[name] = self._meter.create_gauge(f"pliant.{name}", unit=unit)
            self._gauges[name].set(value, self._attributes)

    def close(self) -> None:
        """Leave the provider to the training script, which has set it up."""
