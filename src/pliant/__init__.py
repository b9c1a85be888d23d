"""Pliant: data-parallel PyTorch training that bends to the network it has."""

from typing import Any

import lazy_loader

_of_stub, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    """Return a name of the stub, or the function of an algorithm: its row in the registry is enough."""
    try:
        return _of_stub(name)
    except AttributeError:
        if name.startswith("_"):
            raise
        from pliant.algorithms.registry import ALGORITHMS

        if name not in ALGORITHMS:
            raise
        return ALGORITHMS[name].make
