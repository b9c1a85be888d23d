"""The front end of sharded models: FSDP2's gathers and reduce-scatters go through a run's communication thread."""

import weakref
from collections.abc import Callable, Mapping
from itertools import pairwise

import torch
from torch import Tensor, nn

from pliant.collectives.pairwise import gather_parts, mean_of_parts
from pliant.collectives.scratch import Scratch
from pliant.comm.fsdp_private import ParamGroup, after_backward
from pliant.engine.hooks import Hook
from pliant.engine.lane import CommThread
from pliant.engine.sharded_hooks import GatherHook, ReduceScatterHook, Submitter
from pliant.engine.sharded_model import ShardedModel
from pliant.engine.sources import GradientReceiver, GradientSource
from pliant.engine.tape import Tracer
from pliant.spec import Exchange, SyncPlan

__all__ = ["ShardedSource"]


class ShardedSource(GradientSource):
    """A model under fully_shard, which hands its collectives over.

    Args:
        model: The model's parameter groups.
        module: The model itself.
        receiver: Counts passes, and exchanges gradients between replicas.
        comm_thread: Where all is exchanged.
        tracer: Where waiting is noted.
        begins: A method, held weakly, that is called before each forward pass that is followed by a backward pass.

    """

    def __init__(
        self,
        model: ShardedModel,
        module: nn.Module,
        receiver: GradientReceiver,
        comm_thread: CommThread,
        tracer: Tracer,
        begins: Callable[[], None],
    ) -> None:
        self._model, self._receiver, self._comm_thread, self._tracer = model, receiver, comm_thread, tracer
        self._begins = weakref.WeakMethod(begins)
        self._hook = module.register_forward_pre_hook(Hook(self._begin))
        self._scratch = Scratch(tracer.device)
        self._awaited = False
        """Whether the end of the backward pass that is under way will call us."""
        self._submitter = Submitter(comm_thread, lambda: receiver.step, self._begin_exchange)
        for group in model.groups:
            self._install(group)
        for group, following in pairwise(model.groups):
            group.prefetch(following)  # on CPU nothing is prefetched in forward unless somebody says so

    def _install(self, group: ParamGroup) -> None:
        comm, scratch = self._model.shard_comm, self._scratch

        def average(output: Tensor, parts: Tensor, step: int) -> None:
            mean_of_parts(list(parts), output, comm, scratch)

        def gather(rows: Tensor) -> None:
            gather_parts(list(rows), comm)

        scatter = ReduceScatterHook(group, self._submitter, average, wide=False)
        group.install(GatherHook(group, self._submitter, gather), scatter, None)

    def begin_pass(self, drain: Callable[[], None]) -> None:
        """Forget a pass that was broken off."""
        if self._receiver.broken_off:
            drain()
            self._awaited = False
            self._receiver.forget()

    def require_carried(self, plan: SyncPlan) -> None:
        """Raise ValueError for a plan that is not carried out on shards."""

    def put_in_force(self, plan: SyncPlan, nodes: Mapping[str, Exchange], *, differ: bool) -> None:
        """Exchange as a plan has it."""

    def close(self) -> None:
        """Leave an ordinary sharded model."""
        self._hook.remove()
        self._model.close()

    def _begin(self, *_: object) -> None:
        if torch.is_grad_enabled() and (begins := self._begins()) is not None:
            begins()

    def _begin_exchange(self) -> None:
        self._receiver.begin()
        if not self._awaited:
            self._awaited = True
            after_backward(self._end_backward)

    def _end_backward(self) -> None:
        """Wait until all gradients of this pass are there, and raise what has gone wrong."""
        self._awaited = False
        with self._tracer.waiting():
            self._comm_thread.drain()
        self._receiver.complete()
        if (refused := self._receiver.end_pass()) is not None:
            raise refused
