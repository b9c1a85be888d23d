# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false
"""Layout of DDP's buckets: parts of a flat buffer with the same node of the plan."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from pliant.accelerator import is_accelerator, used_here
from pliant.algorithms.base import AcceptsPrescaled, Algorithm, State
from pliant.buckets import Bucket, Span, spans_of
from pliant.comm.base import Comm
from pliant.engine.algorithm_state import AlgorithmState
from pliant.engine.comms import Comms
from pliant.engine.undo import Undo
from pliant.spec import Custom, DecoupledMomentum, Exchange, Timing

__all__ = ["BucketLayout", "BucketPart", "split_bucket"]


@dataclass(kw_only=True)
class BucketPart:
    """Parameters of one DDP bucket with the same node.

    Note [who owns a bucket's buffer]: one thread at a time may touch it.

    - DDP's buffer is DDP's until its hook is called. Then it is the communication thread's, until the task has called
      `finish`, which gives it back to DDP as the gradient.
    - `bucket.flat` is a slice of DDP's buffer, or a copy. It is the algorithm's during `on_ready`, and no longer.
      Deferred work may use the state and buffers of its own (`Algorithm.prepare`), never `bucket.flat`.
    - A bucket of weights is the run's own. The training thread loads it and submits a task. The communication thread
      has it to the end of that task. The training thread stores it after waiting for the task's handle.
    - State tensors are the communication thread's as long as a task is queued. Other threads touch them after a drain.
    """

    node: Exchange
    bucket: Bucket
    algorithm: Algorithm
    comm: Comm
    state: State
    runs: tuple[tuple[int, int], ...]
    """Half-open ranges of the DDP buffer that hold the part, in the order of the bucket."""
    undo: Undo
    copies: bool
    """Whether the part is gathered or converted, as it does not lie in DDP's buffer as the algorithm needs it."""

    @cached_property
    def acts_alone(self) -> bool:
        """Whether the algorithm changes something even with a single rank."""
        of_its_own = any(isinstance(node, Custom | DecoupledMomentum) for node in self.node.walk())
        return self.node.kind != "gradients" or of_its_own

    def timing_at(self, step: int) -> Timing:
        """Return the cached timing in a step; nodes build it on every access."""
        early, later = self._timings
        return early if step < later.until_step else later

    @cached_property
    def _timings(self) -> tuple[Timing, Timing]:
        return self.node.early_timing, self.node.timing

    def load(self, buffer: Tensor) -> None:
        """Point bucket.flat at this step's gradients; buffer is DDP's, (bucket numel,)."""
        runs, flat = self._runs_of(buffer), self.bucket.flat
        if not self.copies:
            (self.bucket.flat,) = runs
            return
        if flat.is_meta:
            flat = self.bucket.flat = torch.empty(self.bucket.numel, dtype=flat.dtype, device=buffer.device)
        torch._foreach_copy_(flat.split(self._lengths), runs)  # one launch for many

    def save(self, buffer: Tensor) -> None:
        """Copy the result to DDP's buffer, unless it is there, and let go of that."""
        if self.copies:
            torch._foreach_copy_(self._runs_of(buffer), self.bucket.flat.split(self._lengths))
            used_here(self.bucket.flat)
        self.let_go()

    def let_go(self) -> None:
        """Hold nothing of DDP's buffer until the next `load`: when DDP lays buckets out anew, it frees the old ones.

        A copy stays on a CPU. On an accelerator it goes, since the allocator there has such memory at hand: so there
        are as many as exchanges in flight.
        """
        flat = self.bucket.flat
        if not self.copies or is_accelerator(flat.device):
            self.bucket.flat = _nothing(self.bucket.numel, flat.dtype)

    def _runs_of(self, buffer: Tensor) -> list[Tensor]:
        return [buffer[start:stop] for start, stop in self.runs]

    @cached_property
    def _lengths(self) -> list[int]:
        return [stop - start for start, stop in self.runs]


@dataclass(frozen=True, kw_only=True)
class BucketLayout:
    """A DDP bucket, split into parts by node."""

    index: int
    """Place among the buckets of a pass, the same on all ranks."""
    spans: tuple[Span, ...]
    """Places of all parameters of the bucket in DDP's buffer."""
    nodes: tuple[Exchange, ...]
    """Nodes of its parameters, in the order of the first parameter of each."""
    parts: tuple[BucketPart, ...]
    """Parts, one for each node; empty where the gradient is sparse."""
    prescaled: bool
    """Whether all parts accept gradients already divided by the number of ranks."""

    def keeps_local(self, step: int) -> bool:
        """Say whether all gradients stay with their rank in this step, because weights are exchanged instead."""
        return all(node.leaves_gradients(step) for node in self.nodes)

    @property
    def name(self) -> str:
        """Name in errors and timelines."""
        return f"bucket {self.index}"

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

    `like` is the DDP buffer, whose dtype and device decide whether a copy in float32 is needed. If it is sparse, it is
    the gradient of one parameter, and no algorithm works on it.
    """
    whole = spans_of(names, shapes)
    nodes = tuple(dict.fromkeys(store.nodes[name] for name in names))
    if like.is_sparse:
        return BucketLayout(index=index, spans=whole, nodes=nodes, parts=(), prescaled=False)
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
        copies = len(runs) > 1 or dtype != like.dtype
        algorithm, comm = store.algorithms[node], comms.of(node)
        own_spans = spans_of([s.name for s in spans], [s.shape for s in spans])
        bucket = Bucket(
            name=f"bucket {index}" + (f" part {k}" if len(nodes) > 1 else ""),
            spans=own_spans,
            parts=store.parts_in(own_spans),
            weights=tuple(store.parameters[s.name] for s in spans),
            flat=torch.empty((), dtype=dtype, device=like.device).expand(numel),  # what it is like, without its memory
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
                copies=copies,
            )
        )
        parts[-1].bucket.flat = _nothing(numel, dtype)
    prescaled = all(isinstance(p.algorithm, AcceptsPrescaled) and not p.node.weights_may_diverge for p in parts)
    return BucketLayout(index=index, spans=whole, nodes=nodes, parts=tuple(parts), prescaled=prescaled)


def _nothing(numel: int, dtype: torch.dtype) -> Tensor:
    return torch.empty(numel, dtype=dtype, device="meta")


def _merge(ranges: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    merged: list[tuple[int, int]] = []
    for start, stop in ranges:
        if merged and merged[-1][1] == start:
            merged[-1] = (merged[-1][0], stop)
        else:
            merged.append((start, stop))
    return tuple(merged)
