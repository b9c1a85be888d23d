"""Calls that are made once a module has been imported."""

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

__all__ = ["after_import"]


class _AfterImport(MetaPathFinder, Loader):
    """Finds one module as it would be found anyway, and calls a function when it has been executed."""

    def __init__(self, name: str, call: Callable[[], None]) -> None:
        self._name, self._call = name, call
        self._loader: Loader | None = None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        # It stays until the module is executed: many only ask whether there is one, as transformers does for torch.
        others = (getattr(finder, "find_spec", None) for finder in sys.meta_path if finder is not self)
        found = (find(fullname, path, target) for find in others if find is not None)
        spec = next((each for each in found if each is not None), None)
        if spec is not None and spec.loader is not None:
            self._loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None if self._loader is None else self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        loader = self._loader
        if loader is None or module.__spec__ is None:
            raise ImportError(f"{self._name} was not found by the loader that is to execute it.")
        module.__spec__.loader = module.__loader__ = loader  # as if nobody had been in between
        loader.exec_module(module)
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        self._call()


def after_import(name: str, call: Callable[[], None]) -> None:
    """Call a function once a top-level module has been imported; at once if it has been already.

    Args:
        name: Name of the module.
        call: Called in the importing thread; what it raises comes out of the import.

    """
    if name in sys.modules:
        call()
    else:
        sys.meta_path.insert(0, _AfterImport(name, call))
