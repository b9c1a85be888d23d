"""Do the replicas still agree? A cheap hash of every parameter, exchanged every N steps."""

from collections import Counter
from collections.abc import Mapping

import torch
from torch import Tensor

from pliant.codecs import tensor_hash
from pliant.comm.base import Comm
from pliant.engine.lane import Lane

__all__ = ["Agreement", "ReplicasDisagreeError", "check_agreement", "fingerprints"]


class ReplicasDisagreeError(RuntimeError):
    """Parameters that must be equal on all ranks are not; the message names the first one and the ranks."""


class Agreement:
    """Checks replicas now and then, in the lane.

    Args:
        every: Steps between two checks; 0 for never.
        comm: Of the run.

    """

    def __init__(self, every: int, comm: Comm) -> None:
        self._every, self._comm = every, comm
        self.last_step = -1
        """The last step after which replicas were found equal; -1 before the first check."""

    def after_step(self, equal: Mapping[str, Tensor], step: int, lane: Lane) -> None:
        """Compare what must be equal, if it is time."""
        if not equal or not self._every or step % self._every or self._comm.size == 1:
            return
        mine, device = fingerprints(equal), next(iter(equal.values())).device

        def check() -> None:
            check_agreement(list(equal), mine, self._comm, device, step)
            self.last_step = step

        lane.submit(check)


def fingerprints(parameters: Mapping[str, Tensor]) -> Tensor:
    """Return one 63-bit hash per parameter, int64 (num_parameters,), on the CPU."""
    mask = (1 << 63) - 1
    return torch.tensor([tensor_hash(p.detach()) & mask for p in parameters.values()], dtype=torch.int64)


def check_agreement(names: list[str], mine: Tensor, comm: Comm, device: torch.device, step: int) -> None:
    """Compare fingerprints over ranks: 8 bytes from each, and all of them only if those differ.

    Raises:
        ReplicasDisagreeError: On every rank, if any parameter differs anywhere.

    """
    total = (mine * torch.arange(1, 2 * mine.numel(), 2)).sum().reshape(1).to(device)  # (1,), wraps around
    totals = torch.empty(comm.size, dtype=torch.int64, device=device)
    comm.all_gather(totals, total).wait()
    if bool((totals == totals[0]).all()):
        return
    table = torch.empty(comm.size * mine.numel(), dtype=torch.int64, device=device)
    comm.all_gather(table, mine.to(device)).wait()
    rows = table.view(comm.size, -1).cpu()  # (size, num_parameters)
    differs = (rows != rows[0]).any(0)
    first, count = int(differs.nonzero()[0]), int(differs.sum())
    column: list[int] = rows[:, first].tolist()
    most_common = Counter(column).most_common(1)[0][0]
    odd = [rank for rank, value in enumerate(column) if value != most_common]
    raise ReplicasDisagreeError(
        f"after step {step} replicas differ in {count} of {len(names)} parameters, first {names[first]!r}, "
        f"on rank{'s' if len(odd) > 1 else ''} {', '.join(map(str, odd))} against the majority. Something changed "
        "weights on one rank only (unsynchronized randomness, a step that not all ranks took, faulty memory); "
        "restart from the last checkpoint, or pass agreement_every=0 if ranks are meant to differ."
    )
