"""How fast the simulator is: ``pytest benchmarks/bench_simulator.py --benchmark-enable -c /dev/null``."""

import pytest

import pliant as p
from pliant.algorithms.plans import plan_of
from pliant.simulator import simulate, simulate_many
from pliant.spec import Host, SyncPlan, TensorSpec, Topology, Workload

ALGORITHMS = {
    "allreduce": p.allreduce(),
    "bytegrad": p.bytegrad(),
    "topk": p.topk(),
    "powersgd": p.powersgd(),
    "owner": p.sharded_optimizer(),
    "late": p.delayed(p.bytegrad()),
    "gossip": p.gossip(),
    "streaming_diloco": p.streaming_diloco(),
}
TENSORS = tuple(
    TensorSpec(name=f"l{k}", shape=(512, 512 + k), dtype="float32", layer="Linear", ready_s=0.002 * (k + 1))
    for k in range(200)
)
WORKLOAD = Workload(name="200 buckets", tensors=TENSORS, forward_s=0.2, backward_s=0.4, step_s=0.02)
SIZES = {4: (4, 1), 16: (4, 4), 4096: (512, 8)}


def plan(name: str) -> SyncPlan:
    return SyncPlan(rules=plan_of(ALGORITHMS[name]).rules, bucket_bytes=1)


def topology(num_ranks: int) -> Topology:
    num_hosts, ranks = SIZES[num_ranks]
    return Topology(
        hosts=tuple(
            Host(name=f"h{k}", num_ranks=ranks, send_bytes_per_s=1e8, receive_bytes_per_s=1e8, delay_s=1e-3)
            for k in range(num_hosts)
        )
    )


@pytest.mark.parametrize("num_ranks", SIZES)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_one_plan(benchmark, name, num_ranks):
    benchmark(simulate, plan(name), WORKLOAD, topology(num_ranks))


def test_many_plans(benchmark):
    plans = [plan(name) for name in ALGORITHMS] * 25
    benchmark(simulate_many, plans, WORKLOAD, topology(4))
