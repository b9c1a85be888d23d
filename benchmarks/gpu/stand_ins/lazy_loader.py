"""The one function of lazy-loader that Pliant uses, for machines that lack it and have no package index."""

import ast
import importlib
import os
from collections.abc import Callable
from pathlib import Path

__all__ = ["attach_stub"]


def attach_stub(package: str, filename: str) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return __getattr__, __dir__ and __all__ for the names that a package's stub imports from its modules."""
    places: dict[str, tuple[str, str] | None] = {}
    for node in ast.walk(ast.parse(Path(os.path.splitext(filename)[0] + ".pyi").read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            for alias in node.names:
                places[alias.name] = (f"{package}.{node.module}", alias.name) if node.module else None

    def get(name: str) -> object:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}.")
        place = places[name]
        return (
            getattr(importlib.import_module(place[0]), place[1])
            if place
            else importlib.import_module(f"{package}.{name}")
        )

    return get, lambda: sorted(places), sorted(places)
