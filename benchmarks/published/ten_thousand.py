"""Time and memory of predictions for 10,000 ranks: ``python -m benchmarks.published.ten_thousand``.

Each plan is predicted twice, by itself: once for its time, once under tracemalloc for its peak of memory.
"""

import time
import tracemalloc

import pliant
from pliant.algorithms.by_name import plan_of_text
from pliant.netmodel import PRESETS
from pliant.simulator import bert_large, simulate
from pliant.spec import Host, Topology

__all__ = ["PLANS", "cluster"]

PLANS = (
    "allreduce",
    "bf16",
    "bytegrad",
    "int4",
    "onebit",
    "powersgd",
    "topk",
    "randomk",
    "decoupled_momentum",
    "tasc",
    "sharded_optimizer",
    "bounded_staleness",
    "delayed",
    "gossip",
    "choco",
    "dcd",
    "local_sgd",
    "diloco",
    "streaming_diloco",
    "sparse_loco",
    "async_average",
    "between_hosts(bytegrad)",
    "between_hosts(allreduce)",
)
"""Plans, as users type them."""


def cluster(num_hosts: int = 1250) -> Topology:
    """Return hosts of 8 H100."""
    hosts = tuple(
        Host(name=f"h{k}", num_ranks=PRESETS["h100"].gpus, machine="h100", send_bytes_per_s=0.0)
        for k in range(num_hosts)
    )
    return Topology(hosts=hosts)


def main() -> None:
    topology, work = cluster(), bert_large(0.1)
    simulate(pliant.SyncPlan(), work, cluster(2))  # whatever is loaded once
    print("| plan | predicted step | CPU time to predict it | memory |")
    print("|---|---|---|---|")
    for text in PLANS:
        plan = plan_of_text(text)
        started = time.process_time()
        step_s = simulate(plan, work, topology).step_s
        took_s = time.process_time() - started
        tracemalloc.start()
        simulate(plan, work, topology)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        print(f"| `{text}` | {step_s * 1e3:.0f} ms | {took_s:.2f} s | {peak / 1e6:.0f} MB |", flush=True)


if __name__ == "__main__":
    main()
