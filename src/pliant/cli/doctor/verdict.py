"""Verdict on a cluster: steps of standard workloads over the links that were measured, and findings in sentences."""

from collections.abc import Sequence
from dataclasses import dataclass

from pliant.cli.doctor.tcp import tcp_findings
from pliant.netmodel import Overheads
from pliant.network.connections import ConnectionRates
from pliant.network.rank_facts import RankFacts
from pliant.planner import BASELINES, Gene, Genome
from pliant.planner.quality import MEASURED_STEPS_RATIO, Quality
from pliant.simulator import simulate, simulate_many
from pliant.spec import Topology
from pliant.spec.layers import workload_of_layers
from pliant.spec.models import LAYERS
from pliant.spec.units import format_rate, format_time

__all__ = ["Prospect", "findings", "prospects", "sentence"]

_BATCHES = {"resnet50": 32, "vgg16": 32, "gpt2": 4, "lstm": 20}
_REACHED = 0.5
"""Part of the speed of one large product that a model's forward and backward are taken to reach."""
_METHODS = {
    **{name: BASELINES[name] for name in ("ddp-bf16", "by-hosts", "bytegrad", "onebit", "powersgd", "topk")},
    **{name: BASELINES[name] for name in ("local_sgd", "gossip")},
    "streaming_diloco": Genome(
        Gene("diloco", {"bits": 4, "delay_steps": 2, "every": 32, "fragments": 4}), bucket_bytes=25 << 20
    ),
}
_HELPS, _SAME = 1.1, 1.02
_WIDER = 1.5
_LONG_S, _APART_S = 0.005, 0.01
_FEW_CORES = 2


@dataclass(frozen=True, kw_only=True)
class Prospect:
    """Prediction for one standard workload on a cluster."""

    workload: str
    num_parameters: int
    compute_s: float
    ddp_step_s: float
    ddp_exposed_s: float
    """Part of DDP's step in which it waits for the network."""
    sooner: dict[str, float]
    """Method -> DDP's time to the same accuracy over the method's: its steps as they were measured with SGD."""


def prospects(topology: Topology, overheads: Overheads, operations_per_s: float) -> list[Prospect]:
    """Return a prediction for each standard workload, on ranks that do so many operations in a second."""
    quality = Quality(budget=max(MEASURED_STEPS_RATIO.values()))
    names = [name for name in _METHODS if name != "by-hosts" or topology.num_ranks > len(topology.hosts)]
    plans = [_METHODS[name].plan(name) for name in names]
    found: list[Prospect] = []
    for name, batch in _BATCHES.items():
        work = workload_of_layers(name, LAYERS[name](), batch=batch, operations_per_s=_REACHED * operations_per_s)
        ddp = simulate(BASELINES["ddp"].plan("ddp"), work, topology, overheads=overheads)
        steps_s: list[float] = simulate_many(plans, work, topology, overheads=overheads).tolist()
        sooner = {
            method: ddp.step_s / (step_s * quality.factor(_METHODS[method]))
            for method, step_s in zip(names, steps_s, strict=True)
        }
        found.append(
            Prospect(
                workload=name,
                num_parameters=work.numel,
                compute_s=work.forward_s + work.backward_s,
                ddp_step_s=ddp.step_s,
                ddp_exposed_s=ddp.exposed_s,
                sooner=dict(sorted(sooner.items(), key=lambda item: -item[1])),
            )
        )
    return found


def sentence(prospect: Prospect) -> str:
    """Return what would help with a workload, and what would not."""
    waits = prospect.ddp_exposed_s / prospect.ddp_step_s if prospect.ddp_step_s else 0.0
    head = (
        f"{prospect.workload} ({prospect.num_parameters / 1e6:.0f} M parameters): DDP's step takes "
        f"{format_time(prospect.ddp_step_s)}, {waits:.0%} of it waiting."
    )
    helps = [f"{name} {ratio:.1f}x" for name, ratio in prospect.sooner.items() if ratio >= _HELPS]
    not_so = [name for name, ratio in prospect.sooner.items() if ratio < _SAME]
    if not helps:
        return f"{head} The network keeps up: nothing would help by a tenth; stay with DDP."
    rest = f" Would not help: {', '.join(not_so)}." if not_so else ""
    return f"{head} Sooner at the same accuracy: {', '.join(helps)}.{rest}"


def findings(facts: Sequence[RankFacts], topology: Topology, rates: Sequence[ConnectionRates]) -> list[str]:
    """Return what is out of the ordinary, a sentence each, with what to do about it."""
    found = [*_differing(facts), *_clocks(facts), *_connections(rates, topology), *tcp_findings(facts, topology)]
    for link in topology.links:
        found.append(
            f"{link.source} -> {link.target} differs from its hosts' other links: {format_rate(link.bytes_per_s)}, "
            f"{format_time(link.latency_s)}; a schedule that goes around it may pay: `pliant schedule`."
        )
    slow = max((host.delay_s for host in topology.hosts), default=0.0)
    if slow >= _LONG_S:
        found.append(
            f"Messages take {format_time(slow)} one way: prefer what exchanges in few rounds, or not in each step."
        )
    per_host = {facts_of.host: [f for f in facts if f.host == facts_of.host] for facts_of in facts}
    for host, there in per_host.items():
        if not there[0].accelerators and there[0].num_cores < _FEW_CORES * len(there):
            found.append(
                f"{host} has {there[0].num_cores} of the {_FEW_CORES * len(there)} cores that {len(there)} ranks want: "
                "an exchange that runs beside backward takes a core from it."
            )
    return found


def _differing(facts: Sequence[RankFacts]) -> list[str]:
    found: list[str] = []
    for what in ("torch", "python", "pliant", "backends", "accelerators"):
        seen: dict[str, list[str]] = {}
        for each in facts:
            value = getattr(each, what)
            seen.setdefault(", ".join(value) if isinstance(value, tuple) else str(value), []).append(str(each.rank))
        if len(seen) > 1:
            groups = "; ".join(f"{value or 'none'} on ranks {', '.join(ranks)}" for value, ranks in seen.items())
            found.append(f"Ranks differ in {what}: {groups}; make them alike, or runs may hang or disagree.")
    return found


def _clocks(facts: Sequence[RankFacts]) -> list[str]:
    far = [f for f in facts if abs(f.clock_offset_s) > _APART_S + f.clock_error_s]
    return [
        f"The clock of rank {f.rank} on {f.host} is {format_time(abs(f.clock_offset_s))} "
        f"{'ahead of' if f.clock_offset_s > 0 else 'behind'} rank 0's: logs and timelines do not line up; use NTP."
        for f in far
    ]


def _connections(rates: Sequence[ConnectionRates], topology: Topology) -> list[str]:
    wider = [r for r in rates if r.several_bytes_per_s > _WIDER * r.one_bytes_per_s > 0]
    if not wider:
        return []
    most = max(wider, key=lambda r: r.several_bytes_per_s / r.one_bytes_per_s)
    return [
        f"One connection does not fill {len(wider)} of {len(rates)} links: {most.source} -> {most.target} carries "
        f"{format_rate(most.one_bytes_per_s)} over one and {format_rate(most.several_bytes_per_s)} over "
        f"{most.num_connections}. Training has one unless it is told otherwise: relax(..., connections="
        f"{max(most.num_connections, topology.connections)}), or connections='auto', which measures how many pay."
    ]
