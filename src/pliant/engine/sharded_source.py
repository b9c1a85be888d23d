"""The front end of sharded models: FSDP2's gathers and reduce-scatters go through a run's communication thread."""

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

import torch
from torch import nn
from torch.optim import Optimizer

from pliant.comm.ddp_private import after_backward
from pliant.comm.fsdp_private import ParamGroup
from pliant.engine.comm_thread import CommThread, TaskHandle
from pliant.engine.hooks import Hook
from pliant.engine.nonfinite import Findings
from pliant.engine.parts import Part
from pliant.engine.shard_exchanges import ShardExchanges
from pliant.engine.shard_layout import columns_of
from pliant.engine.sharded_findings import ShardFindings
from pliant.engine.sharded_hooks import GatherHook, ReduceScatterHook, ReplicaHook, Submitter
from pliant.engine.sharded_model import ShardedModel
from pliant.engine.sources import GradientReceiver, GradientSource
from pliant.engine.tracer import Tracer
from pliant.engine.trial import PlanOnTrial
from pliant.spec import Exchange, Sharded, SyncPlan

__all__ = ["ShardedSource"]


class ShardedSource(GradientSource):
    """A model under fully_shard or replicate(), which hands its collectives over.

    Args:
        model: The model's parameter groups.
        module: The model itself.
        receiver: Counts passes, and exchanges gradients between replicas.
        comm_thread: Communication thread of all exchanges.
        tracer: Tracer of the waiting, with the comm.
        begins: A method, held weakly, that is called before each forward pass that is followed by a backward pass.
        trial: Keeper of the errors of a plan on trial.

    """

    def __init__(
        self,
        model: ShardedModel,
        module: nn.Module,
        receiver: GradientReceiver,
        comm_thread: CommThread,
        tracer: Tracer,
        begins: Callable[[], None],
        trial: PlanOnTrial,
    ) -> None:
        self._model, self._receiver, self._comm_thread, self._tracer = model, receiver, comm_thread, tracer
        self._begins, self._trial = weakref.WeakMethod(begins), trial
        self._hooks = [
            # Before torch gathers weights, since what is caught up with may be an exchange that changes them.
            module.register_forward_pre_hook(Hook(self._begin), prepend=True),
            *(each.register_load_state_dict_post_hook(Hook(self.weights_changed)) for each in _holders(module)),
        ]
        self._awaited = False
        """Whether the end of the backward pass that is under way will call us."""
        self._submitter = Submitter(comm_thread, receiver, self._begin_exchange)
        self._exchanges: ShardExchanges | None = None
        self._gathered: list[tuple[TaskHandle, list[Exception | None]]] = []
        """Findings of passes that all ranks tell each other."""
        self._has_told = False
        """Whether they have since the last step."""

    def begin_pass(self, drain: Callable[[], None]) -> None:
        """Forget a pass that was broken off."""
        if self._receiver.broken_off:
            drain()
            self._awaited, self._gathered = False, []
            self._receiver.forget()

    def put_in_force(
        self, plan: SyncPlan, nodes: Mapping[str, Exchange], *, differ: bool, parts: Sequence[Part] = ()
    ) -> None:
        """Follow a plan: gathers, reduce-scatters and replicas that it leaves out stay torch's."""
        self._exchanges = exchanges = next(part for part in parts if isinstance(part, ShardExchanges))
        threads = exchanges.gathering or [self._comm_thread]
        gathering = Submitter(threads[0], self._receiver, self._begin_exchange)
        relaxes_replicas = any(isinstance(node, Sharded) and node.replicas is not None for node in nodes.values())
        for k, group in enumerate(self._model.groups):
            gather, scatter = exchanges.gathers[k], exchanges.scatters[k]
            group.install(
                None if gather is None else GatherHook(group, gathering, gather, lambda k=k: exchanges.changes[k]),
                None if scatter is None else ReduceScatterHook(group, self._submitter, scatter),
                self._bucket(k, group, exchanges) if relaxes_replicas and self._model.has_replicas else None,
            )
        for k, (group, following) in enumerate(pairwise(self._model.groups), 1):
            # On CPU nothing is prefetched in forward unless somebody says so, and torch's own gathers block.
            group.prefetch(following if exchanges.gathers[k] is not None else None)
        self.weights_changed()  # to put a plan in force may have made replicas equal

    def weights_changed(self, *_: object) -> None:
        """Note that weights were written, so that gathered ones are not used again."""
        if self._exchanges is not None:
            self._exchanges.after_load()

    def rescale(self, factor: float) -> None:
        """Scale residuals of reduce-scatters by the change of the loss scale, before the next exchange."""
        if (exchanges := self._exchanges) is not None:
            self._comm_thread.submit(lambda: exchanges.rescale(factor))

    def close(self) -> None:
        """Leave an ordinary sharded model."""
        for hook in self._hooks:
            hook.remove()
        self._model.close()

    def _bucket(self, index: int, group: ParamGroup, exchanges: ShardExchanges) -> ReplicaHook:
        """Return what hands the reduced shards of a group over to replicas."""
        names, rank = self._model.names_of(group), self._model.shard_rank
        row = columns_of(group, names, self._model.num_shards, self._model.shards)
        columns = [column for column in row if column.valid[rank]]
        return ReplicaHook(
            group,
            self._submitter,
            tuple(column.name for column in columns),
            tuple(tuple(self._model.shards[column.name].shape) for column in columns),
            tuple((column.offset, column.offset + column.valid[rank]) for column in columns),
            sum(column.padded for column in row),
            index,
            self._receiver.receive,
            exchanges.findings,
            lambda: self._model.changed_in(group),
        )

    def _begin(self, *_: object) -> None:
        if torch.is_grad_enabled() and (begins := self._begins()) is not None:
            begins()

    def _begin_exchange(self) -> None:
        self._receiver.begin()
        if not self._awaited:
            self._awaited = True
            after_backward(self._end_backward)

    def _end_backward(self) -> None:
        """Wait until all gradients of this pass are there, and raise what has gone wrong, on all ranks alike."""
        self._awaited = False
        with self._trial.catch_errors(), self._tracer.record_wait():
            self._comm_thread.drain()
        self._receiver.pop_error()  # of some replicas only: what they have found is in what all gather here
        findings = None if self._exchanges is None else self._exchanges.findings
        if findings is not None and findings.gathers:
            self._tell(findings)
        self._receiver.complete()
        self._receiver.broken_off = False
        if findings is not None and not findings.is_late and (refused := self._pop_gathered()) is not None:
            with self._trial.catch_errors():
                raise refused

    def before_step(self, optimizer: Optimizer, step: int) -> None:
        """Raise what gathers have found, where no pass has handed over gradients and would have told of it."""
        findings = None if self._exchanges is None else self._exchanges.findings
        tells = self._awaited or self._has_told
        if findings is not None and findings.is_late and findings.compares and not tells:
            self._tell(findings)
            if (refused := self._pop_gathered()) is not None:
                raise refused

    def after_step(self, step: int) -> None:
        """Note that all ranks have to tell each other again what they find."""
        self._has_told = False

    def _tell(self, findings: ShardFindings) -> None:
        found: list[Exception | None] = []
        gather = findings.gather
        self._gathered.append((self._comm_thread.submit(lambda: found.append(gather())), found))
        self._has_told = True

    def pop_late_error(self, findings: Findings) -> Exception | None:
        """Return what all ranks have told each other since; some replicas' own findings are in it."""
        refused = self._pop_gathered()
        findings.pop_late_error()
        return refused

    def _pop_gathered(self) -> Exception | None:
        gathered, self._gathered = self._gathered, []
        for handle, _ in gathered:
            handle.wait()
        return next((error for _, found in gathered for error in found if error is not None), None)


def _holders(module: nn.Module) -> Iterator[nn.Module]:
    """Yield a module and those inside it that have parameters themselves, since parts may be loaded alone."""
    yield module
    yield from (each for each in module.modules() if each is not module and [*each.parameters(recurse=False)])
