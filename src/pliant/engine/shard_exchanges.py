"""Exchanges of a model's shards under a plan, on all its parameter groups."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from pliant.collectives.scratch import Scratch
from pliant.comm.base import duplicate
from pliant.comm.recorded import without_counting
from pliant.engine.comm_thread import CommThread
from pliant.engine.parts import Part
from pliant.engine.same_structure import require_same_structure
from pliant.engine.shard_groups import GroupGather, GroupScatter, UngatheredError
from pliant.engine.shard_layout import columns_of
from pliant.engine.shard_memory import describe_kept, nodes_of_shards
from pliant.engine.sharded_findings import shard_findings
from pliant.engine.sharded_model import ShardedModel
from pliant.engine.tracer import Tracer
from pliant.spec import Exchange

__all__ = ["ShardExchanges", "shard_exchanges"]


class ShardExchanges(Part):
    """Reduce-scatters and gathers of a sharded model under one plan, with what they keep.

    Note [two queues]: in backward the next module's weights must not wait behind the gradients of the one before,
    whether they are gathered again or decoded from what forward has received. So gathers have a group and a thread of
    their own. Both queues have one order on all ranks, that of the program.

    Args:
        model: Its parameter groups.
        nodes: Parameter -> node of the plan, of those that are trained.
        tracer: Tracer of the run.
        checks: Whether gradients that are not finite are refused.

    """

    key = "shards"
    checks_structure = True

    def __init__(self, model: ShardedModel, nodes: Mapping[str, Exchange], tracer: Tracer, *, checks: bool) -> None:
        self._nodes = nodes_of_shards(nodes)
        self._model, self.changes = model, [0] * len(model.groups)
        """Moments so far at which weights may have changed, of each parameter group."""
        self._group_of = {id(p): k for k, group in enumerate(model.groups) for p in group.parameters}
        self._device = next(iter(model.shards.values())).device
        self._scratch = Scratch(self._device)
        self.gathering: list[CommThread] = []
        """Thread of the gathers, unless they are torch's own (Note [two queues])."""
        self._gather_comm, self._gather_scratch = model.shard_comm, self._scratch
        if model.shard_comm.size > 1 and any(node.weights is not None for node in self._nodes.values()):
            self._gather_comm, self._gather_scratch = duplicate(model.shard_comm), Scratch(self._device)
            self.gathering = [CommThread(self._device, "pliant-gathers", tracer)]
        columns = [columns_of(group, model.names_of(group), model.num_shards, model.shards) for group in model.groups]
        groups = [(group.name, own) for group, own in zip(model.groups, columns, strict=True)]
        # Replicas whose gradients stay with them are at steps, or at a pace, of their own, and tell each other nothing.
        told = model.shard_comm if all(node.leaves_gradients(0) for node in nodes.values()) else tracer.comm
        self.findings = shard_findings(groups, without_counting(told), self._device, raises=checks)
        """What is wrong in a pass."""
        self.scatters = [self._scatter(k) for k in range(len(groups))]
        """For each parameter group; None leaves the reduce-scatter to torch."""
        self._waiting: list[Tensor | None] = [None] * len(self.scatters)
        """Debts of an earlier plan where reduce-scatters are now torch's own."""
        self.gathers = [self._gather(k) for k in range(len(groups))]
        """For each parameter group; None leaves the gather to torch."""

    def _scatter(self, index: int) -> GroupScatter | None:
        group, comm = self._model.groups[index], self._model.shard_comm
        names = self._model.names_of(group)
        found = {name: self._nodes[name].gradients for name in names if name in self._nodes}
        if comm.size == 1 or all(node is None for node in found.values()):
            return None
        columns = columns_of(group, names, comm.size, self._model.shards)  # also those that nobody here steps: exactly
        given = (columns, found, comm, self._scratch, self._device, self.findings)
        return GroupScatter(group.name, index, *given, lambda: self._model.changed_in(group))

    def _gather(self, index: int) -> GroupGather | None:
        group, comm = self._model.groups[index], self._gather_comm
        names = self._model.names_of(group)
        found = {name: self._nodes[name].weights for name in names if name in self._nodes}
        if comm.size == 1 or all(node is None for node in found.values()):
            return None
        columns = columns_of(group, names, comm.size, names)
        return GroupGather(group.name, index, columns, found, comm, self._gather_scratch, self._device, self.findings)

    def explain(self) -> str:
        """Say in a sentence what a rank keeps for its shards."""
        return describe_kept(self._model, self._nodes)

    # - Moments

    def optimizer_stepped(self, optimizer: Optimizer, step: int) -> None:
        """Note that weights have changed: its own alone, since in backward others are still to be gathered."""
        held = (id(p) for own in optimizer.param_groups for p in own["params"])
        for k in {self._group_of[key] for key in held if key in self._group_of}:
            self.changes[k] += 1

    def after_step(self, step: int) -> None:
        """Note that replicas may have exchanged weights."""
        self.changes = [count + 1 for count in self.changes]

    def after_load(self) -> None:
        """Take back gathered weights, since others were loaded or written: an evaluation leaves the root's gathered."""
        for k, group in enumerate(self._model.groups):
            self.changes[k] += 1
            with suppress(UngatheredError):  # nothing to take back
                group.reshard()

    def settle(self, step: int) -> None:
        """Wait for gathers that nobody has used yet."""
        for thread in self.gathering:
            thread.drain()

    def hand_back(self, step: int) -> None:
        """Finish gathers that nobody has used, as an evaluation may leave them: dropped here, another rank waits."""
        self.settle(step)

    def abandon(self) -> None:
        """Drop gathers in flight."""
        for thread in self.gathering:
            thread.stop()

    def close(self) -> None:
        """End the thread of the gathers, and close their group."""
        for thread in self.gathering:
            thread.close()
            self._gather_comm.close()

    def adopt(self, old: "ShardExchanges") -> None:
        """Take over the residuals of an earlier plan, for the next exchange."""
        self.owe(old.debts())

    def debts(self) -> list[Tensor | None]:
        """Return this rank's residual, (size, row_numel) for each group; copies."""
        return list(self._each_debt())

    def _each_debt(self) -> Iterator[Tensor | None]:
        """Yield the residual of one group after another, since all copies together are as large as the model."""
        for scatter, waiting in zip(self.scatters, self._waiting, strict=True):
            yield waiting if scatter is None else scatter.take_debts()

    def owe(self, debts: Sequence[Tensor | None]) -> None:
        """Add gradients of an earlier plan to the next exchange; they wait where reduce-scatters are torch's own."""
        self._waiting = [None if scatter else owed for scatter, owed in zip(self.scatters, debts, strict=True)]
        for scatter, owed in zip(self.scatters, debts, strict=True):
            if scatter is not None:
                scatter.owed = owed

    def drop_owed(self) -> None:
        """Forget the gradients that an earlier plan left."""
        self.owe([None] * len(self.scatters))

    def rescale(self, factor: float) -> None:
        """Scale residuals by the change of the loss scale."""
        for scatter, waiting in zip(self.scatters, self._waiting, strict=True):
            if scatter is not None:
                scatter.rescale(factor)
            if waiting is not None:
                waiting.mul_(factor)

    def stats(self) -> dict[str, float]:
        """Return the Euclidean norm of all residuals of this rank, and the time of gathers in their own thread."""
        owed = sum(float(each.norm()) ** 2 for each in self._each_debt() if each is not None) ** 0.5
        return {"residual_norm": owed, "exchange_s": sum(thread.busy_s for thread in self.gathering)}

    # - State

    @property
    def state(self) -> dict[str, Any]:
        """Tensors that are kept, by group; the mesh; the dimension and shape of each parameter, to be cut otherwise."""
        model, groups = self._model, dict[str, dict[str, Any]]()
        for k, (group, scatter, gather) in enumerate(zip(model.groups, self.scatters, self.gathers, strict=True)):
            owed = self._waiting[k] if scatter is None else scatter.owed
            kept = {} if scatter is None else dict[str, Any](scatter.state)
            kept |= {} if gather is None else gather.state(self.changes[k])
            if owed is not None:
                trained = [name for name in model.names_of(group) if name in model.shards]
                kept["owed"] = {"rows": owed, "of": {name: torch.tensor(k) for k, name in enumerate(trained)}}
            if kept:
                groups[group.name] = kept
        return {"mesh": torch.tensor(model.place), "cuts": model.cuts, "groups": groups}

    @state.setter
    def state(self, saved: Mapping[str, Any]) -> None:
        groups = [saved["groups"].get(group.name, {}) for group in self._model.groups]
        self.owe([kept["owed"]["rows"].to(self._device, copy=True) if "owed" in kept else None for kept in groups])
        for kept, scatter, gather, changes in zip(groups, self.scatters, self.gathers, self.changes, strict=True):
            if scatter is not None:
                scatter.load(kept)
            if gather is not None:
                gather.load(kept, changes)

    def check_state(self, saved: Any, step: int) -> None:
        """Raise ValueError for a state of another mesh, plan or model."""
        mine = self.state
        require_same_structure(saved["mesh"], mine["mesh"], f"{self.key} mesh")  # of another mesh all else differs too
        if saved["mesh"].tolist() != mine["mesh"].tolist():
            raise ValueError(
                f"the state was saved on a mesh of {_told(saved['mesh'])}, but this is one of {_told(mine['mesh'])}, "
                "or ranks have other places in it; load it on the same mesh, or convert it with pliant.resize()."
            )
        require_same_structure(_without_debts(saved), _without_debts(mine), self.key)
        for name, cut in mine["cuts"].items():
            if saved["cuts"][name].tolist() != cut.tolist():
                raise ValueError(f"the state's {name} is divided otherwise; load it into the model it was saved from.")


def _without_debts(state: Mapping[str, Any]) -> dict[str, Any]:
    groups = {name: {k: v for k, v in kept.items() if k != "owed"} for name, kept in state["groups"].items()}
    return {**state, "groups": {name: kept for name, kept in groups.items() if kept}}


def _told(mesh: Tensor) -> str:
    shard, num_shards, replica, num_replicas = mesh.tolist()
    return f"{num_replicas} x {num_shards} ranks (replica {replica}, shard {shard})"


def shard_exchanges(
    model: ShardedModel | None,
    nodes: Mapping[str, Exchange],
    before: Sequence[ShardExchanges],
    tracer: Tracer,
    *,
    checks: bool,
) -> list[ShardExchanges]:
    """Return the exchanges of a model's shards under a plan, with residuals of the plan before; none for a whole model.

    Args:
        model: The model; None if its parameters are whole.
        nodes: Parameter -> node of the plan.
        before: Exchanges of the plan before.
        tracer: Tracer of the run.
        checks: Whether gradients that are not finite are refused.

    """
    if model is None:
        return []
    made = ShardExchanges(model, nodes, tracer, checks=checks)
    for old in before:
        made.adopt(old)
    return [made]
