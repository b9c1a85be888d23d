"""Arms of published runs that are no plans of Pliant: Horovod, BytePS, and BAGUA's algorithms as its code has them.

Each returns the seconds of a step. Exchanges of buckets wait for their gradients, and for the exchange before; Horovod
fuses tensors by the clock; BytePS sends parts by priority, and lets the next forward pass begin.
"""

import heapq
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise

import numpy as np
from benchmarks.published.hosts import Cluster

from pliant.netmodel import DenseExchange, PointToPoint, Round
from pliant.simulator.layout import buckets_of
from pliant.spec import SyncPlan, Workload

__all__ = [
    "bagua_all_reduce",
    "bytegrad",
    "byteps",
    "decentralized",
    "horovod",
    "low_precision_decentralized",
    "one_bit",
]

BAGUA_BUCKET_BYTES = 10 << 20
"""Default of BAGUA."""
FUSION_BYTES, CYCLE_S = 64 << 20, 5e-3
"""Defaults of Horovod: HOROVOD_FUSION_THRESHOLD and HOROVOD_CYCLE_TIME."""
PART_BYTES = 4_096_000
"""Default of BytePS: BYTEPS_PARTITION_BYTES."""


def _buckets(work: Workload, bucket_bytes: int) -> list[tuple[float, int]]:
    """Return (ready_s, elements) of each bucket, in order."""
    plan, found, ready_s = SyncPlan(bucket_bytes=bucket_bytes), list[tuple[float, int]](), 0.0
    for bucket in buckets_of(plan, work, bucket_bytes):
        ready_s = max(ready_s, *(work.tensors[k].ready_s for k in bucket), 0.0)
        found.append((ready_s, sum(work.tensors[k].numel for k in bucket)))
    return found


def _beside_backward(work: Workload, buckets: Sequence[tuple[float, int]], took_s: Callable[[int], float]) -> float:
    """Return the step in which each bucket is exchanged when it is ready and the one before is done."""
    end_s, known = 0.0, cache(took_s)  # many buckets are equal
    for ready_s, numel in buckets:
        end_s = max(end_s, ready_s) + known(numel)
    return work.forward_s + max(end_s, work.backward_s) + work.step_s


def bagua_all_reduce(work: Workload, cluster: Cluster, bucket_bytes: int = BAGUA_BUCKET_BYTES) -> float:
    """Reduce to one GPU of each host, all-reduce among these, broadcast; in buckets of 10 MiB beside backward."""

    def took_s(numel: int) -> float:
        return 2 * cluster.inside_s(4 * numel) + cluster.all_reduce_s(4 * numel, among="leaders")

    return _beside_backward(work, _buckets(work, bucket_bytes), took_s)


def _coded_s(cluster: Cluster, numel: int, bits: float, *, serial_peers: bool) -> float:
    """Return what one bucket takes: to its owners in codes, sums there, and a ring of gathers back.

    Args:
        cluster: Whose leaders exchange it.
        numel: Elements.
        bits: Of an element in a code.
        serial_peers: Whether messages to owners go one after another, each as late as a link's delay.

    """
    n = cluster.num_hosts
    part = np.full((1, n), numel * bits / 8 / n)
    messages = DenseExchange(give=np.ones((1, n)), take=part, rotated=True)
    there_s = cluster.takes_s(cluster.leaders, Round(messages=messages))
    late_s = (n - 2) * cluster.trip_s / 2 if serial_peers else 0.0
    codec_s = 2 * cluster.passes_s(9 * numel) + 2 * cluster.passes_s(9 * numel / n)
    return 2 * cluster.inside_s(4 * numel) + codec_s + there_s + late_s + cluster.gather_s(numel * bits / 8 / n)


def bytegrad(
    work: Workload, cluster: Cluster, bucket_bytes: int = BAGUA_BUCKET_BYTES, *, serial_peers: bool = False
) -> float:
    """ByteGrad: gradients in 8 bits among one GPU of each host, beside backward."""
    return _beside_backward(
        work,
        _buckets(work, bucket_bytes),
        lambda numel: _coded_s(cluster, numel, 8.0, serial_peers=serial_peers),
    )


def one_bit(
    work: Workload, cluster: Cluster, bucket_bytes: int = BAGUA_BUCKET_BYTES, *, serial_peers: bool = False
) -> float:
    """QAdam-1bit after its warm-up: momenta in one bit, otherwise as ByteGrad. Its code was never published."""
    return _beside_backward(
        work,
        _buckets(work, bucket_bytes),
        lambda numel: cluster.passes_s(12 * numel) + _coded_s(cluster, numel, 1.0, serial_peers=serial_peers),
    )


def decentralized(work: Workload, cluster: Cluster) -> float:
    """Average of all weights in one bucket, by an all-reduce beside forward and backward: mode "all", the default."""
    num_bytes = 4 * work.numel
    beside_s = cluster.inside_s(num_bytes) + cluster.all_reduce_s(num_bytes, among="leaders")
    after_s = cluster.passes_s(2 * num_bytes) + cluster.inside_s(num_bytes)
    return max(work.forward_s + work.backward_s, beside_s) + after_s + work.step_s


def low_precision_decentralized(work: Workload, cluster: Cluster) -> float:
    """Differences of weights in 8 bits to two neighbours, in one bucket after the step, beside nothing (DCD)."""
    n, ranks = cluster.num_hosts, np.arange(cluster.num_hosts)
    target = np.concatenate([(ranks + 1) % n, (ranks - 1) % n])
    size = np.array([float(work.numel)])
    messages = PointToPoint(source=np.tile(ranks, 2), target=target, share=np.ones(2 * n), num_bytes=size)
    exchange_s = cluster.takes_s(cluster.leaders, Round(messages=messages))
    codec_s = 4 * cluster.passes_s(9 * work.numel) + 2 * cluster.passes_s(12 * work.numel)
    inside_s = 2 * cluster.inside_s(4 * work.numel)
    return work.forward_s + work.backward_s + work.step_s + inside_s + codec_s + exchange_s


def horovod(work: Workload, cluster: Cluster) -> float:
    """Ring over all GPUs, of what is ready at each tick of 5 ms, fused up to 64 MiB.

    At each tick ranks agree on what is ready by a message to rank 0 and one back.
    """
    waiting = [(tensor.ready_s, 4.0 * tensor.numel) for tensor in work.tensors]
    now_s = end_s = 0.0
    while waiting:
        now_s = CYCLE_S * np.ceil(max(now_s, waiting[0][0]) / CYCLE_S)
        fused, count = 0.0, 0
        for ready_s, size in waiting:
            if ready_s > now_s or (count and fused + size > FUSION_BYTES):
                break
            fused, count = fused + size, count + 1
        waiting = waiting[count:]
        agree_s = cluster.trip_s + 2 * cluster.machine.message_s
        now_s += agree_s + 2 * cluster.passes_s(2 * fused) + cluster.all_reduce_s(fused)
        end_s = now_s
    return work.forward_s + max(end_s, work.backward_s) + work.step_s


def byteps(work: Workload, cluster: Cluster, *, serial_peers: bool = True, steps: int = 4) -> float:
    """Push and pull of 4 MB parts to servers on all machines, front layers first; the next forward pass waits by layer.

    A host sends and receives each part (h-1)/h of the time itself, and serves as much for others. A push and a pull are
    a request and an answer each (ps-lite); the pull of a part goes beside the push of the next.

    Args:
        work: The model.
        cluster: The hosts, each of which runs a server.
        serial_peers: Whether a part leaves when the one before has been answered; then each pays a round trip.
        steps: The last of so many is returned, since each overlaps the next.

    """
    away = (cluster.num_hosts - 1) / cluster.num_hosts
    rate = cluster.topology.hosts[0].send_bytes_per_s or np.inf
    bus_s = 2 / cluster.machine.host_bytes_per_s / cluster.gpus  # each GPU copies its share out and in
    late_s = cluster.trip_s + 2 * cluster.machine.message_s if serial_peers else 0.0
    layers = [(tensor.ready_s, 4.0 * tensor.numel) for tensor in work.tensors]
    costs = np.diff([0.0, *(ready_s for ready_s, _ in layers)]) / 2  # of forward, from the last layer to the first

    def part_s(size: float) -> float:
        return size * max(2 * away * cluster.headers / rate, bus_s) + late_s

    arrived, starts, free_s, now_s = [0.0] * len(layers), list[float](), 0.0, 0.0
    for _ in range(steps):
        starts.append(now_s)
        for k in reversed(range(len(layers))):
            now_s = max(now_s, arrived[k]) + float(costs[k])
        arrived, free_s = _by_priority(layers, now_s, free_s, part_s)
        now_s += work.backward_s + work.step_s
    starts.append(now_s)
    return [b - a for a, b in pairwise(starts)][-1]


def _by_priority(
    layers: Sequence[tuple[float, float]], from_s: float, free_s: float, part_s: Callable[[float], float]
) -> tuple[list[float], float]:
    """Return when each layer's last part has come back, and when the link is free; the front layer is the last."""
    arrived, queue, at = [0.0] * len(layers), list[tuple[int, float]](), 0
    while at < len(layers) or queue:
        if not queue:
            free_s = max(free_s, from_s + layers[at][0])
        while at < len(layers) and from_s + layers[at][0] <= free_s:
            heapq.heappush(queue, (-at, layers[at][1]))
            at += 1
        order, left = heapq.heappop(queue)
        free_s += part_s(min(left, PART_BYTES))
        if left > PART_BYTES:
            heapq.heappush(queue, (order, left - PART_BYTES))
        else:
            arrived[-order] = free_s
    return arrived, free_s
