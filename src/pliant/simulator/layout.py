"""Layout of buckets: of gradients as torch's DDP makes them, and of weights as the engine does."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from pliant.layouts.division import weight_buckets
from pliant.layouts.parts import OwnedParts
from pliant.netmodel import BucketBatch
from pliant.simulator.sparse_rows import row_figures
from pliant.spec import Exchange, SyncPlan, TensorSpec, Timing, Workload, averaged_states

__all__ = [
    "GradientPart",
    "SimulatedWeights",
    "batch_of",
    "buckets_of",
    "distinct_nodes",
    "gradient_parts",
    "itemsize",
    "weight_parts",
]

_FIRST_BUCKET_BYTES = 1 << 20
"""DDP makes the first bucket small, so that exchanges begin early."""

_ITEMSIZES = MappingProxyType({"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2})


@dataclass(frozen=True, kw_only=True)
class GradientPart:
    """Tensors of one bucket of gradients that are synchronized alike."""

    node: Exchange
    bucket: int
    tensors: tuple[int, ...]
    """Places in workload.tensors."""
    ready_s: float
    """When DDP hands the bucket over, counted from the start of backward."""


@dataclass(frozen=True, kw_only=True)
class SimulatedWeights:
    """Tensors whose weights, or one of whose optimizer states, are exchanged together."""

    node: Exchange
    timing: Timing
    tensors: tuple[int, ...]
    first_due: int
    """Steps after which the first exchange is due; then every period."""
    label: str
    """What it is, in timelines."""
    beside_weights: bool = False
    """Whether weights due after the same step do not wait for it: a late state's has a thread of its own."""


def itemsize(tensor: TensorSpec) -> int:
    """Return the bytes of an element. Raises ValueError for a dtype that is no gradient's."""
    dtype = tensor.dtype.removeprefix("torch.")
    if dtype not in _ITEMSIZES:
        known = ", ".join(_ITEMSIZES)
        raise ValueError(f"the tensor {tensor.name!r} has dtype {tensor.dtype!r}, but gradients are one of {known}.")
    return _ITEMSIZES[dtype]


def distinct_nodes(nodes: Iterable[Exchange]) -> list[Exchange]:
    """Return each node once, in order; equal ones are one object already, and to compare those is quick."""
    return list({id(node): node for node in nodes}.values())


def buckets_of(plan: SyncPlan, workload: Workload, bucket_bytes: int) -> tuple[tuple[int, ...], ...]:
    """Return the places in workload.tensors of each bucket of gradients.

    DDP's, of the plan's size or of at most so many bytes; of a sharded model what a `fully_shard` call holds together.
    """
    if workload.is_sharded:
        groups: dict[str, list[int]] = {}
        for k, tensor in enumerate(workload.tensors):
            groups.setdefault(tensor.group, []).append(k)
        return tuple(map(tuple, sorted(groups.values(), key=lambda held: workload.tensors[held[-1]].ready_s)))
    first_bytes = plan.bucket_bytes or _FIRST_BUCKET_BYTES
    return tuple(map(tuple, _ddp_buckets(workload.tensors, first_bytes, plan.bucket_bytes or bucket_bytes)))


def gradient_parts(
    buckets: Sequence[Sequence[int]], nodes: Sequence[Exchange], workload: Workload
) -> list[GradientPart]:
    """Return the parts of all buckets, in the order in which they are exchanged."""
    parts: list[GradientPart] = []
    ready_s = 0.0
    for number, bucket in enumerate(buckets):
        ready_s = max(ready_s, max(workload.tensors[k].ready_s for k in bucket))  # buckets leave in their order
        alike: dict[int, list[int]] = {}
        for k in bucket:
            alike.setdefault(id(nodes[k]), []).append(k)
        parts += [
            GradientPart(node=nodes[held[0]], bucket=number, tensors=tuple(held), ready_s=ready_s)
            for held in alike.values()
        ]
    return parts


def weight_parts(nodes: Sequence[Exchange], workload: Workload) -> list[SimulatedWeights]:
    """Return the buckets of weights that are exchanged between steps, in the order of their exchanges.

    States of the optimizer, which travel in buckets like those of their weights, come first. Every tensor counts as one
    that has them: a workload does not say which optimizer steps it.
    """
    model_order = range(len(workload.tensors) - 1, -1, -1)  # gradients come from the last layer on
    parts: list[SimulatedWeights] = []
    states: list[SimulatedWeights] = []
    for node in distinct_nodes(nodes[k] for k in model_order if nodes[k].exchanges_weights):
        mine, timing = [k for k in model_order if nodes[k] is node], node.timing
        numels = [workload.tensors[k].numel for k in mine]
        averaged = averaged_states(node)
        for fragment, held in weight_buckets(numels, timing.fragments):
            first_due, tensors = -(-timing.period * (fragment + 1) // timing.fragments), tuple(mine[i] for i in held)
            label = f"weights {len(parts)}"
            parts.append(SimulatedWeights(node=node, timing=timing, tensors=tensors, first_due=first_due, label=label))
            states += [
                SimulatedWeights(
                    node=state.averaging,
                    timing=Timing(period=state.period, delay_steps=state.delay_steps),
                    tensors=tensors,
                    first_due=state.period - (timing.period - first_due) % state.period,
                    label=f"{state.name} of {label}",
                    beside_weights=state.delay_steps > 0,
                )
                for state in averaged
            ]
    return [*states, *parts]


def batch_of(
    workload: Workload, groups: Sequence[Sequence[int]], parts: Mapping[int, OwnedParts], num_ranks: int
) -> BucketBatch:
    """Return what several parts hold, so that they are counted together.

    Args:
        workload: The tensors.
        groups: Per part, places in workload.tensors.
        parts: Place in workload.tensors -> parts of the tensor; empty if none has owners.
        num_ranks: How many may own.

    """
    tensors = workload.tensors
    numel = np.array([sum(tensors[k].numel for k in group) for group in groups], dtype=np.float64)
    size = np.array([itemsize(tensors[group[0]]) for group in groups], dtype=np.float64)
    shapes = tuple(tuple(tensors[k].shape for k in group) for group in groups)
    if not parts:
        rows = np.array([row_figures(tensors[group[0]], itemsize(tensors[group[0]])) for group in groups])
        return BucketBatch(numel=numel, itemsize=size, shapes=shapes, rows=rows, num_shards=workload.num_shards)
    held, num_held = np.zeros((len(groups), num_ranks)), np.zeros((len(groups), num_ranks))
    for b, group in enumerate(groups):
        for k in group:
            joined = parts[k].joined
            held[b] += joined.per_rank(joined.numels, num_ranks)
            num_held[b] += joined.per_rank(np.ones(len(joined.owners)), num_ranks)
    return BucketBatch(numel=numel, itemsize=size, shapes=shapes, held=held, num_held=num_held)


def _ddp_buckets(tensors: Sequence[TensorSpec], first_bytes: int, bucket_bytes: int) -> list[list[int]]:
    """Group tensors in their order, by dtype: a bucket is full when it has reached its size, and no tensor is cut.

    Each tensor with sparse gradients has a bucket of its own.
    """
    full: list[list[int]] = []
    open_: dict[str, tuple[list[int], int, int]] = {}
    for k, tensor in enumerate(tensors):
        if tensor.sparse_rows:
            full.append([k])
            continue
        held, size, limit = open_.get(tensor.dtype, ([], 0, first_bytes))
        held.append(k)
        size += tensor.numel * itemsize(tensor)
        if size >= limit:
            full.append(held)
            open_[tensor.dtype] = ([], 0, bucket_bytes)
        else:
            open_[tensor.dtype] = (held, size, limit)
    return full + [held for held, _, _ in open_.values() if held]
