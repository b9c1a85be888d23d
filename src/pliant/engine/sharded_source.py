"""The front end of sharded models: FSDP2's gathers and reduce-scatters go through a run's communication thread."""

import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise

import torch
from torch import nn

from pliant.comm.base import Comm
from pliant.comm.fsdp_private import ParamGroup, after_backward
from pliant.comm.recorded import without_counting
from pliant.engine.comm_thread import CommThread
from pliant.engine.gradient_exchange import NonFinite, NonFiniteGradientError
from pliant.engine.hooks import Hook
from pliant.engine.parts import Part
from pliant.engine.shard_exchanges import ShardExchanges
from pliant.engine.shard_layout import columns_of
from pliant.engine.sharded_findings import FINITE, Finding, gather_findings
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
        nonfinite: Whether gradients that are not finite raise or propagate.
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
        nonfinite: NonFinite,
        trial: PlanOnTrial,
    ) -> None:
        self._model, self._receiver, self._comm_thread, self._tracer = model, receiver, comm_thread, tracer
        self._trial = trial
        self._begins, self._raises = weakref.WeakMethod(begins), nonfinite == "raise"
        self._comm: Comm = without_counting(tracer.comm)
        self._hooks = [
            module.register_forward_pre_hook(Hook(self._begin)),
            module.register_load_state_dict_post_hook(Hook(self.weights_changed)),
        ]
        self._awaited = False
        """Whether the end of the backward pass that is under way will call us."""
        self._submitter = Submitter(comm_thread, receiver, self._begin_exchange)
        self._exchanges: ShardExchanges | None = None
        self._of_replicas = [self._bucket(k, group) for k, group in enumerate(model.groups)]
        self._columns = [
            (group.name, columns_of(group, model.names_of(group), model.num_shards, model.shards))
            for group in model.groups
        ]

    def begin_pass(self, drain: Callable[[], None]) -> None:
        """Forget a pass that was broken off."""
        if self._receiver.broken_off:
            drain()
            self._awaited = False
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
                None if gather is None else GatherHook(group, gathering, gather, lambda: exchanges.changes),
                None if scatter is None else ReduceScatterHook(group, self._submitter, scatter),
                self._of_replicas[k] if relaxes_replicas and self._model.has_replicas else None,
            )
        for k, (group, following) in enumerate(pairwise(self._model.groups), 1):
            # On CPU nothing is prefetched in forward unless somebody says so, and torch's own gathers block.
            group.prefetch(following if exchanges.gathers[k] is not None else None)

    def weights_changed(self, *_: object) -> None:
        """Note that weights were written, so that gathered ones are not used again."""
        if self._exchanges is not None:
            self._exchanges.changes += 1

    def close(self) -> None:
        """Leave an ordinary sharded model."""
        for hook in self._hooks:
            hook.remove()
        self._model.close()

    def _bucket(self, index: int, group: ParamGroup) -> ReplicaHook:
        """Return what hands the reduced shards of a group over to replicas."""
        names, rank = self._model.names_of(group), self._model.shard_rank
        columns = [c for c in columns_of(group, names, self._model.num_shards, self._model.shards) if c.valid[rank]]
        return ReplicaHook(
            group,
            self._submitter,
            tuple(column.name for column in columns),
            tuple(tuple(self._model.shards[column.name].shape) for column in columns),
            tuple((column.offset, column.offset + column.valid[rank]) for column in columns),
            index,
            self._receiver.receive,
            checks=self._raises,
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
        refused = self._refusal() if self._raises else None
        self._receiver.complete()
        self._receiver.broken_off = False
        if refused is not None:
            with self._trial.catch_errors():
                raise refused

    def _refusal(self) -> NonFiniteGradientError | None:
        """Gather from all ranks which gradient was not finite. Collective."""
        self._receiver.pop_error()  # of some replicas only: what they have found is in what all gather here
        findings = list[Finding]()
        scatters = [None] * len(self._of_replicas) if self._exchanges is None else self._exchanges.scatters
        for hook, scatter in zip(self._of_replicas, scatters, strict=True):
            found = hook.finding if scatter is None or scatter.finding == FINITE else scatter.finding
            findings.append(found)
            hook.finding = FINITE
            if scatter is not None:
                scatter.finding = FINITE
        if self._comm.size == 1 and all(found == FINITE for found in findings):
            return None
        result: list[NonFiniteGradientError | None] = []
        gather = partial(gather_findings, findings, self._columns, self._comm, self._tracer.device)
        self._comm_thread.submit(lambda: result.append(gather())).wait()
        return result[0]
