"""Layout of buckets as one tensor in a checkpoint, and its use after a resume."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pliant.algorithms.base import Deferred
from pliant.engine.ddp_hook import ReadyBucket
from pliant.engine.gradient_exchange import GradientExchange

__all__ = ["SavedLayout", "check_layout", "layout_tensor", "read_layout"]


@dataclass(frozen=True, kw_only=True)
class SavedLayout:
    """Buckets of a saved run, used in the first backward passes after a resume.

    A new DDP begins with provisional buckets and rebuilds them after one pass, or two if its graph is static. Codecs
    cut at bucket borders, so passes would differ from the uninterrupted ones; here gradients are gathered into the
    saved buckets first.
    """

    buckets: Mapping[int, tuple[str, ...]]

    def run(
        self, buckets: Sequence[ReadyBucket], gradients: GradientExchange, *, step: int, num_backwards: int
    ) -> list[tuple[str, Deferred]]:
        """Exchange the gradients, bucket by saved bucket; return deferred work."""
        deferred: list[tuple[str, Deferred]] = []
        pieces: dict[str, Tensor] = {}
        shapes: dict[str, tuple[int, ...]] = {}
        for ready in buckets:
            at = 0
            if ready.buffer.is_sparse:
                pieces[ready.names[0]], shapes[ready.names[0]] = ready.buffer, ready.shapes[0]
                continue
            for name, shape in zip(ready.names, ready.shapes, strict=True):
                numel = torch.Size(shape).numel()
                pieces[name], shapes[name] = ready.buffer[at : at + numel], shape
                at += numel
        for index, names in sorted(self.buckets.items()):
            own = [pieces[name] for name in names]
            buffer = own[0] if own[0].is_sparse else torch.cat(own)  # (bucket numel,)
            bucket = gradients.layout_of(index, names, [shapes[name] for name in names], buffer)
            deferred += gradients.run(
                bucket, buffer, gradients.check_finite(bucket, buffer), step=step, num_backwards=num_backwards
            )
            if not buffer.is_sparse:
                for piece, result in zip(own, buffer.split([x.numel() for x in own]), strict=True):
                    piece.copy_(result)
        return deferred


def layout_tensor(layout: Mapping[int, Sequence[str]], names: Sequence[str]) -> Tensor:
    """Return int64 (num_parameters, 2): bucket, and place in it; -1 before the first exchange."""
    place = {name: (b, k) for b, held in layout.items() for k, name in enumerate(held)}
    return torch.tensor([place.get(name, (-1, -1)) for name in names], dtype=torch.int64).view(-1, 2)


def check_layout(layout: Tensor) -> None:
    """Raise ValueError unless buckets are 0, 1, ..., and so are the places in each; -1 twice for no bucket."""
    rows: list[tuple[int, int]] = [(bucket, place) for bucket, place in layout.tolist() if (bucket, place) != (-1, -1)]
    buckets = {bucket for bucket, _ in rows}
    whole = len(rows) == len(layout) and buckets == set(range(len(buckets)))
    places = all(sorted(p for b, p in rows if b == bucket) == list(range(_count(rows, bucket))) for bucket in buckets)
    if not places or min(buckets, default=0) < 0 or not (whole or len(rows) < len(layout)):
        raise ValueError(
            "the state is damaged: its layout must number buckets, and the parameters in each, 0, 1 and so on, but is "
            f"{layout.tolist()[:8]}; load another checkpoint."
        )


def read_layout(layout: Tensor, names: Sequence[str]) -> dict[int, tuple[str, ...]] | None:
    """Return the parameters of each bucket, in order; None if some were in none yet."""
    buckets: dict[int, list[tuple[int, str]]] = {}
    for name, (bucket, place) in zip(names, layout.tolist(), strict=True):
        buckets.setdefault(bucket, []).append((place, name))
    if -1 in buckets:
        return None
    return {bucket: tuple(name for _, name in sorted(held)) for bucket, held in buckets.items()}


def _count(rows: Sequence[tuple[int, int]], bucket: int) -> int:
    return sum(b == bucket for b, _ in rows)
