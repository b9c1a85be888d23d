"""Workloads and topologies for the simulator's tests."""

from pliant.algorithms.plans import plan_of
from pliant.spec import Host, SyncPlan, TensorSpec, Topology, Workload

__all__ = ["cluster", "even", "plan_for"]


def even(num_tensors=8, numel=300_000, *, forward_s=0.1, backward_s=0.2, step_s=0.01) -> Workload:
    """Equal tensors, ready at equal distances, the last at the end of backward."""
    tensors = tuple(
        TensorSpec(
            name=f"layer{k}",
            shape=(100, numel // 100),
            dtype="float32",
            layer="Linear",
            ready_s=backward_s * (k + 1) / num_tensors,
        )
        for k in range(num_tensors)
    )
    return Workload(name="even", tensors=tensors, forward_s=forward_s, backward_s=backward_s, step_s=step_s)


def cluster(num_hosts, rate=12.5e6, delay_s=0.0, ranks=1, **more) -> Topology:
    """Equal hosts."""
    return Topology(
        hosts=tuple(
            Host(
                name=f"h{k}",
                num_ranks=ranks,
                send_bytes_per_s=rate,
                receive_bytes_per_s=rate,
                delay_s=delay_s,
                **more,
            )
            for k in range(num_hosts)
        )
    )


def plan_for(algorithm) -> SyncPlan:
    return plan_of(algorithm)
