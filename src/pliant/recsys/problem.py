"""Problem that a placement is chosen for, and the cost framework's answer for a plan."""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from pliant.netmodel import Links
from pliant.recsys.bins import RowBins
from pliant.recsys.cost import StepCost, step_cost
from pliant.recsys.expected import expected
from pliant.recsys.memory import Memory, held
from pliant.recsys.rates import Rates
from pliant.recsys.traffic import Traffic
from pliant.spec import EmbeddingPlan, Table, TableLayout, Topology
from pliant.spec.embedding import RowOptimizer
from pliant.spec.units import format_bytes

__all__ = ["Limits", "Problem", "Valued", "refusal", "whole_bytes"]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits that a placement must keep to."""

    memory_bytes: float
    """Of the tables, their optimizer, replicas and messages, on each rank, at all times"""
    max_staleness: int = 0
    """Steps that gradients of rows on all ranks may wait before they are summed and used"""
    bits: tuple[Literal[32, 16, 8], ...] = (32,)
    """Of a number on the wire that layouts may choose"""
    sent_bytes: float | None = None
    """That any rank sends in a step on average"""
    work_s: float | None = None
    """Seconds that the busiest rank of each stage works for embeddings in a step"""

    def __post_init__(self) -> None:
        if self.memory_bytes <= 0 or self.max_staleness < 0 or not self.bits or not set(self.bits) <= {32, 16, 8}:
            raise ValueError(
                f"limits of {self.memory_bytes} bytes, staleness {self.max_staleness} and bits {self.bits} cannot be: "
                "some memory, a staleness of at least 0, and some of 32, 16 and 8 bits."
            )


@dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    """Tables, batch, topology and limits that a placement is chosen for."""

    tables: tuple[Table, ...]
    bins: RowBins = field(repr=False)
    topology: Topology
    limits: Limits
    batch_sizes: tuple[int, ...]
    """Samples on each rank in a step, to choose from"""
    optimizer: RowOptimizer = "rowwise_adagrad"
    rates: Rates = field(default_factory=Rates)
    dense_sample_s: float = 0.0
    """Seconds for each sample of everything else in a step"""
    overlap: bool = False
    """Whether the ids of the next batch are known early enough to be asked for beside the dense part"""


@dataclass(frozen=True, eq=False)
class Valued:
    """A plan, and what the cost framework says of it."""

    plan: EmbeddingPlan
    traffic: Traffic = field(repr=False)
    cost: StepCost
    memory: Memory = field(repr=False)
    sent_bytes: npt.NDArray[np.float64]
    """(ranks,), in a step on average"""

    @classmethod
    def of(cls, plan: EmbeddingPlan, problem: Problem) -> "Valued":
        """Return a plan with its predicted costs."""
        traffic = expected(plan, problem.bins, ahead=problem.overlap)
        dense_s = problem.dense_sample_s * plan.batch_size
        links = Links(problem.topology, problem.rates.overheads)
        cost = step_cost(traffic, links, problem.rates, dense_s=dense_s, overlap=problem.overlap)
        return cls(plan, traffic, cost, held(plan, problem.bins), traffic.sent_bytes(problem.topology))

    @property
    def samples_per_s(self) -> float:
        """Samples of all ranks in a second."""
        return self.plan.batch_size * self.plan.num_ranks / self.cost.total_s

    def excess(self, limits: Limits) -> float:
        """Return by how much the limit that is exceeded most is exceeded, relatively; 0 if all hold."""
        work_s = sum(s for name, s in self.cost.parts_s if name in ("prepare", "serve", "pool", "back", "update"))
        pairs = (
            (float(self.memory.total.max()), limits.memory_bytes),
            (float(self.sent_bytes.max()), limits.sent_bytes),
            (work_s, limits.work_s),
        )
        return max(0.0, *(used / max(limit, 1e-12) - 1 for used, limit in pairs if limit is not None))


def refusal(best: Valued, problem: Problem) -> str:
    """Say what is missing where, given the plan that exceeds its limits least."""
    limits, memory = problem.limits, best.memory
    rank = int(memory.total.argmax())
    missing = float(memory.total[rank]) - limits.memory_bytes
    if missing > 0:
        rows = [whole_bytes(problem, k) for k in range(len(problem.tables))]
        largest = int(np.argmax(rows))
        return (
            f"no placement fits into {format_bytes(limits.memory_bytes)} on each rank: at best rank {rank} is short "
            f"of {format_bytes(missing)}. With what {problem.optimizer} keeps, tables take {format_bytes(sum(rows))}, "
            f"the largest, {problem.tables[largest].name!r}, {format_bytes(rows[largest])}, and messages "
            f"{format_bytes(float(memory.messages[rank]))}; give more memory or ranks, a smaller batch, or "
            "smaller tables."
        )
    return (
        f"no placement keeps all limits: at best a rank sends {format_bytes(float(best.sent_bytes.max()))} in a step "
        f"and embeddings take {best.cost.total_s - best.cost.wire_s:.3g} s of work, for limits of {limits.sent_bytes} "
        f"bytes and {limits.work_s} s; allow more, or fewer bits, or a smaller batch."
    )


def whole_bytes(problem: Problem, index: int) -> float:
    """Return what a whole table takes, with what the optimizer keeps."""
    one = EmbeddingPlan(
        tables=(problem.tables[index],),
        layouts=(TableLayout(kind="rows"),),
        num_ranks=1,
        batch_size=1,
        optimizer=problem.optimizer,
    )
    return float(problem.tables[index].num_rows * one.row_bytes(one.pieces()[0]))
