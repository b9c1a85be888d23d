"""Mean in a codec's payloads: by owners of equal parts, or by the schedule of a comm."""

from collections.abc import Callable, Generator
from functools import cached_property, partial
from typing import Protocol

import torch
from torch import Tensor

from pliant.codecs import Codec
from pliant.collectives.compressed import CompressedAverage
from pliant.comm.base import Comm
from pliant.schedules.choice import ScheduleChoice, SumKind
from pliant.schedules.coded import ScheduledCodedAverage
from pliant.schedules.dense import dense_task, owners_s
from pliant.schedules.scheduled_comm import ScheduledComm

__all__ = ["coded_average"]


class _Average(Protocol):
    def __call__(self, x: Tensor, seed: int, residual: Tensor | None = None) -> None: ...
    def stages(self, x: Tensor, seed: int, residual: Tensor | None = None) -> Generator[None]: ...


def coded_average(
    codec: Codec,
    numel: int,
    comm: Comm,
    *,
    chunk_bytes: int,
    owner_feedback: bool,
    device: torch.device,
    may_forward: bool = False,
) -> _Average:
    """Return a mean in codes: a `CompressedAverage`, or what the schedules of a `ScheduledComm` say.

    Args:
        codec: Any codec; biased ones should be used with a residual.
        numel: Elements of each vector.
        comm: Ranks to average over; a `ScheduledComm` where sums may go by a schedule.
        chunk_bytes: Uncompressed bytes of a piece, where owners add up.
        owner_feedback: Whether owners, or the roots of trees, keep the error of the mean as well.
        device: Device of the buffers.
        may_forward: Whether payloads may come to owners by way of other ranks.

    """
    by_owners = partial(
        CompressedAverage,
        codec,
        numel,
        chunk_bytes=chunk_bytes,
        owner_feedback=owner_feedback,
        device=device,
        may_forward=may_forward,
    )
    if not isinstance(comm, ScheduledComm) or comm.size == 1:
        return by_owners(comm)
    plain, num_bytes = comm.choice.comm, codec.nbytes(numel)
    kind = SumKind(
        name=f"{numel} {codec} {owner_feedback}",
        task=dense_task(num_bytes, plain.size),
        device=device,
        without_s=partial(owners_s, num_bytes),
        make=lambda schedule: (
            ScheduledCodedAverage(schedule, codec, numel, plain, owner_feedback=owner_feedback, device=device).stages
        ),
    )
    return _ChosenAverage(comm.choice, kind, lambda: by_owners(plain))


class _ChosenAverage:
    """Mean by owners until a choice has a schedule; residuals mean the same both ways."""

    def __init__(self, choice: ScheduleChoice, kind: SumKind, make_owners: Callable[[], _Average]) -> None:
        self._choice, self._kind, self._make_owners = choice, kind, make_owners

    @cached_property
    def _by_owners(self) -> _Average:
        return self._make_owners()

    def __call__(self, x: Tensor, seed: int, residual: Tensor | None = None) -> None:
        """Replace x, float32 (numel,), by the mean over ranks; see `CompressedAverage`."""
        for _ in self.stages(x, seed, residual):
            pass

    def stages(self, x: Tensor, seed: int, residual: Tensor | None = None) -> Generator[None]:
        """Do the same in the stages of its way."""
        way = self._choice.way(self._kind) or self._by_owners.stages
        yield from self._choice.in_turn(self._kind, way(x, seed, residual))
