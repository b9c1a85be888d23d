"""Comparison of replicas: a hash of each parameter, and counts of what each rank has done."""

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from pliant.codecs import tensor_hash
from pliant.comm.base import Comm
from pliant.comm.recorded import without_counting
from pliant.engine.comm_thread import CommThread
from pliant.engine.rank_checks import describe_failure, gather_numbers, majority_of, name_ranks
from pliant.engine.step_counts import LEAVING, StepCounts, describe_difference

__all__ = ["ReplicaCheck", "ReplicasDisagreeError", "check_counts", "check_replicas", "tensor_hashes"]

_EARLY = (1, 2, 4, 8)


class ReplicasDisagreeError(RuntimeError):
    """Ranks differ in what must be equal; the message names the first parameter, or what was done, and the ranks."""


class ReplicaCheck:
    """Checks that replicas are equal at the steps 1, 2, 4 and 8, and then at intervals, in the communication thread.

    A check is due by steps counted here, which all ranks count alike even if one believes that it is at another step.
    Otherwise one rank would wait for a message that nobody sends.

    Args:
        every: Steps between two checks; 0 for never, also in the beginning.
        comm: Of the run. Checks are no part of what it counts.

    """

    def __init__(self, every: int, comm: Comm) -> None:
        self._every, self._comm = every, without_counting(comm)
        self.last_step = -1
        """The last step after which replicas were found equal; -1 before the first check."""
        self.begin()

    def begin(self) -> None:
        """Count from here, since something has changed on all ranks, such as a loaded state."""
        self._steps = self._exchanges = self._checked_at = 0

    def after_step(
        self, equal: Callable[[], Mapping[str, Tensor]], counts: Callable[[], StepCounts], comm_thread: CommThread
    ) -> None:
        """Compare parameters and counts, if a check is due; without parameters that must be equal, do nothing.

        Args:
            equal: Returns the parameters that must be equal; called, as `counts` is, if a check is due.
            counts: Returns the counts.
            comm_thread: Communication thread of the gradients.

        """
        self._steps += 1
        if not self._is_on or not (self._steps in _EARLY or self._steps % self._every == 0) or not (held := equal()):
            return
        mine, device, told = tensor_hashes(held.values()), next(iter(held.values())).device, counts()

        def check() -> None:
            check_replicas(list(held), mine, told, self._comm, device, told.step)
            self.last_step = told.step

        handle = comm_thread.submit(check)
        if self._steps in _EARLY:
            handle.wait()  # so that all ranks raise in this very step, and none meets the end of another first

    def after_exchange(
        self,
        counts: Callable[[], StepCounts],
        step: int,
        comm_thread: CommThread,
        comm: Comm,
        device: torch.device,
    ) -> None:
        """Compare the counts of ranks that exchange weights, after an exchange, if a check is due.

        Args:
            counts: Returns the counts; called in the communication thread.
            step: Steps made so far.
            comm_thread: Communication thread of the weights.
            comm: Comm of the weights.
            device: Device of the weights.

        """
        self._exchanges += 1
        if not self._is_on or not (self._exchanges in _EARLY or step - self._checked_at >= self._every):
            return
        self._checked_at = step

        def check() -> None:
            with describe_failure(f"comparing what ranks have done after step {step}"):
                rows = gather_numbers(counts().row(), without_counting(comm), device)
            check_counts(rows)

        handle = comm_thread.submit(check)
        if self._exchanges in _EARLY:
            handle.wait()

    @property
    def _is_on(self) -> bool:
        return bool(self._every) and self._comm.size > 1

    def at_end(self, parameters: Mapping[str, Tensor], step: int) -> None:
        """Compare all parameters when a run ends, with nothing in flight, unless checks are off. Collective."""
        if self._is_on:
            device = next(iter(parameters.values())).device
            check_replicas(list(parameters), tensor_hashes(parameters.values()), StepCounts(), self._comm, device, step)
            self.last_step = step


def tensor_hashes(tensors: Iterable[Tensor]) -> Tensor:
    """Return one 63-bit hash per tensor, int64 (num_tensors,), on the CPU."""
    mask = (1 << 63) - 1
    return torch.tensor([tensor_hash(x.detach()) & mask for x in tensors], dtype=torch.int64)


def check_replicas(
    names: list[str], mine: Tensor, counts: StepCounts, comm: Comm, device: torch.device, step: int
) -> None:
    """Compare counts and results over ranks: 48 bytes from each, and all hashes only if those differ.

    A rank that waits for all to leave a failed plan is not compared.

    Raises:
        ReplicasDisagreeError: On every rank, if any parameter differs anywhere, or ranks have not done the same.

    """
    total = int((mine * torch.arange(1, 2 * mine.numel(), 2)).sum())  # wraps around
    with describe_failure(f"comparing replicas after step {step}"):
        rows = gather_numbers([*counts.row(), total], comm, device)
        check_counts([row[:-1] for row in rows])
        if all(row[-1] == rows[0][-1] for row in rows) or any(row[:-1] == LEAVING.row() for row in rows):
            return
        table = torch.tensor(gather_numbers(mine.tolist(), comm, device), dtype=torch.int64)  # (size, num_parameters)
    differs = (table != table[0]).any(0)
    first, count = int(differs.nonzero()[0]), int(differs.sum())
    column: list[int] = table[:, first].tolist()
    odd = [rank for rank, value in enumerate(column) if value != majority_of(column)]
    raise ReplicasDisagreeError(
        f"after step {step} replicas differ in {count} of {len(names)} parameters, first {names[first]!r}, "
        f"on {name_ranks(odd)} against the majority. Something changed "
        "weights on one rank only (a model was called that is not run.model, an optimizer stepped that relax() was not "
        "given, a step that not all ranks took, unsynchronized randomness, faulty memory); "
        "restart from the last checkpoint, or pass agreement_every=0 if ranks are meant to differ."
    )


def check_counts(rows: list[list[int]]) -> None:
    """Raise ReplicasDisagreeError unless all ranks have the same counts, one row for each rank."""
    if LEAVING.row() not in rows and (told := describe_difference(rows)):
        raise ReplicasDisagreeError(
            f"ranks have not done the same: {told}. What they exchange belongs to different moments of training; "
            "let every rank load a state of the same step, and make the same calls in the same steps."
        )
