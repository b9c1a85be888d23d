"""Pliant: data-parallel PyTorch training that bends to the network it has."""

# Importing this loads nothing else: the stub is read when a name is first asked for.
TYPE_CHECKING = False  # as in typing, which would be loaded
if TYPE_CHECKING:
    from collections.abc import Callable

    _made: "list[tuple[Callable[[str], object], Callable[[], list[str]], list[str]]]"

_made = []
"""What lazy_loader makes of the stub, once it is needed."""


def __getattr__(name: str) -> object:
    """Return a name of the stub, or the function of an algorithm: its row in the registry is enough."""
    if name == "__all__":
        return __dir__()
    if name.startswith("_"):
        raise AttributeError(f"No {__name__} attribute {name}")
    try:
        return _stub()[0](name)
    except AttributeError:
        from pliant.algorithms.registry import ALGORITHMS

        if name not in ALGORITHMS:
            raise
        return ALGORITHMS[name].make


def __dir__() -> list[str]:
    """Return the names of the stub."""
    return _stub()[1]()


def _stub() -> "tuple[Callable[[str], object], Callable[[], list[str]], list[str]]":
    if not _made:
        import lazy_loader

        _made.append(lazy_loader.attach_stub(__name__, __file__))
    return _made[0]
