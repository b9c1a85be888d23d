"""Hooks on modules that stay where they were registered, and what is called around a module."""

import functools
from collections.abc import Callable
from typing import Any

from torch import nn

from pliant.comm.ddp_private import watch_module

__all__ = ["Hook", "do_nothing", "watch_forward"]


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
        return functools.partial, (do_nothing,)


def watch_forward(
    ddp: nn.Module | None, module: nn.Module, before: Callable[[Any, Any], None], after: Callable[[Any], None]
) -> Callable[[], None]:
    """Show somebody what a module is called with, by place and by name, and what it returns.

    Args:
        ddp: The DDP that the module is in, which then stays free of hooks and is compiled as it is.
        module: The module without wrappers.
        before: Gets the arguments.
        after: Gets the output.

    Returns:
        What ends it; a second call does nothing.

    """
    if ddp is not None:
        return watch_module(ddp, before, after)
    hooks = (
        module.register_forward_pre_hook(Hook(lambda _, args, kwargs: before(args, kwargs)), with_kwargs=True),
        module.register_forward_hook(Hook(lambda _, __, output: after(output))),
    )

    def end() -> None:
        for hook in hooks:
            hook.remove()

    return end


def do_nothing(*_: Any) -> None:
    """Do what a hook does in a copy of its module."""
