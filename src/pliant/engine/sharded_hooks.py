"""Places that FSDP2 offers for communication, filled by tasks of the communication thread.

Note [when a reduced gradient is there]: autograd's shard gradients are views of a reduce-scatter's output, and nothing
reads them before backward ends. So a reduce-scatter returns at once, its task fills the output, and backward's last
callback waits for the task (`ShardedSource`). Where torch reads the output right behind the call, the call waits.

Note [one order of collectives]: gathers and reduce-scatters go through one thread in the order in which FSDP2 asks for
them, which is the program's, so the same on all ranks.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pliant.comm.fsdp_private import ParamGroup
from pliant.engine.alike import meanwhile
from pliant.engine.lane import CommThread, TaskHandle

__all__ = ["GatherHook", "GatherWork", "ReduceScatterHook", "Submitter"]


class Submitter:
    """Hands tasks of a pass over to the communication thread.

    Args:
        comm_thread: Runs them.
        step: Says how many optimizer steps are complete.
        begin: Called when a pass hands over a gradient.

    """

    def __init__(self, comm_thread: CommThread, step: Callable[[], int], begin: Callable[[], None]) -> None:
        self._comm_thread, self._step, self.begin = comm_thread, step, begin

    def submit(self, name: str, what: str, task: Callable[[int], None]) -> TaskHandle:
        """Queue a task, which is given the step; name and what it does stand in its errors and in timelines."""
        step = self._step()

        def run() -> None:
            with meanwhile(f"{what} of {name} in step {step}"):
                task(step)

        return self._comm_thread.submit(run, name=f"{what} of {name}", step=step)


class GatherWork(dist.Work):
    """A gather under way: FSDP2 waits for it before it uses the weights."""

    def __init__(self, handle: TaskHandle) -> None:
        super().__init__()
        self._handle = handle

    def wait(self, timeout: object = None) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Wait for the task, and raise what it has met; the timeout is the comm's own."""
        self._handle.wait()
        return True

    def is_completed(self) -> bool:
        """Say whether the task has ended."""
        return self._handle.done


class ReduceScatterHook:
    """The reduce-scatter of one parameter group, in place of torch's.

    Args:
        group: Whose gradients.
        submitter: Where the task goes.
        exchange: Fills the output, (numel,), from the input, (size, numel), of a step.

    """

    def __init__(
        self, group: ParamGroup, submitter: Submitter, exchange: Callable[[Tensor, Tensor, int], None], wide: bool
    ) -> None:
        self._group, self._submitter, self._exchange, self._wide = group, submitter, exchange, wide
        self._calls = 0

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return memory for the input, then for the output of a call, as FSDP2 asks for them in turn.

        The output has the parameters' dtype, so that torch need not cast it, which would be at once; an input that is
        coded is in float32.
        """
        self._calls += 1
        of_input = torch.float32 if self._wide else dtype
        wanted = of_input if self._calls % 2 else self._group.raw._orig_dtype or dtype
        return torch.empty(*size, dtype=wanted, device=device)

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False) -> Any:
        """Queue the exchange, and wait for it only where torch reads the result at once."""
        if op != dist.ReduceOp.AVG:
            raise ValueError(
                f"torch asks for {op} of the gradients of {self._group.name!r}, as after set_gradient_divide_factor, "
                "but a relaxed run exchanges means; scale the loss instead."
            )
        self._submitter.begin()
        parts = input_tensor.view(-1, output_tensor.numel())  # (size, numel)
        exchange = self._exchange
        handle = self._submitter.submit(
            self._group.name, "the gradients", lambda step: exchange(output_tensor, parts, step)
        )
        if self._group.reads_at_once(op):
            handle.wait()


class GatherHook:
    """The all-gather of one parameter group, in place of torch's; among other ranks than the group's, torch's own.

    Args:
        group: Whose weights.
        submitter: Where the task goes.
        gather: Fills the rows, (size, numel), of which this rank's own is there.

    """

    def __init__(self, group: ParamGroup, submitter: Submitter, gather: Callable[[Tensor], None]) -> None:
        self._group, self._submitter, self._gather = group, submitter, gather
        self._own, self._torch = group.shard_group, group.raw._all_gather_comm

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return memory for the output, of which the input is a part."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False) -> Any:
        """Queue the gather, and return what to wait for."""
        if group is not self._own:  # reshard_after_forward=4, say, gathers inside a host in backward
            return self._torch(output_tensor, input_tensor, group, async_op)
        rows, gather = output_tensor.view(group.size(), -1), self._gather
        return GatherWork(self._submitter.submit(self._group.name, "the weights", lambda _: gather(rows)))
