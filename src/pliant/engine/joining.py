"""Uneven inputs in DDP's join(): ranks without batches take part in the others' passes."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch.optim import Optimizer

from pliant.comm.base import Comm
from pliant.comm.small_gather import gather_small
from pliant.engine.comm_thread import CommThread
from pliant.engine.initial_sync import broadcast_optimizer

__all__ = ["CountsSteps", "JoinState"]


class CountsSteps(Protocol):
    """Protocol: counts the optimizer's steps."""

    step: int


class JoinState:
    """State that ranks share while some have no batches left.

    A rank without batches gives zeros to every exchange of gradients, as in DDP, and makes no steps. So before each
    pass all agree on its step and on how many still train; no other communication is possible until the end. There DDP
    gives all ranks the weights of one that trained to the last, and Pliant that rank's optimizer state too.

    Args:
        comm: Comm of the run.
        comm_thread: Communication thread of the gradients.
        optimizers: Of the run.
        counter: Of the run's steps.
        refusal: Returns why the plan in force cannot be joined, or "".

    """

    def __init__(
        self,
        comm: Comm,
        comm_thread: CommThread,
        optimizers: Sequence[Optimizer],
        counter: CountsSteps,
        refusal: Callable[[], str],
    ) -> None:
        self._comm, self._comm_thread, self._optimizers, self._counter = comm, comm_thread, optimizers, counter
        self._refusal = refusal
        self._device = next(p.device for group in optimizers[0].param_groups for p in group["params"])
        self._by_all = True
        self.on = False
        """Whether ranks may be missing in the pass that has begun."""

    def check(self) -> None:
        """Raise ValueError, on all ranks, if the plan cannot be joined."""
        if why := self._refusal():
            raise ValueError(
                f"in join() a rank without batches can stand in for exchanges of gradients only, but {why}; "
                'give every rank the same number of batches, or switch() to a plan such as "allreduce" for the join.'
            )

    def begin(self, *, uneven: bool, by_all: bool) -> None:
        """Note that a pass begins: whether ranks may be missing, and whether means are over all or those that train."""
        if uneven:
            self.check()
        self.on, self._by_all = uneven, by_all

    def meet(self, *, trains: bool) -> float:
        """Agree on the step of the ranks that train; return the factor of a mean over all ranks. Collective."""
        mine = torch.tensor([self._counter.step, int(trains)], dtype=torch.int64)
        table = torch.empty(self._comm.size, 2, dtype=torch.int64)

        def gather() -> None:
            table.copy_(gather_small(self._comm, mine))

        self._comm_thread.submit(gather).wait()
        rows: list[list[int]] = table.tolist()
        self._counter.step = max(step for step, _ in rows)
        return 1.0 if self._by_all else self._comm.size / max(1, sum(training for _, training in rows))

    def end(self, root: int) -> None:
        """Give all ranks the optimizer state of the rank whose weights they have. Collective."""
        self._comm_thread.drain()
        self.meet(trains=False)
        self.on = False
        for optimizer in self._optimizers:
            with contextlib.suppress(TypeError):  # a state that cannot be sent stays, as in DDP
                broadcast_optimizer(optimizer, self._comm, self._device, root=root)
