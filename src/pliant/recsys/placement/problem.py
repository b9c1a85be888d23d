"""Problem that a placement is chosen for, and the cost framework's answer for a plan."""

from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from pliant.netmodel import Links
from pliant.recsys.frequencies.bins import RowBins
from pliant.recsys.placement.cost import StepCost, step_cost
from pliant.recsys.placement.expected_traffic import expected_traffic
from pliant.recsys.placement.memory import Memory, memory_per_rank
from pliant.recsys.placement.rates import Rates
from pliant.recsys.placement.traffic import Traffic
from pliant.spec import EmbeddingPlan, Table, TableLayout, Topology
from pliant.spec.embedding import RowOptimizer
from pliant.spec.units import format_bytes

__all__ = ["EvaluatedPlan", "PlacementLimits", "Problem", "infeasibility"]


@dataclass(frozen=True, kw_only=True)
class PlacementLimits:
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
    limits: PlacementLimits
    batch_sizes: tuple[int, ...]
    """Samples on each rank in a step, to choose from"""
    optimizer: RowOptimizer = "rowwise_adagrad"
    rates: Rates = field(default_factory=Rates)
    dense_sample_s: float = 0.0
    """Seconds for each sample of everything else in a step"""
    overlap: bool = False
    """Whether the ids of the next batch are known early enough to be asked for beside the dense part"""

    @property
    def has_shared_hosts(self) -> bool:
        """Whether hosts have ranks of their own to sum over before they talk to each other."""
        hosts = self.topology.hosts
        return len(hosts) > 1 and any(host.num_ranks > 1 for host in hosts)

    def frame(self, batch_size: int = 1, every: int = 1, *, hierarchical: bool = False) -> EmbeddingPlan:
        """Return the plan whose tables are all laid out by rows, which searches begin with."""
        return EmbeddingPlan(
            tables=self.tables,
            layouts=(TableLayout(kind="rows"),) * len(self.tables),
            num_ranks=self.topology.num_ranks,
            batch_size=batch_size,
            every=every,
            optimizer=self.optimizer,
            hierarchical=hierarchical,
        )

    def table_bytes(self) -> list[float]:
        """Return the bytes of each table, with what the optimizer keeps."""
        frame = self.frame()
        rows = zip(self.tables, frame.pieces(), strict=True)
        return [float(table.num_rows * frame.row_bytes(piece)) for table, piece in rows]

    def given_more(self, *, memory_bytes: float = 0.0, bytes_per_s: float = 0.0) -> "Problem":
        """Return the problem with so much more memory on every rank, and rate of every host, both ways."""
        hosts = tuple(
            replace(
                host,
                send_bytes_per_s=host.send_bytes_per_s + bytes_per_s * (host.send_bytes_per_s > 0),
                receive_bytes_per_s=host.receive_bytes_per_s + bytes_per_s * (host.receive_bytes_per_s > 0),
            )
            for host in self.topology.hosts
        )
        limits = replace(self.limits, memory_bytes=self.limits.memory_bytes + memory_bytes)
        return replace(self, topology=replace(self.topology, hosts=hosts), limits=limits)


@dataclass(frozen=True, eq=False)
class EvaluatedPlan:
    """A plan, and what the cost framework says of it."""

    plan: EmbeddingPlan
    traffic: Traffic = field(repr=False)
    cost: StepCost
    memory: Memory = field(repr=False)
    sent_bytes: npt.NDArray[np.float64]
    """(ranks,), in a step on average"""

    @classmethod
    def of(cls, plan: EmbeddingPlan, problem: Problem) -> "EvaluatedPlan":
        """Return a plan with its predicted costs."""
        traffic = expected_traffic(plan, problem.bins, ahead=problem.overlap)
        dense_s = problem.dense_sample_s * plan.batch_size
        links = Links(problem.topology, problem.rates.overheads)
        cost = step_cost(traffic, links, problem.rates, dense_s=dense_s, overlap=problem.overlap)
        return cls(plan, traffic, cost, memory_per_rank(plan, problem.bins), traffic.sent_bytes(problem.topology))

    @property
    def samples_per_s(self) -> float:
        """Samples of all ranks in a second."""
        return self.plan.batch_size * self.plan.num_ranks / self.cost.total_s

    def excess(self, limits: PlacementLimits) -> float:
        """Return by how much the limit that is exceeded most is exceeded, relatively; 0 if all hold."""
        work_s = sum(s for name, s in self.cost.parts_s if name in ("prepare", "serve", "pool", "back", "update"))
        pairs = (
            (float(self.memory.total.max()), limits.memory_bytes),
            (float(self.sent_bytes.max()), limits.sent_bytes),
            (work_s, limits.work_s),
        )
        return max(0.0, *(used / max(limit, 1e-12) - 1 for used, limit in pairs if limit is not None))


def infeasibility(best: EvaluatedPlan, problem: Problem) -> str:
    """Say what is missing where, given the plan that exceeds its limits least."""
    limits, memory = problem.limits, best.memory
    rank = int(memory.total.argmax())
    missing = float(memory.total[rank]) - limits.memory_bytes
    if missing > 0:
        rows = problem.table_bytes()
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
