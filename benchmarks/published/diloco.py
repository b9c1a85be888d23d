"""DiLoCo and its kin: Streaming DiLoCo's table 4 (arXiv:2501.18512) and INTELLECT-1 (arXiv:2412.01152).

Table 4 says which bandwidth leaves so large a share of the time for computing. Here each method's schedule is
simulated: layers leave in a lane beside backward, as in the paper, two ranks send each element once in 16 bits, and
nothing but the link costs anything. A period between two exchanges is written as one long step, whose "backward" is
what the exchange may hide in: the backward pass, and one whole step more if it is overlapped. INTELLECT-1: DiLoCo in 8
bits on 14 nodes, at the rate that the published time of an all-reduce means.

By formula (`by_formula`), for a step of T seconds with a backward of 2/3 T over L equal layers and B = 16 bits for each
parameter, a wait of e = T (1/u - 1) at utilisation u, and o = 2/3 T (1 - 1/L) that backward hides:

    data parallel: W = max(B / (e + o), B / (L e));   DiLoCo, every H = 100 steps: W = B / (H e + o)
    streaming, P = L / 3 fragments: W = (B/P) / (H e / P + o); overlapped with one step: o + T; FP4: B/4
"""

from dataclasses import dataclass, replace

from benchmarks.published.record import Row, Source

import pliant
from pliant.algorithms.plans import plan_of
from pliant.simulator import IDEAL, equal_layers, simulate
from pliant.spec import Host, SyncPlan, Topology, Workload

__all__ = ["GRID", "INTELLECT", "STREAMING", "by_formula", "near"]

H = 100
GRID = 1.207
"""The table gives bandwidths on a geometric grid of this ratio: the finest agreement that there can be."""
UTILISATIONS = (0.5, 0.8, 0.9, 0.95, 0.99)
EXACT = SyncPlan(bucket_bytes=1)
"""Every layer is a bucket."""
INTELLECT_PERIOD_S = 38 * 60


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model of table 4."""

    name: str
    parameters: float
    num_layers: int
    step_s: float
    published_gbit_per_s: dict[str, tuple[float, ...]]


MODELS = (
    Model(
        name="1B",
        parameters=1e9,
        num_layers=24,
        step_s=0.1,
        published_gbit_per_s={
            "data parallel": (86.8, 152.6, 184.2, 222.3, 569.0),
            "DiLoCo": (1.4, 6.2, 13.3, 23.3, 86.8),
            "streaming": (1.4, 5.2, 9.1, 16.0, 28.1),
            "overlapped": (1.4, 4.3, 6.2, 9.1, 11.0),
            "overlapped FP4": (0.4, 0.9, 1.7, 2.0, 3.0),
        },
    ),
    Model(
        name="10B",
        parameters=10e9,
        num_layers=48,
        step_s=0.8,
        published_gbit_per_s={
            "data parallel": (104.8, 222.3, 222.3, 268.3, 471.5),
            "DiLoCo": (1.7, 7.5, 16.0, 33.9, 104.8),
            "streaming": (1.7, 5.2, 9.1, 13.3, 19.3),
            "overlapped": (1.7, 3.6, 5.2, 6.2, 7.5),
            "overlapped FP4": (0.4, 0.9, 1.4, 1.4, 1.7),
        },
    ),
    Model(
        name="100B",
        parameters=100e9,
        num_layers=108,
        step_s=4.9,
        published_gbit_per_s={
            "data parallel": (184.2, 323.8, 390.7, 390.7, 471.5),
            "DiLoCo": (3.0, 11.0, 23.3, 49.4, 184.2),
            "streaming": (2.4, 6.2, 9.1, 11.0, 19.3),
            "overlapped": (1.7, 3.6, 4.3, 5.2, 5.2),
            "overlapped FP4": (0.5, 0.9, 1.1, 1.1, 1.4),
        },
    ),
)
_INTELLECT = {"USA": (103, 95.7), "USA + Europe": (382, 85.6), "global": (469, 83.0)}
"""Where -> (seconds of an all-reduce, compute utilisation in per cent)."""


def by_formula(model: Model, method: str, utilisation: float) -> float:
    """Return the bandwidth in Gbit/s at which computing is so large a share of the time."""
    gbit = 16e-9 * model.parameters
    hidden_s = 2 / 3 * model.step_s * (1 - 1 / model.num_layers)
    exposed_s = model.step_s * (1 / utilisation - 1)  # what a step may wait
    if method == "data parallel":
        return max(gbit / (exposed_s + hidden_s), gbit / model.num_layers / exposed_s)
    if method == "DiLoCo":
        return gbit / (H * exposed_s + hidden_s)
    num_fragments = model.num_layers / 3
    if method != "streaming":
        hidden_s += model.step_s
    bits = 0.25 if method == "overlapped FP4" else 1.0
    return bits * gbit / num_fragments / (H * exposed_s / num_fragments + hidden_s)


def near(ours: float, theirs: float) -> bool:
    """Return whether two bandwidths differ by at most one step of the grid, and what rounding to 0.1 leaves open."""
    return ours <= (theirs + 0.05) * GRID and ours >= (theirs - 0.05) / GRID


def _nodes(count: int, bytes_per_s: float) -> Topology:
    return Topology(
        hosts=tuple(
            Host(name=f"h{k}", send_bytes_per_s=bytes_per_s, receive_bytes_per_s=bytes_per_s) for k in range(count)
        )
    )


def _period_of(model: Model, method: str) -> Workload:
    """Return what happens between two exchanges, as one step."""
    num_fragments = 1.0 if method in ("data parallel", "DiLoCo") else model.num_layers / 3
    num_steps = 1.0 if method == "data parallel" else H / num_fragments
    bits = 0.25 if method == "overlapped FP4" else 1.0
    work = equal_layers(model.name, bits * model.parameters / num_fragments, model.num_layers, model.step_s, "bfloat16")
    more_s = model.step_s if method.startswith("overlapped") else 0.0
    whole_s = num_steps * model.step_s
    backward_s = min(work.backward_s + more_s, whole_s)
    return replace(work, forward_s=whole_s - backward_s, backward_s=backward_s)


def _needed_gbit_per_s(model: Model, method: str, utilisation: float) -> float:
    """Return the least bandwidth at which computing is so large a share of the time, by bisection."""
    work = _period_of(model, method)
    alone_s = work.forward_s + work.backward_s
    low, high = 1e6, 1e13  # bytes per second
    while high / low > 1.001:
        middle = (low * high) ** 0.5
        step_s = simulate(EXACT, work, _nodes(2, middle), overheads=IDEAL).step_s
        low, high = (low, middle) if alone_s / step_s >= utilisation else (middle, high)
    return high * 8e-9


def _utilisation(all_reduce_s: float) -> float:
    """Return INTELLECT-1's compute utilisation in per cent where an all-reduce takes so long."""
    numel, num_nodes = 10e9, 14
    work = equal_layers("10B", numel, 42, INTELLECT_PERIOD_S / 100)
    rate = 2 * (num_nodes - 1) / num_nodes * numel / all_reduce_s
    plan = plan_of(pliant.diloco(100, averaging=pliant.bytegrad()))
    found = simulate(plan, work, _nodes(num_nodes, rate), overheads=IDEAL)
    return 100 * (found.compute_s / found.step_s)


STREAMING = Source(
    name="Streaming DiLoCo",
    link="https://arxiv.org/abs/2501.18512",
    rows=tuple(
        Row(
            case=f"{model.name}, {share:.0%} of the time",
            arm=method,
            topology="2 nodes",
            machine="nothing but the link costs anything",
            workload=f"{model.name}, {model.num_layers} equal layers",
            plan=method,
            published=theirs,
            unit="Gbit/s",
            uncertainty=GRID - 1,
            where="table 4",
            predict=lambda model=model, method=method, share=share: _needed_gbit_per_s(model, method, share),
        )
        for model in MODELS
        for method, published in model.published_gbit_per_s.items()
        for share, theirs in zip(UTILISATIONS, published, strict=True)
    ),
    constants=(("H = 100, layers, step times, 16 and 4 bits", "the paper's text beside the table"),),
    misses=(
        "Published values lie on a grid of ratio 1.207; the one cell off by more than a step is 100B, streaming, 99 %. "
        "Not known are embeddings, the number of replicas, and whether T comes from 40 or 60 % of the peak.",
    ),
    ceiling=0.12,
)
INTELLECT = Source(
    name="INTELLECT-1",
    link="https://arxiv.org/abs/2412.01152",
    rows=tuple(
        Row(
            case="10B, 14 nodes",
            arm=where,
            topology="14 nodes",
            machine="nothing but the link costs anything",
            workload="10B, 42 equal layers",
            plan="diloco(100, averaging=bytegrad)",
            published=published,
            unit="% of the time computing",
            uncertainty=0.001,
            where="table",
            predict=lambda seconds=seconds: _utilisation(seconds),
        )
        for where, (seconds, published) in _INTELLECT.items()
    ),
    constants=(("rates between nodes", "the source's own times of an all-reduce: so this checks arithmetic only"),),
    ceiling=0.01,
)
