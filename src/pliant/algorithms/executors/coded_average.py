"""Mean in a codec's payloads: by owners of equal parts, or by the schedule of a comm."""

import time
from functools import cached_property, partial
from typing import Protocol

import torch
from torch import Tensor

from pliant.codecs import Codec
from pliant.collectives.compressed import CompressedAverage
from pliant.comm.base import Comm
from pliant.schedules.choice import ScheduleChoice, SumKind
from pliant.schedules.coded import ScheduledCodedAverage
from pliant.schedules.dense import owners_s
from pliant.schedules.scheduled_comm import ScheduledComm

__all__ = ["coded_average"]


class _Average(Protocol):
    def __call__(self, x: Tensor, seed: int, residual: Tensor | None = None) -> None: ...


def coded_average(
    codec: Codec, numel: int, comm: Comm, *, chunk_bytes: int, owner_feedback: bool, device: torch.device
) -> _Average:
    """Return a mean in codes: a `CompressedAverage`, or what the schedules of a `ScheduledComm` say.

    Args:
        codec: Any codec; biased ones should be used with a residual.
        numel: Elements of each vector.
        comm: Ranks to average over; a `ScheduledComm` where sums may go by a schedule.
        chunk_bytes: Uncompressed bytes of a piece, where owners add up.
        owner_feedback: Whether owners, or the roots of trees, keep the error of the mean as well.
        device: Device of the buffers.

    """
    if isinstance(comm, ScheduledComm) and comm.size > 1:
        return _ChosenAverage(codec, numel, comm.choice, chunk_bytes, device, owner_feedback=owner_feedback)
    return CompressedAverage(codec, numel, comm, chunk_bytes=chunk_bytes, owner_feedback=owner_feedback, device=device)


class _ChosenAverage:
    """Mean by owners until the comm's choice has a schedule; residuals mean the same both ways."""

    def __init__(
        self,
        codec: Codec,
        numel: int,
        choice: ScheduleChoice,
        chunk_bytes: int,
        device: torch.device,
        *,
        owner_feedback: bool,
    ) -> None:
        self._choice, comm = choice, choice.comm
        self._make_owners = partial(
            CompressedAverage, codec, numel, comm, chunk_bytes=chunk_bytes, owner_feedback=owner_feedback, device=device
        )
        num_bytes = codec.nbytes(numel)
        self._kind = SumKind(
            name=f"{numel} {codec} {owner_feedback}",
            num_bytes=num_bytes,
            device=device,
            without_s=partial(owners_s, num_bytes),
            make=lambda schedule: ScheduledCodedAverage(
                schedule, codec, numel, comm, owner_feedback=owner_feedback, device=device
            ),
        )

    @cached_property
    def _by_owners(self) -> _Average:
        return self._make_owners()

    def __call__(self, x: Tensor, seed: int, residual: Tensor | None = None) -> None:
        """Replace x, float32 (numel,), by the mean over ranks; see `CompressedAverage`."""
        by_schedule = self._choice.way(self._kind)
        start_s = time.perf_counter()
        (by_schedule or self._by_owners)(x, seed, residual)
        self._choice.note(self._kind, start_s)
