"""Protocol of the places to which figures of a run are written."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Protocol

__all__ = ["LogTarget", "require"]


class LogTarget(Protocol):
    """A writer of rows. A value is a number, or a text such as the name of a plan; a row may lack some of the names."""

    def log(self, step: int, values: Mapping[str, float | str]) -> None:
        """Write the row of a step."""
        ...

    def close(self) -> None:
        """Write what is held back, and end."""
        ...


def require(module: str, install: str) -> Any:
    """Import a module of another distribution; if it is missing, say in one line how to install it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"this needs {error.name}; install it with: pip install {install}") from None
