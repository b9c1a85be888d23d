"""Gradients of sharded models that are not finite: named by rank, group and parameter, and raised on all ranks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from pliant.comm.base import Comm
from pliant.engine.gradient_exchange import NonFiniteGradientError
from pliant.engine.rank_checks import gather_numbers
from pliant.layouts.shards import Column

__all__ = ["FINITE", "Finding", "NonFiniteKind", "gather_findings"]

NonFiniteKind = Literal["", "gradient", "sum"]
"""Nothing; a gradient of this rank; a sum on this rank, of gradients some of which lie elsewhere."""
_KINDS: tuple[NonFiniteKind, ...] = get_args(NonFiniteKind)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Kind and place of what is not finite in one group: where in a row of it."""

    kind: NonFiniteKind = ""
    at: int = 0


FINITE = Finding()
"""Finding of a group in which all is finite."""


def gather_findings(
    findings: Sequence[Finding], groups: Sequence[tuple[str, Sequence[Column]]], comm: Comm, device: torch.device
) -> NonFiniteGradientError | None:
    """Return what all ranks raise; None if gradients are finite everywhere. Collective: 24 bytes from each rank.

    Args:
        findings: Findings of this rank, one for each group.
        groups: Name and columns of each, the same on all ranks.
        comm: All ranks that train the model.
        device: Device of the numbers that are exchanged.

    """
    worst = [k for kind in ("gradient", "sum") for k, each in enumerate(findings) if each.kind == kind]
    mine = [0, 0, 0] if not worst else [_KINDS.index(findings[worst[0]].kind), worst[0], findings[worst[0]].at]
    rows = gather_numbers(mine, comm, device)
    culprits = [row for row in enumerate(rows) if _KINDS[row[1][0]] == "gradient"]
    culprits = culprits or [row for row in enumerate(rows) if _KINDS[row[1][0]] == "sum"]
    if not culprits:
        return None
    told = "; ".join(f"rank {rank}: {_named(*groups[group], at)}" for rank, (_, group, at) in culprits)
    if _KINDS[culprits[0][1][0]] == "sum":
        told = f"in the sum of several ranks' gradients, that {told.replace('; ', ', ')} owns"
    return NonFiniteGradientError(
        f"a gradient is NaN or Inf ({told}). No weight was changed. Lower the learning rate or clip."
    )


def _named(group: str, columns: Sequence[Column], at: int) -> str:
    name = next((column.name for column in reversed(columns) if column.offset <= at), "?")
    return f"{group}, parameter {name}"
