"""The arms of a cell: TorchRec's shardings, a plain row-wise all-to-all, and Pliant's placement with its runners-up."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from jobs import ARMS, PLIANT, TORCHREC, Job
from pliant_arms import PliantBags, hot_of
from steps import Arm
from torch import Tensor
from torchrec_arms import EPS, KINDS, TorchRecBags

from pliant.comm import Comm
from pliant.recsys.frequencies.rows import Frequencies
from pliant.recsys.placement.place import place_tables
from pliant.recsys.placement.problem import PlacementLimits
from pliant.recsys.placement.rates import Rates
from pliant.spec import EmbeddingPlan, Table, TableLayout, Topology
from pliant.spec.embedding import RowOptimizer

_ANY_BYTES = 1e15


@dataclass(frozen=True, kw_only=True)
class Given:
    """What all arms have in common."""

    job: Job
    topology: Topology
    comm: Comm
    bytes_per_s: float
    """Of the links for which arms are placed."""
    memory_bytes: float
    frequencies: Frequencies
    """Of the rows, by the law of the data."""
    rates: Rates
    """Of the machine, for Pliant's planner."""
    dense_sample_s: float
    """Of the dense part, for each sample."""
    weights: Callable[[int, int, int], Tensor]
    """Table, first and last column -> its rows (num_rows, columns), the same for all arms."""

    @property
    def tables(self) -> tuple[Table, ...]:
        """The tables' records."""
        return tuple(Table(name=f"t{t}", num_rows=rows, dim=self.job.dim) for t, rows in enumerate(self.job.num_rows))


def initial(job: Job) -> Callable[[int, int, int], Tensor]:
    """Return the rows that all arms begin with: uniform in +-1 / sqrt(rows), by table and seed."""

    def weights(table: int, first: int, last: int) -> Tensor:
        generator = torch.Generator().manual_seed(1000 * job.seed + table)
        rows = job.num_rows[table]
        x = torch.rand(rows, job.dim, generator=generator)
        return x.mul_(2).sub_(1).mul_(rows**-0.5)[:, first:last]

    return weights


def made(name: str, given: Given) -> Arm:
    """Return an arm. Collective.

    Raises:
        ValueError: Nobody knows it, or it does not fit the limit of memory.

    """
    if name in TORCHREC:
        return _torchrec(name, given)
    if name in PLIANT:
        return _pliant(name, given)
    raise ValueError(f"there is no arm {name!r}; there are {', '.join(ARMS)}.")


def _torchrec(name: str, given: Given) -> Arm:
    job, choice = given.job, dict[str, Any](TORCHREC[name])
    bags = TorchRecBags(
        job.num_rows,
        job.dim,
        KINDS[choice.pop("kinds")],
        given.weights,
        optimizer=job.optimizer,
        lr=job.lr,
        pooling=job.pooling,
        batch=job.batch,
        bytes_per_s=given.bytes_per_s,
        memory_bytes=given.memory_bytes,
        **choice,
    )
    about = ", ".join(f"{count} {kind}" for kind, count in bags.kinds().items())
    exact = "bits" not in choice and not (_splits_moments(job) and any("column" in kind for kind in bags.kinds()))
    return _arm(name, bags, "torchrec", about, given, exact=exact)


def _splits_moments(job: Job) -> bool:
    """Return whether a table that is cut by columns learns otherwise: each part has a mean square of its own."""
    return job.optimizer == "rowwise_adagrad"


def _arm(name: str, bags: Any, kind: str, about: str, given: Given, **rest: Any) -> Arm:
    job = given.job
    return Arm(
        name=name, bags=bags, kind=kind, about=about, num_tables=len(job.num_rows), dim=job.dim, lr=job.lr, **rest
    )


def _pliant(name: str, given: Given) -> Arm:
    lazy, narrow = "lazy" in name, "16 bits" in name
    ahead = "ahead" in name
    if name in _FIXED:
        plan = _FIXED[name](given)
    else:
        bits = (32, 16) if narrow else (32,)
        plan = placed(given, max_staleness=7 if lazy else 0, bits=bits, overlap=ahead)
    hot = hot_of(plan, given.frequencies)
    bags = PliantBags(plan, given.comm, hot, given.weights, lr=given.job.lr, eps=EPS, ahead=ahead)
    return _arm(
        name,
        bags,
        "pliant",
        described(plan),
        given,
        period=plan.every,
        sent_bytes=lambda: bags.recorded.sent_bytes,
        exact=not (lazy or narrow or (_splits_moments(given.job) and "columns" in described(plan))),
    )


def placed(given: Given, *, max_staleness: int, bits: tuple[int, ...], overlap: bool) -> EmbeddingPlan:
    """Return what Pliant's planner chooses for this cell, on rank 0, for all."""
    limits = PlacementLimits(memory_bytes=given.memory_bytes or _ANY_BYTES, max_staleness=max_staleness, bits=bits)
    placement = place_tables(
        given.tables,
        given.frequencies,
        given.topology,
        limits,
        batch_sizes=(given.job.batch,),
        optimizer=cast(RowOptimizer, given.job.optimizer),
        rates=given.rates,
        dense_sample_s=given.dense_sample_s,
        overlap=overlap,
    )
    return placement.plan


def described(plan: EmbeddingPlan) -> str:
    """Return how many tables are laid out how."""
    kinds = Counter(
        f"{layout.kind}"
        + (f" {layout.moves}" if layout.kind == "rows" else "")
        + ("" if layout.distinct else " with repeats")
        + (" with hot" if layout.num_hot else "")
        + (f" {layout.bits} bits" if layout.bits != 32 else "")
        for layout in plan.layouts
    )
    words = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    hot = sum(layout.num_hot for layout in plan.layouts)
    return words + (f"; {hot} hot rows" if hot else "") + (f"; every {plan.every} steps" if plan.every > 1 else "")


def _uniform(given: Given, layout: TableLayout) -> EmbeddingPlan:
    tables = given.tables
    return _plan(given, [layout] * len(tables))


def _pooled(given: Given) -> EmbeddingPlan:
    """Each table at the rank that has the fewest so far, and then the fewest rows, the largest table first."""
    homes = [0] * len(given.tables)
    held = [(0, 0, rank) for rank in range(given.comm.size)]  # tables, rows, rank
    for t in sorted(range(len(homes)), key=lambda t: -given.job.num_rows[t]):
        num_tables, num_rows, homes[t] = min(held)
        held[homes[t]] = num_tables + 1, num_rows + given.job.num_rows[t], homes[t]
    return _plan(given, [TableLayout(kind="table", homes=(home,), moves="sums") for home in homes])


def _plan(given: Given, layouts: Sequence[TableLayout]) -> EmbeddingPlan:
    return EmbeddingPlan(
        tables=given.tables,
        layouts=tuple(layouts),
        num_ranks=given.comm.size,
        batch_size=given.job.batch,
        optimizer=cast(RowOptimizer, given.job.optimizer),
    )


_FIXED: dict[str, Callable[[Given], EmbeddingPlan]] = {
    "plain rows": lambda given: _uniform(given, TableLayout(kind="rows", distinct=False)),
    "pliant rows": lambda given: _uniform(given, TableLayout(kind="rows")),
    "pliant pooled": _pooled,
}
