"""Places that FSDP2 offers for communication, filled by tasks of the communication thread.

Note [when a reduced gradient is there]: autograd's shard gradients are views of a reduce-scatter's output, and nothing
reads them before backward ends. So a reduce-scatter returns at once, its task fills the output, and backward's last
callback waits for the task (`ShardedSource`). Where torch reads the output right behind the call, the call waits.

Gathers and reduce-scatters go through one thread (Note [one order of collectives]) in the order in which FSDP2 asks
for them. That is the program's order, so it is the same on all ranks.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pliant.comm.fsdp_private import ParamGroup
from pliant.comm.fsdp_waits_private import call_at_reset
from pliant.engine.comm_thread import CommThread, TaskHandle
from pliant.engine.ddp_hook import ReadyBucket
from pliant.engine.rank_checks import describe_failure
from pliant.engine.shard_groups import GroupGather, GroupScatter, UngatheredError, describe_part
from pliant.engine.sharded_findings import ShardFindings
from pliant.engine.sources import GradientReceiver

__all__ = ["GatherHook", "GatherWork", "ReduceScatterHook", "ReplicaHook", "Submitter"]


class Submitter:
    """Hands tasks of a pass over to the communication thread.

    Args:
        comm_thread: Runs them.
        receiver: Counts steps and passes.
        begin: Called when a pass hands over a gradient.

    """

    def __init__(self, comm_thread: CommThread, receiver: GradientReceiver, begin: Callable[[], None]) -> None:
        self._comm_thread, self._receiver, self._begin = comm_thread, receiver, begin

    @property
    def step(self) -> int:
        """Number of optimizer steps made."""
        return self._receiver.step

    def begin_exchange(self) -> int:
        """Note that a pass hands over gradients; return the number of passes before it."""
        self._begin()
        return self._receiver.num_backwards

    def submit(self, name: str, what: str, task: Callable[[], None]) -> TaskHandle:
        """Queue a task; name and what it exchanges stand in its errors and in timelines."""
        step = self.step

        def run() -> None:
            with describe_failure(f"exchanging {what} of {name} in step {step}"):
                task()

        return self._comm_thread.submit(run, name=f"{what} of {name}", step=step)

    def drain(self) -> None:
        """Wait until all tasks are done."""
        self._comm_thread.drain()


class GatherWork(dist.Work):
    """A gather under way: FSDP2 waits for it before it uses the weights."""

    def __init__(self, handle: TaskHandle, group: ParamGroup) -> None:
        super().__init__()
        self._handle, self._group = handle, group

    def wait(self, timeout: object = None) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Wait for the task, and raise what it has met; the timeout is the comm's own."""
        try:
            self._handle.wait()
            if self._handle.failed:  # and somebody else has heard why, as who saves the run may
                raise UngatheredError(
                    f"the weights of {self._group.name} were not gathered, since a gather has failed before; the next "
                    "pass gathers them anew."
                )
        except BaseException:
            self._group.forget_gather()  # or the next pass would use what was not filled
            raise
        return True

    def is_completed(self) -> bool:
        """Say whether the task has ended."""
        return self._handle.done


class ReduceScatterHook:
    """The reduce-scatter of one parameter group, in place of torch's.

    Args:
        group: Group of the gradients.
        submitter: Submitter of the task.
        exchange: Its part of the plan in force.

    """

    def __init__(self, group: ParamGroup, submitter: Submitter, exchange: GroupScatter) -> None:
        self._group, self._submitter, self._exchange = group, submitter, exchange
        self._output_numel = -1
        """Elements of the output that is asked for next; -1 if an input is."""

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return memory for the input, then for the output of a call, as FSDP2 asks for them in turn.

        The output has the parameters' dtype, so that torch need not cast it, which would be at once; an input that is
        coded is in float32. Sizes tell them apart, since a pass may be broken off in between.
        """
        numel, shards = torch.Size(size).numel(), self._group.shard_group
        is_output = numel == self._output_numel
        self._output_numel = -1 if is_output or shards is None else numel // shards.size()
        of_input = torch.float32 if self._exchange.wide else dtype
        wanted = self._group.raw._orig_dtype or dtype if is_output else of_input
        return torch.empty(*size, dtype=wanted, device=device)

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False) -> Any:
        """Queue the exchange, and wait for it only where torch reads the result at once."""
        if op != dist.ReduceOp.AVG:
            raise ValueError(
                f"torch asks for {op} of the gradients of {self._group.name!r}, as after set_gradient_divide_factor, "
                "but a relaxed run exchanges means; scale the loss instead."
            )
        rows, exchange = input_tensor.view(-1, output_tensor.numel()), self._exchange  # (size, numel)
        seed = self._submitter.begin_exchange() << 32
        handle = self._submitter.submit(self._group.name, "the gradients", lambda: exchange(output_tensor, rows, seed))
        if self._group.reads_at_once(output_tensor.dtype):
            handle.wait()


class GatherHook:
    """The all-gather of one parameter group, in place of torch's; among other ranks than the group's, torch's own.

    Args:
        group: Group of the weights.
        submitter: Submitter of the task.
        exchange: Its part of the plan in force.
        changes: Counts the moments at which weights may have changed.

    """

    def __init__(
        self, group: ParamGroup, submitter: Submitter, exchange: GroupGather, changes: Callable[[], int]
    ) -> None:
        self._group, self._submitter, self._exchange, self._changes = group, submitter, exchange, changes
        self._own, self._torch = group.shard_group, group.torch_gather

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return memory for the output, of which the input is a part."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False) -> Any:
        """Queue the gather, and return what to wait for."""
        if group is not self._own:  # reshard_after_forward=4, say, gathers inside a host in backward
            return self._torch(output_tensor, input_tensor, group, async_op)
        rows, exchange, changes = output_tensor.view(group.size(), -1), self._exchange, self._changes()
        seed = self._submitter.step << 32
        handle = self._submitter.submit(self._group.name, "the weights", lambda: exchange(rows, changes, seed))
        return GatherWork(handle, self._group)


class ReplicaHook:
    """The exchange of one parameter group's reduced gradients among replicas, in place of torch's all-reduce.

    Gradients of passes that torch would not average (`set_requires_all_reduce`) are kept for the next that it would,
    unless it forgets them too (`reset_iter_state`).

    Args:
        group: Group of the gradients.
        submitter: Submitter of the task.
        names: Names of the parameters in the reduced shard.
        shapes: Shape of this rank's part of each.
        spans: Range of each in the reduced shard.
        row_numel: Elements of the reduced shard if all trained parameters of the group got a gradient.
        index: Index of the group.
        receive: Receiver of the bucket.
        findings: What is not finite in reduced gradients.
        changed: Returns parameters that were frozen, or trained, only after the run began.

    """

    def __init__(
        self,
        group: ParamGroup,
        submitter: Submitter,
        names: tuple[str, ...],
        shapes: tuple[tuple[int, ...], ...],
        spans: tuple[tuple[int, int], ...],
        row_numel: int,
        index: int,
        receive: Callable[[ReadyBucket], None],
        findings: ShardFindings,
        changed: Callable[[], Sequence[str]],
    ) -> None:
        self._group, self._submitter, self._receive, self._index = group, submitter, receive, index
        self._names, self._shapes, self._spans, self._row_numel = names, shapes, spans, row_numel
        self._numel = sum(stop - start for start, stop in spans)
        self._findings, self._changed = findings, changed
        self._held: list[Tensor] = []
        """Sum of the gradients of earlier passes, (row_numel,), if there are any; tasks add to it, and empty it."""
        call_at_reset(group.raw, self._forget)

    def __call__(self, shard: Tensor) -> None:
        """Queue the exchange behind the reduce-scatter, and wait for it only where torch reads the result at once."""
        self._submitter.begin_exchange()
        if shard.numel() != self._row_numel:
            self._submitter.submit(self._group.name, "the reduced gradients", self._refuse)
            return
        if self._group.defers_replicas:
            held = self._held
            self._submitter.submit(self._group.name, "the reduced gradients", lambda: self._hold(shard, held))
        else:
            self._exchange(shard)
        if self._group.reads_at_once(shard.dtype):
            self._submitter.drain()

    def _forget(self) -> None:
        self._held = []  # tasks that are under way have the one before

    def _hold(self, shard: Tensor, held: list[Tensor]) -> None:
        """Keep the gradients of a pass, of which torch gets zeros to add up."""
        self._findings.look_at_sum(self._index, shard)
        held[:] = [held[0].add_(shard) if held else shard.clone()]
        shard.zero_()

    def _exchange(self, shard: Tensor) -> None:
        is_packed, held = self._numel == shard.numel(), self._held
        buffer = shard if is_packed else torch.empty(self._numel, dtype=shard.dtype, device=shard.device)

        def fill() -> None:
            if held:
                shard.add_(held.pop())
            self._findings.look_at_sum(self._index, shard)
            for source, target in self._pairs(shard, buffer):
                if not is_packed:
                    target.copy_(source)

        def take() -> None:
            for target, source in self._pairs(shard, buffer):
                target.copy_(source)

        self._submitter.submit(self._group.name, "the reduced gradients", fill)
        self._receive(
            ReadyBucket(
                index=self._index,
                names=self._names,
                shapes=self._shapes,
                buffer=buffer,
                last=False,
                finish=(lambda: None) if is_packed else take,
                filled=False,
            )
        )

    def _refuse(self) -> None:
        harm = "so that replicas would mix up parameters"  # torch does not say of which there are any
        raise describe_part(self._group.name, self._changed(), harm, "leave replicas out of the plan")

    def _pairs(self, shard: Tensor, buffer: Tensor) -> list[tuple[Tensor, Tensor]]:
        numels = [stop - start for start, stop in self._spans]
        return [
            (shard[start:stop], part) for (start, stop), part in zip(self._spans, buffer.split(numels), strict=True)
        ]
