"""From DDP's buckets to ours: the parts of a flat buffer that share a node of the plan."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from pliant.algorithms.base import AcceptsPrescaled, Algorithm, State
from pliant.buckets import Bucket, Span, spans_of
from pliant.comm.base import Comm
from pliant.engine.algorithm_state import AlgorithmState
from pliant.engine.comms import Comms
from pliant.engine.undo import Undo
from pliant.spec import Custom, Exchange, Timing

__all__ = ["BucketLayout", "BucketPart", "split_bucket"]


@dataclass(kw_only=True)
class BucketPart:
    """Parameters of one DDP bucket that are synchronized alike."""

    node: Exchange
    bucket: Bucket
    algorithm: Algorithm
    comm: Comm
    state: State
    runs: tuple[tuple[int, int], ...]
    """Half-open ranges of the DDP buffer that hold the part, in the order of the bucket."""
    undo: Undo
    staging: Tensor | None
    """(numel,) where the part is gathered or converted; None when it is worked on inside DDP's buffer."""

    @cached_property
    def acts_alone(self) -> bool:
        """Whether a single rank has something to do."""
        return self.node.kind != "gradients" or any(isinstance(node, Custom) for node in self.node.walk())

    def timing_at(self, step: int) -> Timing:
        """Return the timing in a step; the nodes would make it anew each time."""
        early, later = self._timings
        return early if step < later.until_step else later

    @cached_property
    def _timings(self) -> tuple[Timing, Timing]:
        return self.node.early_timing, self.node.timing

    def load(self, buffer: Tensor) -> None:
        """Point bucket.flat at this step's gradients; buffer is DDP's, (bucket numel,)."""
        if self.staging is None:
            start, stop = self.runs[0]
            self.bucket.flat = buffer[start:stop]
            return
        at = 0
        for start, stop in self.runs:
            self.staging[at : at + stop - start].copy_(buffer[start:stop])
            at += stop - start

    def save(self, buffer: Tensor) -> None:
        """Copy the result back, if it is not there already."""
        if self.staging is None:
            return
        at = 0
        for start, stop in self.runs:
            buffer[start:stop].copy_(self.staging[at : at + stop - start])
            at += stop - start


@dataclass(frozen=True, kw_only=True)
class BucketLayout:
    """A DDP bucket, split by node."""

    name: str
    spans: tuple[Span, ...]
    """All parameters of the bucket, where they lie in DDP's buffer."""
    nodes: tuple[Exchange, ...]
    """Of its parameters, in the order of the first of each."""
    parts: tuple[BucketPart, ...]
    """One for each node; none where the gradient is sparse."""
    prescaled: bool
    """Whether all parts can begin with gradients that were divided by the number of ranks."""

    def keeps_local(self, step: int) -> bool:
        """Say whether all gradients stay with their rank in this step, because weights are exchanged instead."""
        return all(node.leaves_gradients(step) for node in self.nodes)

    @property
    def names(self) -> tuple[str, ...]:
        """All parameters of the bucket, in order."""
        return tuple(span.name for span in self.spans)

    def name_at(self, index: int) -> str:
        """Return the parameter that owns element `index` of DDP's buffer."""
        return next(s.name for s in self.spans if s.offset <= index < s.offset + s.numel)


def split_bucket(
    index: int,
    names: Sequence[str],
    shapes: Sequence[tuple[int, ...]],
    like: Tensor,
    store: AlgorithmState,
    comms: Comms,
) -> BucketLayout:
    """Split a DDP bucket into parts by node, in the order of their first parameter, and prepare each.

    `like` is the DDP buffer, whose dtype and device decide whether a float32 staging buffer is needed. A sparse one is
    a gradient, of one parameter, that no algorithm works on.
    """
    whole = spans_of(names, shapes)
    nodes = tuple(dict.fromkeys(store.nodes[name] for name in names))
    if like.is_sparse:
        return BucketLayout(name=f"bucket {index}", spans=whole, nodes=nodes, parts=(), prescaled=False)
    if (numel := sum(span.numel for span in whole)) != like.numel():
        raise RuntimeError(
            f"bucket {index} has {like.numel()} elements, but its parameters {names[0]!r} .. {names[-1]!r} have "
            f"{numel}, so that part of it would not be exchanged; please report this to Pliant with these names."
        )
    parts: list[BucketPart] = []
    for k, node in enumerate(nodes):
        spans = [span for span in whole if store.nodes[span.name] == node]
        runs = _merge([(span.offset, span.offset + span.numel) for span in spans])
        numel = sum(stop - start for start, stop in runs)
        dtype = torch.float32 if node.works_in_float32 else like.dtype
        direct = len(runs) == 1 and dtype == like.dtype
        staging = None if direct else torch.empty(numel, dtype=dtype, device=like.device)
        algorithm, comm = store.algorithms[node], comms.of(node)
        bucket = Bucket(
            name=f"bucket {index}" + (f" part {k}" if len(nodes) > 1 else ""),
            spans=spans_of([s.name for s in spans], [s.shape for s in spans]),
            weights=tuple(store.parameters[s.name] for s in spans),
            flat=torch.empty(numel, dtype=dtype, device=like.device) if staging is None else staging,
        )
        state = store.state_of(bucket)
        if not node.leaves_gradients(0) or node.timing.until_step:  # otherwise gradients stay where they are
            state = replace(state, workspace=algorithm.prepare(bucket, comm))
        parts.append(
            BucketPart(
                node=node,
                bucket=bucket,
                algorithm=algorithm,
                comm=comm,
                state=state,
                runs=runs,
                undo=Undo(node, state),
                staging=staging,
            )
        )
    prescaled = all(isinstance(p.algorithm, AcceptsPrescaled) and not p.node.weights_may_diverge for p in parts)
    return BucketLayout(name=f"bucket {index}", spans=whole, nodes=nodes, parts=tuple(parts), prescaled=prescaled)


def _merge(ranges: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    merged: list[tuple[int, int]] = []
    for start, stop in ranges:
        if merged and merged[-1][1] == start:
            merged[-1] = (merged[-1][0], stop)
        else:
            merged.append((start, stop))
    return tuple(merged)
