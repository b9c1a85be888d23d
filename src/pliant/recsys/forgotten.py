"""A word to who steps an optimizer of torch, but not the tables, which no such optimizer can hold."""

import threading
import warnings
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

__all__ = ["Forgotten"]


class _Steps(threading.local):
    """Steps of optimizers in this thread: ranks may be threads."""

    num = 0


_steps = _Steps()


def _count(*_: Any) -> None:
    _steps.num += 1


# At import, once for all modules: the hooks are those of all optimizers, and other threads may be going through them.
register_optimizer_step_post_hook(_count)


class Forgotten:
    """Warns, once, at a forward pass before which an optimizer took a step and the tables did not."""

    def __init__(self) -> None:
        self._num = 0
        self._is_told = False

    def look(self, *, waiting: bool) -> None:
        """Compare with the last forward pass; `waiting` says whether gradients of the tables have not been applied."""
        if waiting and _steps.num > self._num and not self._is_told:
            self._is_told = True
            warnings.warn(
                "an optimizer took a step, but gradients of the tables still wait: no optimizer of torch holds these, "
                "so call the step() of ShardedEmbeddingBag as well, after each backward pass or sum of some.",
                stacklevel=3,
            )
        self._num = _steps.num
