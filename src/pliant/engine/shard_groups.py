"""Reduce-scatter and all-gather of one parameter group, whose parameters may have different settings."""

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from pliant.accelerator import used_here
from pliant.codecs import all_finite, content_hash
from pliant.collectives.pairwise import mean_of_parts
from pliant.collectives.scratch import Scratch
from pliant.comm.base import Comm
from pliant.engine.shard_gather import shard_gather
from pliant.engine.shard_layout import PackedShards, exact_columns
from pliant.engine.shard_scatter import shard_scatter
from pliant.engine.sharded_findings import ShardFindings
from pliant.layouts.shards import Column
from pliant.spec import ReduceScatter, WeightGather

__all__ = ["GroupGather", "GroupScatter", "UngatheredError", "describe_part"]

V = TypeVar("V", ReduceScatter, WeightGather)


class UngatheredError(RuntimeError):
    """A pass wants weights that were not gathered, since a gather before has failed, of which somebody has heard."""


class GroupScatter:
    """The reduce-scatter of one parameter group.

    Args:
        name: Name of the group.
        index: Number of the group in the model.
        columns: Places of its parameters that get gradients.
        nodes: Parameter -> its setting in the plan; None is exact.
        comm: Ranks among which it is divided.
        scratch: Memory of the communication thread.
        device: Device of the buffers.
        findings: What is not finite.
        changed: Returns parameters that were frozen, or trained, only after the run began.

    """

    def __init__(
        self,
        name: str,
        index: int,
        columns: Sequence[Column],
        nodes: Mapping[str, ReduceScatter | None],
        comm: Comm,
        scratch: Scratch,
        device: torch.device,
        findings: ShardFindings,
        changed: Callable[[], Sequence[str]],
    ) -> None:
        self.name, self._index, self._findings, self._changed = name, index, findings, changed
        self._comm, self._scratch, self._device = comm, scratch, device
        self._row_numel = sum(column.padded for column in columns)
        divided = _divided(columns, nodes, ReduceScatter())
        self.wide = any(node.codec is not None for node, _ in divided)
        """Whether gradients are brought to float32 first."""
        packed = [(node, _packed(held, self._row_numel, comm, whole=not self.wide)) for node, held in divided]
        self._parts = [shard_scatter(node, shards, comm, scratch, device) for node, shards in packed]
        self._names = [_order_of(held) for _, held in divided]
        self.owed: Tensor | None = None
        """Residuals of an earlier plan, (size, row_numel), added to the next exchange."""

    def __call__(self, output: Tensor, rows: Tensor, seed: int) -> None:
        """Fill output, (row_numel,), with this rank's part of the mean of rows, (size, row_numel)."""
        if rows.shape[1] == self._row_numel:
            self._reduce(output, rows, seed)
        else:
            self._without_some(output, rows)
        used_here(rows)  # which torch lets go of as backward goes on, whatever this stream has still to do

    def _reduce(self, output: Tensor, rows: Tensor, seed: int) -> None:
        if self.owed is not None:
            rows.add_(self.owed)
            used_here(self.owed)
            self.owed = None
        self._findings.look_at_gradients(self._index, rows)
        seed |= zlib.crc32(self.name.encode())
        if self._row_numel and self.wide:
            output.zero_()  # what fills rows up
        for part in self._parts:
            part(rows, output, seed)
        self._findings.look_at_sum(self._index, output)

    def _without_some(self, output: Tensor, rows: Tensor) -> None:
        """Take the mean of what torch hands over where some parameters got no gradient: it does not say which."""
        if self.wide:
            harm = "so that error feedback would mix up parameters"
            raise describe_part(self.name, self._changed(), harm, "leave gradients exact")
        self._findings.look_at_gradients(self._index, rows, at=0)
        mean_of_parts(list(rows), output, self._comm, self._scratch)

    @property
    def state(self) -> dict[str, dict[str, Any]]:
        """Residuals, by number of part, with the parameters that each holds; live."""
        parts = zip(self._parts, self._names, strict=True)
        return {f"gradients {k}": {**part.state, "of": names} for k, (part, names) in enumerate(parts) if part.state}

    def load(self, saved: Mapping[str, Mapping[str, Any]]) -> None:
        """Put saved residuals back."""
        for key, part in self.state.items():
            for kind in part.keys() - {"of"}:
                part[kind].copy_(saved[key][kind])

    def rescale(self, factor: float) -> None:
        """Scale residuals by the change of the loss scale."""
        for part in self._parts:
            part.rescale(factor)
        if self.owed is not None:
            self.owed.mul_(factor)

    def take_debts(self) -> Tensor | None:
        """Return the residuals of this rank, (size, row_numel), or None if nothing is kept."""
        if self.owed is None and not any(part.state for part in self._parts):
            return None
        zeros = torch.zeros(self._comm.size, self._row_numel, dtype=torch.float32, device=self._device)
        rows = zeros if self.owed is None else self.owed.clone()
        for part in self._parts:
            part.owed(rows)
        return rows if all_finite(rows) else None


def describe_part(name: str, changed: Sequence[str], harm: str, otherwise: str) -> RuntimeError:
    """Return the error of a pass that has given gradients to other parameters of a group than were awaited.

    Args:
        name: Name of the group.
        changed: Parameters that were frozen, or trained, only after the run began.
        harm: What would come of it.
        otherwise: What else than telling torch to reduce all helps, if a pass has left some out.

    """
    if changed:
        return RuntimeError(
            f"of {name}, {', '.join(changed)} were frozen, or trained anew, after relax(), {harm}; close() the run and "
            "call relax() again, or leave them as they were."
        )
    return RuntimeError(
        f"a backward pass gave gradients to a part of {name} only, {harm}; call set_reduce_scatter_unused_params(True) "
        f"on the model, or {otherwise}."
    )


class GroupGather:
    """The gather of one parameter group's weights, which knows whether those that it has received are still right.

    Note [when gathered weights are stale]: version counters do not tell, since a step of a foreach optimizer moves none
    of them. What tells is a count of the moments at which weights may change: steps of the run's optimizers, loads,
    and exchanges of weights. A hash of the own shard makes sure of it.

    Args:
        name: Name of the group.
        index: Number of the group in the model.
        columns: Places of all its parameters.
        nodes: Parameter -> its setting in the plan; None is exact.
        comm: Ranks among which it is divided.
        scratch: Memory of the communication thread.
        device: Device of the buffers.
        findings: Weights that have changed since they were gathered.

    """

    def __init__(
        self,
        name: str,
        index: int,
        columns: Sequence[Column],
        nodes: Mapping[str, WeightGather | None],
        comm: Comm,
        scratch: Scratch,
        device: torch.device,
        findings: ShardFindings,
    ) -> None:
        self.name, self._index, self._rank, self._findings = name, index, comm.rank, findings
        row_numel = sum(column.padded for column in columns)
        divided = _divided(columns, nodes, WeightGather())
        exact = all(node.codec is None for node, _ in divided)
        packed = [(node, _packed(held, row_numel, comm, whole=exact)) for node, held in divided]
        self._parts = [(node.regather, shard_gather(node, s, comm, scratch, device)) for node, s in packed]
        self._names = [_order_of(held) for _, held in divided]
        self._of = -1
        """Count of changes when weights were last gathered; -1 before."""
        self._hash: int | Tensor = 0
        self._loaded = -1
        """Count of changes at which weights are those of the loaded copies; -1 if there are none."""

    def __call__(self, rows: Tensor, changes: int, seed: int) -> None:
        """Fill rows, (size, row_numel), of which this rank's own is there.

        Args:
            rows: Weights of all ranks.
            changes: Count of moments at which weights may have changed.
            seed: The same as long as they have not.

        """
        fresh = self._of != changes
        if not all(regathers for regathers, _ in self._parts):
            own = content_hash(rows[self._rank])
            if not fresh:
                self._findings.compare_weights(self._index, self._hash, own)
            self._hash = own
        seed |= zlib.crc32(self.name.encode())
        for regathers, part in self._parts:
            if changes == self._loaded:
                part.restore(rows, seed)
            elif fresh or regathers:
                part.gather(rows, seed)
            else:
                part.again(rows)
        self._of, self._loaded = changes, -1

    def state(self, changes: int) -> dict[str, dict[str, Any]]:
        """Return copies to which differences are taken, this rank's part, with the parameters that each holds.

        `begun` is 2 where a copy holds the weights of this count of changes already, as after an evaluation.
        """
        found: dict[str, dict[str, Any]] = {}
        for k, ((_, part), names) in enumerate(zip(self._parts, self._names, strict=True)):
            if state := part.state:
                holds = changes in (self._of, self._loaded)
                found[f"weights {k}"] = {**state, "begun": state["begun"] + int(holds), "of": names}
        return found

    def load(self, saved: Mapping[str, Mapping[str, Any]], changes: int) -> None:
        """Put back what was saved of the copies, at a count of changes."""
        self._of = self._loaded = -1
        for k, (_, part) in enumerate(self._parts):
            if state := part.state:
                part.state = {key: saved[f"weights {k}"][key] for key in state}
                self._loaded = changes if int(saved[f"weights {k}"]["begun"]) > 1 else -1


def _order_of(columns: Sequence[Column]) -> dict[str, Tensor]:
    """Return the place of each parameter in the order of some columns, in a form that checkpoints keep."""
    return {column.name: torch.tensor(k) for k, column in enumerate(columns)}


def _divided(columns: Sequence[Column], nodes: Mapping[str, V | None], exact: V) -> list[tuple[V, list[Column]]]:
    """Return each node with its columns, in the order of the first."""
    found: dict[V, list[Column]] = {}
    for column in columns:
        found.setdefault(nodes.get(column.name) or exact, []).append(column)
    return list(found.items())


def _packed(columns: Sequence[Column], row_numel: int, comm: Comm, *, whole: bool) -> PackedShards:
    return PackedShards(exact_columns(columns) if whole else columns, row_numel, comm.size, comm.rank)
