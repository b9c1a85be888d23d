"""Which parameters lay in which bucket, as one tensor in a checkpoint."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

__all__ = ["check_layout", "layout_tensor", "read_layout"]


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
    """Return what lay in each bucket, in order; None if some parameters lay in none yet."""
    buckets: dict[int, list[tuple[int, str]]] = {}
    for name, (bucket, place) in zip(names, layout.tolist(), strict=True):
        buckets.setdefault(bucket, []).append((place, name))
    if -1 in buckets:
        return None
    return {bucket: tuple(name for _, name in sorted(held)) for bucket, held in buckets.items()}


def _count(rows: Sequence[tuple[int, int]], bucket: int) -> int:
    return sum(b == bucket for b, _ in rows)
