"""The latest row for Prometheus, which comes to fetch it."""

from collections.abc import Mapping
from typing import Any

from pliant.metrics.base import require

__all__ = ["Prometheus"]


class Prometheus:
    """Gauges ``pliant_step_seconds``, ``pliant_sent_bytes`` and so on; ``pliant_plan_info{plan="onebit"}`` is 1.

    Args:
        port: Port on which they are served over HTTP; None to serve nothing, if the registry is served already.
        address: Address on which they are served.
        registry: Registry of the gauges; None for the default one.

    Raises:
        ModuleNotFoundError: The client is not installed.

    """

    def __init__(self, port: int | None = None, *, address: str = "127.0.0.1", registry: Any = None) -> None:
        self._client = require("prometheus_client", "prometheus-client")
        self._registry = self._client.REGISTRY if registry is None else registry
        self._gauges: dict[str, Any] = {}
        self._port, self._address = port, address
        self._server: Any = None

    def log(self, step: int, values: Mapping[str, float | str]) -> None:
        """Set the gauges to the values of a step; the first time, serve them."""
        if self._server is None and self._port is not None:
            self._server, self._thread = self._client.start_http_server(self._port, self._address, self._registry)
        for name, value in {"step": float(step), **values}.items():
            if isinstance(value, str):
                gauge = self._gauge(f"{name}_info", (name,))
                gauge.clear()
                gauge.labels(value).set(1)
            else:
                self._gauge(name).set(value)

    def close(self) -> None:
        """Remove the gauges, and end the server."""
        for gauge in self._gauges.values():
            self._registry.unregister(gauge)
        self._gauges.clear()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()

    def _gauge(self, name: str, labels: tuple[str, ...] = ()) -> Any:
        if name not in self._gauges:
            full = "pliant_" + name.removesuffix("_s") + ("_seconds" if name.endswith("_s") else "")
            legal = "".join(c if c.isascii() and c.isalnum() else "_" for c in full)
            self._gauges[name] = self._client.Gauge(legal, f"{name} of pliant", labels, registry=self._registry)
        return self._gauges[name]
