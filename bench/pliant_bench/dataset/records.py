"""Records to rows and back: what was run, and on what."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from pliant.planner.genome import Genome
from pliant.planner.quality import MEASURED_STEPS_RATIO, Quality
from pliant.spec import (
    CodedGossip,
    Exchange,
    Gossip,
    Host,
    Link,
    LocalSteps,
    ScatterGather,
    SyncPlan,
    Topology,
    Workload,
    canonical_hash,
    from_json,
    to_json,
)
from pliant.spec.units import format_rate, format_time

__all__ = ["ModelRow", "NetworkRow", "PlanRow", "Row", "SimulatedRun", "rule_rows", "slowdown_of"]

Row = dict[str, Any]
_TENSOR = ("name", "dtype", "layer", "ready_s")
NetworkKind = Literal["hosts", "loopback"]


@dataclass(frozen=True, kw_only=True)
class ModelRow:
    """A workload, and how much of the whole model it is."""

    family: str
    workload: Workload
    size_share: float = 1.0
    """Elements over those of the whole model."""

    @property
    def id(self) -> str:
        """Name and hash; where figures come from does not count."""
        return f"{self.family}-{canonical_hash(replace(self.workload, provenance=''))[:8]}"

    def row(self) -> Row:
        """Return the row of models."""
        w = self.workload
        return {
            "model_id": self.id,
            "family": self.family,
            "size_share": self.size_share,
            "numel": w.numel,
            "forward_s": w.forward_s,
            "backward_s": w.backward_s,
            "optimizer_s": w.step_s,
            "tensors": [{**{key: getattr(t, key) for key in _TENSOR}, "shape": list(t.shape)} for t in w.tensors],
            "workload": to_json(w),
            "source": w.provenance,
        }

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> "ModelRow":
        """Return the model of a row."""
        workload = from_json(Workload, row["workload"])
        return cls(family=row["family"], workload=workload, size_share=row["size_share"])


def slowdown_of(topology: Topology, slow_share: float) -> Sequence[float]:
    """Return how many times longer each rank computes: those of the last host, where it is slow."""
    if slow_share == 0:
        return ()
    slow = topology.hosts[-1].num_ranks
    return [1.0] * (topology.num_ranks - slow) + [1 / slow_share] * slow


@dataclass(frozen=True, kw_only=True)
class NetworkRow:
    """A topology, and what it does not say itself."""

    topology: Topology
    slow_share: float = 0.0
    """Compute speed of the last host over that of the others; 0: all are alike."""
    kind: NetworkKind = "hosts"
    """Whether each host has a link of its own, or all ranks are on loopback."""

    def __post_init__(self) -> None:
        t = self.topology
        hosts = tuple(replace(host, machine="") for host in t.hosts)
        links = tuple(replace(link, jitter_s=0.0, loss=0.0) for link in t.links)
        if t != Topology(hosts=hosts, links=links, provenance=t.provenance):
            raise ValueError(
                "the network has racks, machines, CPUs of all ranks, jitters, losses, or connections, windows and "
                "restarts of their own, for which the data set has no column; give hosts and links with rates and "
                "delays alone."
            )

    @property
    def id(self) -> str:
        """Hosts x ranks, rate, delay, slow host, and hash; where figures come from does not count."""
        hosts = self.topology.hosts
        rate = format_rate(hosts[0].send_bytes_per_s) if hosts[0].send_bytes_per_s else self.kind
        slow = f"-slow{self.slow_share:g}" if self.slow_share else ""
        mark = canonical_hash(replace(self, topology=replace(self.topology, provenance="")))[:8]
        return f"{len(hosts)}x{hosts[0].num_ranks}-{rate}-{format_time(hosts[0].delay_s)}{slow}-{mark}"

    @property
    def slowdown(self) -> Sequence[float]:
        """Times that each rank computes longer: those of the last host, where it is slow; empty if all are alike."""
        return slowdown_of(self.topology, self.slow_share)

    def row(self) -> Row:
        """Return the row of topologies."""
        return {
            "topo_id": self.id,
            "kind": self.kind,
            "num_ranks": self.topology.num_ranks,
            "slow_share": self.slow_share,
            "hosts": [asdict(host) for host in self.topology.hosts],
            "links": [asdict(link) for link in self.topology.links],
            "source": self.topology.provenance,
        }

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> "NetworkRow":
        """Return the network of a row."""
        topology = Topology(
            hosts=tuple(Host(**host) for host in row["hosts"]),
            links=tuple(Link(**link) for link in row["links"]),
            provenance=row["source"],
        )
        return cls(topology=topology, slow_share=row["slow_share"], kind=row["kind"])


@dataclass(frozen=True, kw_only=True)
class PlanRow:
    """A plan, and where it comes from."""

    genes: Genome
    generator: str
    """Name of a builder, or 'sample'."""
    plan_id: str = ""
    """Key in the tables, as it was given first: the hash of a plan changes with the format of plans."""

    @property
    def plan(self) -> SyncPlan:
        """Plan that was run."""
        return self.genes.plan(self.generator)

    def row(self) -> Row:
        """Return the row of plans."""
        plan = self.plan
        return {
            "plan_id": self.plan_id or plan.hash,
            "generator": self.generator,
            "exact": all(gene.exact for gene in self.genes.genes),
            "steps_ratio": Quality(ratios=MEASURED_STEPS_RATIO).ratio(self.genes),
            "plan": to_json(plan),
            "genes": to_json(self.genes),
        }

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> "PlanRow":
        """Return the plan of a row."""
        return cls(genes=from_json(Genome, row["genes"]), generator=row["generator"], plan_id=row["plan_id"])


@dataclass(frozen=True, kw_only=True)
class SimulatedRun:
    """A plan whose step time a simulator has predicted."""

    model: ModelRow
    network: NetworkRow
    planned: PlanRow
    step_s: float
    """Amortized over whole periods."""
    compute_s: float
    exposed_s: float
    codec_s: float
    sent_bytes: float
    """A step, of the busiest rank."""
    simulator: str
    """Its version and overheads, so that rows of another can be told apart."""


def rule_rows(plan: SyncPlan) -> list[Row]:
    """Return a row of buckets for each rule of a plan."""
    return [
        {
            "plan_id": plan.hash,
            "rule": number,
            "bucket_bytes": plan.bucket_bytes,
            **asdict(rule.match),
            **_exchange_row(rule.exchange),
            "order": plan.order,
        }
        for number, rule in enumerate(plan.rules)
    ]


def _exchange_row(node: Exchange) -> Row:
    core, timing, leaf = node.core, node.timing, node.core
    if isinstance(core, LocalSteps):
        leaf = core.averaging.core
    return {
        "what": {"gradients": "gradient", "momentum": "momentum", "weights": "weight"}[node.kind],
        "collective": type(core).__name__,
        "codec": str(node.payload_codec or ""),
        "feedback": node.error_feedback,
        "graph": core.graph.kind if isinstance(core, (Gossip, CodedGossip)) else "",
        "every": timing.period,
        "fragments": timing.fragments,
        "delay_steps": timing.delay_steps,
        "chunk_bytes": leaf.chunk_bytes if isinstance(leaf, ScatterGather) else 0,
        "hierarchical": bool(node.levels),
    }
