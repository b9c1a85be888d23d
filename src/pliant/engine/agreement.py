"""Do the ranks still agree? On the weights, by a cheap hash of each parameter, and on what they have done."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from pliant.codecs import tensor_hash
from pliant.comm.base import Comm
from pliant.comm.recorded import without_counting
from pliant.engine.comm_thread import CommThread
from pliant.engine.rank_checks import describe_failure, gather_numbers, majority_of, name_ranks
from pliant.engine.step_counts import LEAVING, StepCounts, describe_difference

__all__ = ["ReplicaCheck", "ReplicasDisagreeError", "check_replicas", "parameter_hashes"]

_EARLY = (1, 2, 4, 8)


class ReplicasDisagreeError(RuntimeError):
    """Ranks differ in what must be equal; the message names the first parameter, or what was done, and the ranks."""


class ReplicaCheck:
    """Checks early, at the first, second, fourth and eighth step, and then now and then, in the comm thread.

    Whether it is time is decided by steps counted here, which all ranks count alike even if one believes that it is at
    another step: else one would wait for a message that nobody sends.

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
        """Count from here: something has changed for all ranks, such as a state that was loaded."""
        self._steps = self._exchanges = self._checked_at = 0

    def after_step(self, equal: Mapping[str, Tensor], counts: StepCounts, comm_thread: CommThread) -> None:
        """Compare what must be equal, if it is time. Without weights that must, nothing holds ranks at one step."""
        self._steps += 1
        if not equal or not self._is_on or not (self._steps in _EARLY or self._steps % self._every == 0):
            return
        mine, device = parameter_hashes(equal), next(iter(equal.values())).device

        def check() -> None:
            check_replicas(list(equal), mine, counts, self._comm, device, counts.step)
            self.last_step = counts.step

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
        *,
        free: bool,
    ) -> None:
        """Compare what ranks have done that exchange weights, in the comm thread of that, after an exchange, if it is
        time.

        Args:
            counts: Says what was done; asked in the comm thread.
            step: Made so far.
            comm_thread: Where weights are exchanged.
            comm: Who exchanges them.
            device: Where they are.
            free: Whether steps are each rank's own, so that only exchanges are counted alike.

        """
        self._exchanges += 1
        now = self._exchanges if free else step
        if not self._is_on or not (self._exchanges in _EARLY or now - self._checked_at >= self._every):
            return
        self._checked_at = now

        def check() -> None:
            with describe_failure(f"comparing what ranks have done after step {step}"):
                rows = gather_numbers(counts().row(), without_counting(comm), device)
            _check_counts(rows)

        handle = comm_thread.submit(check)
        if self._exchanges in _EARLY and not free:
            handle.wait()

    @property
    def _is_on(self) -> bool:
        return bool(self._every) and self._comm.size > 1

    def at_end(self, parameters: Mapping[str, Tensor], step: int) -> None:
        """Compare all parameters of a run that ends, with the comm thread drained; unless nobody wants checks.
        Collective.
        """
        if self._is_on:
            device = next(iter(parameters.values())).device
            check_replicas(list(parameters), parameter_hashes(parameters), StepCounts(), self._comm, device, step)
            self.last_step = step


def parameter_hashes(parameters: Mapping[str, Tensor]) -> Tensor:
    """Return one 63-bit hash per parameter, int64 (num_parameters,), on the CPU."""
    mask = (1 << 63) - 1
    return torch.tensor([tensor_hash(p.detach()) & mask for p in parameters.values()], dtype=torch.int64)


def check_replicas(
    names: list[str], mine: Tensor, counts: StepCounts, comm: Comm, device: torch.device, step: int
) -> None:
    """Compare over ranks what was done and what came of it: 48 bytes from each; all fingerprints only if those differ.

    Nothing is to be equal while a rank waits for all to leave a plan.

    Raises:
        ReplicasDisagreeError: On every rank, if any parameter differs anywhere, or ranks have not done the same.

    """
    total = int((mine * torch.arange(1, 2 * mine.numel(), 2)).sum())  # wraps around
    with describe_failure(f"comparing replicas after step {step}"):
        rows = gather_numbers([*counts.row(), total], comm, device)
        _check_counts([row[:-1] for row in rows])
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


def _check_counts(rows: list[list[int]]) -> None:
    if LEAVING.row() not in rows and (told := describe_difference(rows)):
        raise ReplicasDisagreeError(
            f"ranks have not done the same: {told}. What they exchange belongs to different moments of training; "
            "let every rank load a state of the same step, and make the same calls in the same steps."
        )
