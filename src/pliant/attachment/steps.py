"""Steps of a script's optimizers, heard by torch's global hooks: where a step of the whole training ends."""

import os
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

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
        self._depth = 0
        """Calls of step() that are under way: a subclass calls its base's."""
        self._round: list[Optimizer] = []
        self._complete = False
        """Whether all optimizers of a round are known."""
        self._handles = [
            register_optimizer_step_pre_hook(self._begin),
            register_optimizer_step_post_hook(self._end),
        ]

    def close(self) -> None:
        """Remove the hooks from torch."""
        for handle in self._handles:
            handle.remove()

    def keep(self, optimizers: list[Optimizer]) -> None:
        """Let a round consist of these only; others are not heard."""
        self._round, self._complete = optimizers, True

    def _begin(self, *_: Any) -> None:
        self._depth += 1

    def _end(self, optimizer: Optimizer, *_: Any) -> None:
        self._depth -= 1
        if self._depth or os.getpid() != self._pid:
            return
        if not self._complete:
            if not any(each is optimizer for each in self._round):
                self._round.append(optimizer)
                return
            self._complete = True
        if self._round and optimizer is self._round[-1]:
            self._call(self._round)
