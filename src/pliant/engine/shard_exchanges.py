"""Exchanges of a model's shards under a plan, on all its parameter groups."""

from collections.abc import Mapping, Sequence

from torch import Tensor
from torch.optim import Optimizer

from pliant.collectives.scratch import Scratch
from pliant.comm.fsdp_private import ParamGroup
from pliant.engine.parts import Part
from pliant.engine.shard_groups import GroupGather, GroupScatter
from pliant.engine.shard_layout import columns_of
from pliant.engine.sharded_model import ShardedModel
from pliant.layouts.shards import gather_state_bytes, scatter_state_bytes
from pliant.spec import Exchange, Sharded

__all__ = ["ShardExchanges", "shard_exchanges"]


class ShardExchanges(Part):
    """Reduce-scatters and gathers of a sharded model under one plan, with what they keep.

    Args:
        model: Its parameter groups.
        nodes: Parameter -> node of the plan, of those that are trained.
        checks: Whether gradients that are not finite are refused.

    Raises:
        ValueError: More has to be kept than the plan allows; nothing has been allocated then.

    """

    key = "shards"

    def __init__(self, model: ShardedModel, nodes: Mapping[str, Exchange], *, checks: bool) -> None:
        self._nodes = {name: node for name, node in nodes.items() if isinstance(node, Sharded)}
        self._model, self.changes = model, 0
        """Moments so far at which weights may have changed."""
        self._refuse_too_large()
        self._device = next(iter(model.shards.values())).device
        self._scratch = Scratch(self._device)
        self.scatters = [self._scatter(group, checks=checks) for group in model.groups]
        """For each parameter group; None leaves the reduce-scatter to torch."""
        self.gathers = [self._gather(group) for group in model.groups]
        """For each parameter group; None leaves the gather to torch."""

    def _scatter(self, group: ParamGroup, *, checks: bool) -> GroupScatter | None:
        names, comm = self._model.names_of(group), self._model.shard_comm
        found = {name: self._nodes[name].gradients for name in names if name in self._nodes}
        if comm.size == 1 or all(node is None for node in found.values()):
            return None
        columns = columns_of(group, names, comm.size, found)
        return GroupScatter(group.name, columns, found, comm, self._scratch, self._device, checks=checks)

    def _gather(self, group: ParamGroup) -> GroupGather | None:
        names, comm = self._model.names_of(group), self._model.shard_comm
        found = {name: self._nodes[name].weights for name in names if name in self._nodes}
        if comm.size == 1 or all(node is None for node in found.values()):
            return None
        columns = columns_of(group, names, comm.size, names)
        return GroupGather(group.name, columns, found, comm, self._scratch, self._device)

    # - Memory

    def bytes_by_kind(self) -> dict[str, int]:
        """Return what a rank keeps: residuals of gradients, and payloads and copies of weights."""
        kept = {"gradients": 0, "weights": 0}
        for group in self._model.groups:
            itemsize = max(dtype.itemsize for dtype in group.gathered_dtypes)
            names, size = self._model.names_of(group), self._model.shard_comm.size
            for column in columns_of(group, names, size, self._nodes) if size > 1 else []:
                node = self._nodes[column.name]
                kept["gradients"] += scatter_state_bytes(node.gradients, sum(column.valid))
                kept["weights"] += gather_state_bytes(node.weights, column.valid, itemsize)
        return kept

    def explain(self) -> str:
        """Say in a sentence what a rank keeps for its shards."""
        kept = self.bytes_by_kind()
        return (
            f"Shards: each of {self._model.num_shards} ranks keeps {kept['gradients'] / 1e6:.3g} MB of residuals of "
            f"gradients, and {kept['weights'] / 1e6:.3g} MB of payloads and copies of weights."
        )

    def _refuse_too_large(self) -> None:
        limits = [node.limit_bytes for node in self._nodes.values() if node.limit_bytes]
        kept = self.bytes_by_kind()
        if limits and sum(kept.values()) > min(limits):
            raise ValueError(
                f"the plan keeps {kept['gradients']} bytes of residuals of gradients and {kept['weights']} of payloads "
                f"and copies of weights on each rank, but limit_bytes is {min(limits)}; use residual='int8' or 'none', "
                "weights without differences, a larger limit, or a mesh with replicas."
            )

    # - Moments

    def optimizer_stepped(self, optimizer: Optimizer, step: int) -> None:
        """Note that weights have changed."""
        self.changes += 1

    def after_step(self, step: int) -> None:
        """Note that replicas may have exchanged weights."""
        self.changes += 1

    def after_load(self) -> None:
        """Note that weights were loaded."""
        self.changes += 1

    def adopt(self, old: "ShardExchanges") -> None:
        """Take over the residuals of an earlier plan, for the next exchange, and the count of changes."""
        self.changes = old.changes + 1
        for mine, theirs in zip(self.scatters, old.scatters, strict=True):
            if mine is not None and theirs is not None:
                mine.owed = theirs.take_debts()

    def stats(self) -> dict[str, float]:
        """Return the Euclidean norm of all residuals of this rank."""
        owed = sum(each.norm() ** 2 for each in self.scatters if each is not None) ** 0.5
        return {"residual_norm": owed}

    # - State

    @property
    def state(self) -> dict[str, dict[str, Tensor]]:
        """Residuals and copies, by group."""
        found: dict[str, dict[str, Tensor]] = {}
        for group, scatter, gather in zip(self._model.groups, self.scatters, self.gathers, strict=True):
            kept = {} if scatter is None else {f"gradients {key}": value for key, value in scatter.state.items()}
            kept |= {} if gather is None else {f"weights {key}": value for key, value in gather.state.items()}
            if kept:
                found[group.name] = kept
        return found

    @state.setter
    def state(self, saved: Mapping[str, Mapping[str, Tensor]]) -> None:
        for group, scatter, gather in zip(self._model.groups, self.scatters, self.gathers, strict=True):
            kept = saved.get(group.name, {})
            if scatter is not None:
                scatter.load({key.removeprefix("gradients "): value for key, value in kept.items()})
            if gather is not None:
                gather.load({key.removeprefix("weights "): value for key, value in kept.items()})


def shard_exchanges(
    model: ShardedModel | None, nodes: Mapping[str, Exchange], before: Sequence[ShardExchanges], *, checks: bool
) -> list[ShardExchanges]:
    """Return the exchanges of a model's shards under a plan, with residuals of the plan before; none for a whole model.

    Args:
        model: The model; None if its parameters are whole.
        nodes: Parameter -> node of the plan.
        before: Exchanges of the plan before.
        checks: Whether gradients that are not finite are refused.

    """
    if model is None:
        return []
    made = ShardExchanges(model, nodes, checks=checks)
    for old in before:
        made.adopt(old)
    return [made]
