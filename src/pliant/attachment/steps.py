"""Steps of a script's optimizers, heard by torch's global hooks: where a step of the whole training ends."""

import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

__all__ = ["StepEnds"]


class StepEnds:
    """Calls a function at the end of each step of a training, when nothing of a step is left to be done.

    A training may have several optimizers: a step ends with the last one of a round, in which none steps twice. The
    first round tells which they are, and ends unheard. A forked process hears nothing.

    Args:
        call: Called behind all hooks of the last optimizer, with the optimizers of a round in their order.

    """

    def __init__(self, call: Callable[[list[Optimizer]], None]) -> None:
        self._call, self._pid = call, os.getpid()
        self._round: list[Optimizer] = []
        self._complete = False
        """Whether all optimizers of a round are known."""
        self._handle = register_optimizer_step_post_hook(self._end)

    def close(self) -> None:
        """Remove the hook from torch."""
        self._handle.remove()

    def keep(self, optimizers: list[Optimizer]) -> None:
        """Let a round consist of these only; others are not heard."""
        self._round, self._complete = optimizers, True

    def _end(self, optimizer: Optimizer, *_: Any) -> None:
        if os.getpid() != self._pid or _is_within_another(sys._getframe(1)):  # pyright: ignore[reportPrivateUsage]
            return
        if not self._complete:
            if not any(each is optimizer for each in self._round):
                self._round.append(optimizer)
                return
            self._complete = True
        if self._round and optimizer is self._round[-1]:
            self._call(self._round)


def _is_within_another(step: FrameType) -> bool:
    """Say whether a call of step() was made by another, as a subclass calls its base's: torch wraps both alike.

    Calls are not counted, since one that raises ends unheard.
    """
    caller = step.f_back
    while caller is not None and caller.f_code is not step.f_code:
        caller = caller.f_back
    return caller is not None
