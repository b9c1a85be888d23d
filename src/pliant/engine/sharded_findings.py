"""Findings in a pass of a sharded model, named by rank, group and parameter, and raised on all ranks."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import IntEnum

import torch
from torch import Tensor

from pliant.accelerator import current_stream, is_accelerator, pinned
from pliant.codecs import first_nonfinite, nonfinite_place
from pliant.comm.base import Comm
from pliant.engine.gradient_exchange import NonFiniteGradientError
from pliant.engine.rank_checks import gather_numbers
from pliant.layouts.shards import Column

__all__ = ["DeviceShardFindings", "FindingKind", "HostShardFindings", "ShardFindings", "shard_findings"]

_CPU = torch.device("cpu")

Groups = Sequence[tuple[str, Sequence[Column]]]
"""Name and columns of each parameter group, the same on all ranks."""


class FindingKind(IntEnum):
    """Kind of what was found in a group; of two the greater one says more."""

    NOTHING = 0
    SUM = 1
    """A sum of gradients that is not finite; some of them lie elsewhere."""
    GRADIENT = 2
    """A gradient of this rank that is not finite."""
    WEIGHTS = 3
    """Weights that were changed since they were gathered."""


class ShardFindings(ABC):
    """Findings in the parameter groups of a sharded model, of which all ranks hear after a backward pass.

    Args:
        groups: Groups of the model.
        comm: All ranks that train the model; it carries tensors of the host.
        raises: Whether a gradient that is not finite is an error.

    """

    is_late = False
    """Whether findings become known only after the pass, before the optimizer's step."""
    compares = False
    """Whether gathered weights were compared with those before, and what was found is not known yet."""

    def __init__(self, groups: Groups, comm: Comm, *, raises: bool) -> None:
        self.groups, self._comm, self._raises = groups, comm, raises

    @property
    def gathers(self) -> bool:
        """Whether ranks tell each other what they have found, the same on all."""
        return self._raises

    @abstractmethod
    def look_at_gradients(self, group: int, rows: Tensor, at: int | None = None) -> None:
        """Look at this rank's gradients of a group, (size, row_numel); if one is not finite, all of them become NaN.

        So codecs keep nothing of them. Without `at`, the place is that in a row.
        """

    @abstractmethod
    def look_at_sum(self, group: int, shard: Tensor) -> None:
        """Look at the reduced gradients of a group, (row_numel,)."""

    @abstractmethod
    def compare_weights(self, group: int, before: int | Tensor, now: int | Tensor) -> None:
        """Compare the hashes of weights that must not have changed.

        Raises:
            RuntimeError: They have; on accelerators all ranks raise it after the pass.

        """

    @abstractmethod
    def take(self) -> list[list[int]]:
        """Return number of the kind and place for each group, and forget them. Runs in the communication thread."""

    def gather(self) -> Exception | None:
        """Return what all ranks raise; None if nothing is wrong. Collective: 24 bytes from each rank.

        Runs in the communication thread, when all exchanges of the pass are done.
        """
        found = self.take()
        first = max(range(len(found)), key=lambda k: found[k][0])
        mine = [found[first][0], first, found[first][1]]
        rows = gather_numbers(mine, self._comm, _CPU) if self._comm.size > 1 else [mine]
        worst = max(kind for kind, _, _ in rows)
        if worst == FindingKind.NOTHING:
            return None
        culprits = [(rank, group, at) for rank, (kind, group, at) in enumerate(rows) if kind == worst]
        if worst == FindingKind.WEIGHTS:
            return _changed("; ".join(f"{self.groups[group][0]} (rank {rank})" for rank, group, _ in culprits))
        told = "; ".join(f"rank {rank}: {_named(*self.groups[group], at)}" for rank, group, at in culprits)
        if worst == FindingKind.SUM:
            told = f"in the sum of several ranks' gradients, that {told.replace('; ', ', ')} owns"
        return NonFiniteGradientError(
            f"a gradient is NaN or Inf ({told}). No weight was changed. Lower the learning rate or clip."
        )


class HostShardFindings(ShardFindings):
    """Findings on the CPU, where each is known at once."""

    def __init__(self, groups: Groups, comm: Comm, *, raises: bool) -> None:
        super().__init__(groups, comm, raises=raises)
        self._found = [[0, 0] for _ in groups]

    def look_at_gradients(self, group: int, rows: Tensor, at: int | None = None) -> None:
        if self._raises and (bad := first_nonfinite(rows.view(-1))) >= 0:
            self._note(group, FindingKind.GRADIENT, bad % rows.shape[1] if at is None else at)
            rows.fill_(torch.nan)

    def look_at_sum(self, group: int, shard: Tensor) -> None:
        if self._raises and (bad := first_nonfinite(shard)) >= 0:
            self._note(group, FindingKind.SUM, bad)

    def compare_weights(self, group: int, before: int | Tensor, now: int | Tensor) -> None:
        if before != now:
            raise _changed(self.groups[group][0])

    def take(self) -> list[list[int]]:
        found, self._found = self._found, [[0, 0] for _ in self.groups]
        return found

    def _note(self, group: int, kind: int, at: int) -> None:
        if self._found[group][0] < kind:
            self._found[group] = [kind, at]


class DeviceShardFindings(ShardFindings):
    """Findings on an accelerator, which stay there until the communication thread reads those of a pass at once.

    See Note [nobody waits for flags]. Gathers may have a thread of their own, so what they find is kept apart.

    Args:
        groups: Groups of the model.
        comm: All ranks that train the model; it carries tensors of the host.
        device: Device of the gradients.
        raises: Whether a gradient that is not finite is an error.

    """

    is_late = True

    def __init__(self, groups: Groups, comm: Comm, device: torch.device, *, raises: bool) -> None:
        super().__init__(groups, comm, raises=raises)
        self._device, self.compares = device, False
        self._found: dict[int, Tensor] = {}
        """Group -> kind and place, int64 (2,)."""
        self._are_changed: dict[int, Tensor] = {}
        """Group -> whether weights have changed, bool ()."""

    @property
    def gathers(self) -> bool:
        return self._raises or self.compares

    def look_at_gradients(self, group: int, rows: Tensor, at: int | None = None) -> None:
        if self._raises and rows.numel():
            bad = nonfinite_place(rows.view(-1))
            rows.masked_fill_(bad >= 0, torch.nan)
            self._note(
                group, FindingKind.GRADIENT, bad, bad % rows.shape[1] if at is None else torch.full_like(bad, at)
            )

    def look_at_sum(self, group: int, shard: Tensor) -> None:
        if self._raises and shard.numel():
            bad = nonfinite_place(shard)
            self._note(group, FindingKind.SUM, bad, bad)

    def compare_weights(self, group: int, before: int | Tensor, now: int | Tensor) -> None:
        self.compares = True
        if isinstance(before, Tensor) and isinstance(now, Tensor):
            changed = before != now
            self._are_changed[group] = changed | self._are_changed.get(group, changed)

    def take(self) -> list[list[int]]:
        nothing = torch.zeros(2, dtype=torch.int64, device=self._device)
        found, changed = self._found, self._are_changed
        self._found, self._are_changed = {}, {}
        rows = [found.get(k, nothing) for k in range(len(self.groups))]
        for k, flag in changed.items():
            rows[k] = torch.where(flag, torch.full_like(nothing, FindingKind.WEIGHTS), rows[k])
        copy = pinned((len(rows), 2), torch.int64, self._device)
        copy.copy_(torch.stack(rows), non_blocking=True)
        current_stream(self._device).record_event().synchronize()
        return copy.tolist()

    def _note(self, group: int, kind: int, bad: Tensor, at: Tensor) -> None:
        new = torch.stack([torch.full_like(at, kind), at])
        held = self._found.get(group)
        if held is None:
            held = torch.zeros_like(new)
        self._found[group] = torch.where((bad >= 0) & (held[0] < kind), new, held)


def shard_findings(groups: Groups, comm: Comm, device: torch.device, *, raises: bool) -> ShardFindings:
    """Return the findings for gradients on a device."""
    if is_accelerator(device):
        return DeviceShardFindings(groups, comm, device, raises=raises)
    return HostShardFindings(groups, comm, raises=raises)


def _named(group: str, columns: Sequence[Column], at: int) -> str:
    name = next((column.name for column in reversed(columns) if column.offset <= at), "?")
    return f"{group}, parameter {name}"


def _changed(groups: str) -> RuntimeError:
    return RuntimeError(
        f"weights of {groups} were changed since they were gathered, but not by a step of the run's optimizers or by a "
        "load; call run.weights_changed() after writing them, or let them be gathered again (regather=True)."
    )
