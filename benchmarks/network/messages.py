"""Messages and delays of a step, by the number of ranks: of the simulator, and counted in runs.

    python benchmarks/network/messages.py --jsonl F.jsonl --md F.md               what has no line yet, and the table
    python benchmarks/network/messages.py --jsonl F.jsonl --md F.md --ranks 64    also counts of 64 ranks

A model of 128 small matrices (0.5 MB of gradients, one bucket) under each algorithm. Simulated: messages out of a rank
in a step, as means over a period of the plan, and delays of links that a step waits for one after another, at 4, 16, 64
and 256 ranks. Counted: messages of the busiest rank of each step, in threads of this process, over a period, at each
number of ranks that is asked for (16 and 32 by default). Counts are exact, whatever else the machine does. One line for
each.
"""

import argparse
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

sys.path.append(str(Path(__file__).parents[1]))

from sharded.journal import Lines, place

import pliant
from pliant.algorithms.plans import plan_of
from pliant.comm.threads import RankContext
from pliant.simulator import simulate
from pliant.spec import Host, SyncPlan, TensorSpec, Topology, Workload
from pliant.spec.files import write_atomically

KEY = ("kind", "algorithm", "ranks")
SIDE, TENSORS = 32, 128
SIMULATED = (4, 16, 64, 256)
DELAY_S = 1e-3
WARMUP = 12
"""Steps after which scores of all blocks are known."""
ALGORITHMS = (
    *("allreduce", "bf16", "randomk", "int4", "onebit", "powersgd", "topk", "blocktopk", "decoupled_momentum"),
    *("tasc", "tasc(agreement='global')", "tasc(agreement='local')", "sharded_optimizer", "gossip", "choco"),
    *("local_sgd", "diloco", "streaming_diloco", "sparse_loco(averaging=topk(0.01))"),
)


def workload() -> Workload:
    """Return the model, whose computing takes no time, so that every message is on the critical path."""
    shapes = [(SIDE, SIDE)] * TENSORS
    tensors = [TensorSpec(name=str(k), shape=s, dtype="float32", layer="", ready_s=0) for k, s in enumerate(shapes)]
    return Workload(name="small", tensors=tuple(tensors), forward_s=1e-9, backward_s=1e-9, step_s=1e-9)


class Model(nn.Module):
    """Matrices beside one another, so that each has a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(SIDE, SIDE, bias=False) for _ in range(TENSORS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what all make of x, (batch, SIDE), one after another: (batch, TENSORS * SIDE)."""
        return torch.cat([layer(x) for layer in self.layers], 1)


def simulated(plan: SyncPlan, ranks: int) -> dict[str, Any]:
    """Return messages out of the busiest rank and delays one after another, of a step."""
    hosts = [Host(name=f"h{k}", delay_s=DELAY_S) for k in range(ranks)]
    found = simulate(plan, workload(), Topology(hosts=tuple(hosts)))
    counted = found.counted  # a message is handled by a rank that sends it and by one that receives it
    return {
        "messages": round(counted.get("messages", 0.0) / 2, 3),
        "delays": round(counted.get("latency_s", 0.0) / DELAY_S, 3),
        "period": found.period,
    }


def counted(plan: SyncPlan, ranks: int, period: int) -> dict[str, Any]:
    """Train for a while and one period more; return messages in a step of it: the busiest rank's, and the mean."""

    def train(of: RankContext) -> list[int]:
        torch.manual_seed(0)
        model = DistributedDataParallel(Model(), process_group=of.process_group)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        counts: list[int] = []
        with pliant.relax(model, optimizer, plan, agreement_every=0, timeout_s=300) as run:
            for step in range(WARMUP + period):
                optimizer.zero_grad()
                run.model(torch.ones(1, SIDE)).square().mean().backward()
                optimizer.step()
                if step >= WARMUP - 1:
                    run.state_dict()  # what is under way ends
                    counts.append(run.stats()["sent_messages"])
        return [after - before for before, after in pairwise(counts)]

    steps = list(zip(*pliant.run_world(ranks, train, timeout_s=600), strict=True))  # messages of all ranks in each step
    mean = sum(map(sum, steps)) / ranks / period
    return {"messages": round(sum(map(max, steps)) / period, 3), "mean": round(mean, 3), "period": period}


def measure(lines: Lines, sizes: list[int]) -> None:
    """Add the lines that are missing."""
    for text in ALGORITHMS:
        plan = plan_of(pliant.parse(text))
        for ranks in (*SIMULATED, *sizes):
            if not lines.has("simulated", text, ranks):
                lines.add({"kind": "simulated", "algorithm": text, "ranks": ranks, **simulated(plan, ranks), **place()})
        for ranks in sizes:
            if not lines.has("counted", text, ranks):
                period = simulated(plan, ranks)["period"]
                lines.add(
                    {"kind": "counted", "algorithm": text, "ranks": ranks, **counted(plan, ranks, period), **place()}
                )
                print(f"{text} among {ranks} ranks: counted", flush=True)


def table(lines: Lines) -> str:
    """Return the page."""
    machines = sorted({f"{r['cpu']}, {r['software']}, commit {r['commit']}" for r in lines.records.values()})
    sizes = sorted({r["ranks"] for r in lines.of_kind("counted")})
    heads = [f"{n} ranks" for n in SIMULATED] + [f"{n} ranks, simulated / counted" for n in sizes]
    rows = [
        "# Messages and delays of a step",
        "",
        f"`{' '.join(sys.argv)}`",
        "",
        "; ".join(machines) + ".",
        "",
        "Messages out of the busiest rank in a step (delays of links one after another), simulated; and those counted "
        "in runs.",
        "",
        f"| algorithm | {' | '.join(heads)} |",
        f"|---|{'---|' * len(heads)}",
    ]
    found = {(r["kind"], r["algorithm"], r["ranks"]): r for r in lines.records.values()}
    for text in ALGORITHMS:
        cells = [found["simulated", text, n] for n in SIMULATED]
        both = [(found["simulated", text, n], found["counted", text, n]) for n in sizes]
        shown = [f"{r['messages']:g} ({r['delays']:g})" for r in cells]
        shown += [f"{said['messages']:g} / {ran['messages']:g}" for said, ran in both]
        rows.append(f"| `{text}` | {' | '.join(shown)} |")
    return "\n".join([*rows, ""])


def main() -> None:
    """Measure what has no line, and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jsonl", type=Path, required=True, help="file of lines, to go on with")
    parser.add_argument("--md", type=Path, required=True, help="file of the table")
    parser.add_argument("--ranks", type=int, nargs="*", default=[16, 32], help="ranks of runs in threads")
    given = parser.parse_args()
    torch.set_num_threads(1)
    lines = Lines(given.jsonl, KEY)
    measure(lines, given.ranks)
    write_atomically(given.md, table(lines))


if __name__ == "__main__":
    main()
