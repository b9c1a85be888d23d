"""Hooks on modules that stay where they were registered."""

import functools
from collections.abc import Callable
from typing import Any

__all__ = ["Hook", "nothing"]


class Hook:
    """A hook that a copy or a pickle of its module does not have: there it does nothing.

    A plain function would be pickled by a name that it may not have, and copied as it is, so that the copy would call
    the original's. Torch offers no other way to leave a hook out.
    """

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, *args: Any) -> Any:
        return self._call(*args)

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial, (nothing,)


def nothing(*_: Any) -> None:
    """Do what a hook does in a copy of its module."""
