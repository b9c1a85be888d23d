"""Warning of steps of torch's optimizers that leave out the tables, and a check of gradients that a scaler scales."""

import threading
import warnings
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

from pliant.comm.torch_private import scaler_at_work

__all__ = ["StepCheck"]


class _Steps(threading.local):
    """Steps of optimizers in this thread: ranks may be threads."""

    num = 0
    scale = 1.0
    """Of the loss, in the last one."""


_steps = _Steps()


def _count(*_: Any) -> None:
    scaler = scaler_at_work()
    _steps.num += 1
    _steps.scale = 1.0 if scaler is None else float(scaler.get_scale())


# At import, once for all modules: the hooks are those of all optimizers, and other threads may be going through them.
register_optimizer_step_post_hook(_count)


class StepCheck:
    """Warns, once, at a forward pass before which an optimizer took a step and the tables did not; refuses a scaler."""

    def __init__(self) -> None:
        self._num = 0
        self._num_before = _steps.num
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

    def refuse_scale(self) -> None:
        """Raise ValueError if an optimizer took a step since the last one of the tables, and a GradScaler made it."""
        since, self._num_before = _steps.num - self._num_before, _steps.num
        if since and _steps.scale != 1:
            raise ValueError(
                f"a GradScaler with a scale of {_steps.scale:g} makes the optimizer's steps, but the tables take "
                "gradients as they come, and would move as many times too far; train in bfloat16, without a scaler."
            )
