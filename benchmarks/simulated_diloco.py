"""Published figures of DiLoCo and its kin, by the simulator; ``python benchmarks/simulated_diloco.py`` prints them.

Streaming DiLoCo, table 4 (arXiv:2501.18512): which bandwidth leaves so large a share of the time for computing. Here
each method's schedule is simulated: layers leave in a lane beside backward, as in the paper, two ranks send each
element once in 16 bits, and nothing but the link costs anything. A period between two exchanges is written as one
long step, whose "backward" is what the exchange may hide in: the backward pass, and one whole step more if it is
overlapped. INTELLECT-1 (arXiv:2412.01152): DiLoCo in 8 bits on 14 nodes, at the rate that the published time of an
all-reduce means.
"""

import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "peers"))
from papers import MODELS, UTILISATIONS, H, Model, near

import pliant as p
from pliant.algorithms.plans import plan_of
from pliant.simulator import IDEAL, equal_layers, simulate
from pliant.spec import Host, SyncPlan, Topology, Workload

EXACT = SyncPlan(bucket_bytes=1)
"""Every layer is a bucket."""
INTELLECT = {"USA": (103, 95.7), "USA + Europe": (382, 85.6), "global": (469, 83.0)}
"""Where -> (seconds of an all-reduce, compute utilisation in per cent)."""
INTELLECT_PERIOD_S = 38 * 60


def nodes(count: int, bytes_per_s: float) -> Topology:
    """Return equal hosts of one rank."""
    return Topology(
        hosts=tuple(
            Host(name=f"h{k}", send_bytes_per_s=bytes_per_s, receive_bytes_per_s=bytes_per_s) for k in range(count)
        )
    )


def period_of(model: Model, method: str) -> Workload:
    """Return what happens between two exchanges, as one step."""
    num_fragments = 1.0 if method in ("data parallel", "DiLoCo") else model.num_layers / 3
    num_steps = 1.0 if method == "data parallel" else H / num_fragments
    bits = 0.25 if method == "overlapped FP4" else 1.0
    work = equal_layers(model.name, bits * model.parameters / num_fragments, model.num_layers, model.step_s, "bfloat16")
    more_s = model.step_s if method.startswith("overlapped") else 0.0
    whole_s = num_steps * model.step_s
    backward_s = min(work.backward_s + more_s, whole_s)
    return replace(work, forward_s=whole_s - backward_s, backward_s=backward_s)


def needed_gbit_per_s(model: Model, method: str, utilisation: float) -> float:
    """Return the least bandwidth at which computing is so large a share of the time, by bisection."""
    work = period_of(model, method)
    alone_s = work.forward_s + work.backward_s
    low, high = 1e6, 1e13  # bytes per second
    while high / low > 1.001:
        middle = (low * high) ** 0.5
        step_s = simulate(EXACT, work, nodes(2, middle), overheads=IDEAL).step_s
        low, high = (low, middle) if alone_s / step_s >= utilisation else (middle, high)
    return high * 8e-9


def utilisation(all_reduce_s: float) -> float:
    """Return INTELLECT-1's compute utilisation in per cent where an all-reduce takes so long."""
    numel, num_nodes = 10e9, 14
    work = equal_layers("10B", numel, 42, INTELLECT_PERIOD_S / 100)
    rate = 2 * (num_nodes - 1) / num_nodes * numel / all_reduce_s
    found = simulate(plan_of(p.diloco(100, averaging=p.bytegrad())), work, nodes(num_nodes, rate), overheads=IDEAL)
    return 100 * (found.compute_s / found.step_s)


def main() -> None:
    print("| model | method | " + " | ".join(f"{u:.0%}" for u in UTILISATIONS) + " |")
    print("|---" * 7 + "|")
    within = total = 0
    for model in MODELS:
        for method, published in model.published_gbit_per_s.items():
            cells = []
            for share, theirs in zip(UTILISATIONS, published, strict=True):
                ours = needed_gbit_per_s(model, method, share)
                within, total = within + near(ours, theirs), total + 1
                cells.append(f"{theirs:g} / {ours:.3g}" + ("" if near(ours, theirs) else " \\*"))
            print(f"| {model.name} | {method} | " + " | ".join(cells) + " |")
    print(f"\nwithin a grid step: {within} of {total}\n")
    for where, (seconds, published) in INTELLECT.items():
        print(f"INTELLECT-1, {where}: {published} % published, {utilisation(seconds):.1f} % simulated")


if __name__ == "__main__":
    main()
