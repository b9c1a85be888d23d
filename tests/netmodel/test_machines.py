"""Machines with GPUs: NCCL's forms, interfaces, buses, and clusters of several kinds of hosts."""

from dataclasses import replace
from math import log2

import numpy as np
import pytest

import pliant
from pliant.algorithms.plans import plan_of
from pliant.netmodel import PRESETS, Links, Overheads, PointToPoint
from pliant.netmodel.nccl import choose_collective
from pliant.simulator import simulate
from pliant.simulator.collective_rounds import ring, ring_all_gather
from pliant.spec import Host, Machine, Topology, Workload, from_json, to_json
from pliant.spec.layers import workload_of_layers
from pliant.spec.models import LAYERS

H100 = PRESETS["h100"]


def cluster(num_hosts: int, machine: str = "h100", ranks: int = 8, rate: float = 0.0, delay_s: float = 0.0) -> Topology:
    return Topology(
        hosts=tuple(
            Host(
                name=f"h{k}",
                num_ranks=ranks,
                machine=machine,
                send_bytes_per_s=rate,
                receive_bytes_per_s=rate,
                delay_s=delay_s,
            )
            for k in range(num_hosts)
        )
    )


def small(step_s: float = 0.02) -> Workload:
    layers = LAYERS["cnn"]()
    return workload_of_layers("cnn", layers, batch=1, operations_per_s=3 * sum(x.operations for x in layers) / step_s)


def took(topology: Topology, num_bytes: float, round_of=ring, machine: Machine | None = None):
    each = round_of(np.array([num_bytes]), topology.num_ranks)
    overheads = None if machine is None else Overheads.of(machine)
    return Links(topology, overheads).load(each.messages, each.repeat)


def by_hand(size: float, ring_s: float, n: int, h: int, protocol: str, form: str) -> float:
    """Seconds of one form, by the formula in netmodel.nccl, for GPUs with NVLink."""
    at = ("LL", "LL128", "Simple").index(protocol)
    us = 1e-6 * (1.8 if at == 0 and h > 1 else 1.0)
    if form == "ring":
        plateau = 1.9 if h > 1 and protocol == "Simple" and size >= n * 4096 else 1.0
        inner = 2 * (n - h) * (0.47, 1.9, 3.4)[at] * us
        lead = (3.6, 10.0, 8.4)[at] * 1e-6 + inner + 2 * (h - 1) * (2.7, 4.0, 9.6)[at] * 1e-6
        return lead * plateau + ring_s * (4, 1 / (0.7 if n < 2 * h else 0.92), 1)[at]
    inner = 2 * (n / h - 1) * (0.52, 1.2, 28)[at] * us
    lead = (4.4, 4.4, 0)[at] * 1e-6 + inner + 2 * log2(h) * (5, 8.5, 50)[at] * 1e-6
    rate = min(0.9 * 2 * (n - 1) / n * size / ring_s, 80e9 if h > 2 else 110e9)
    return lead + 2 * size / rate * (3.8, 1 / (7 / 9 if h == 1 else 0.915), 1)[at]


@pytest.mark.parametrize(("n", "h"), [(8, 1), (2, 2), (16, 2), (128, 16), (1024, 128)])
@pytest.mark.parametrize("size", [2.0**28, 2.0**33])
def test_the_least_of_all_forms_is_chosen(n, h, size):
    """At sizes where no tree is corrected."""
    ring_s = 2 * (n - 1) / n * size / 40e9
    found = choose_collective(np.array([size]), np.array([ring_s]), n, h, "nvlink", all_reduce=True)
    forms = [by_hand(size, ring_s, n, h, p, f) for p in ("LL", "LL128", "Simple") for f in ("ring", "tree")]
    assert found.latency_s[0] + found.factor[0] * ring_s == pytest.approx(min(forms))


def test_short_vectors_on_many_hosts_take_trees_and_gathers_do_not():
    size, ring_s = np.array([1e4]), np.array([1e-6])
    tree, around = (choose_collective(size, ring_s, 8192, 1024, "nvlink", all_reduce=up) for up in (True, False))
    assert tree.latency_s[0] < 200e-6 < around.latency_s[0]
    assert tree.delays[0] == pytest.approx(10 / 1023)
    assert around.delays[0] == 1


def test_without_nvlink_there_is_no_ll128():
    ring_s = np.array([1e-3])
    found = choose_collective(np.array([1e6]), ring_s, 4, 1, "pcie", all_reduce=True)
    assert found.factor[0] != pytest.approx(1 / 0.92)


def test_a_long_vector_takes_what_the_links_between_gpus_take():
    size = 8e9
    assert took(cluster(1), size).total_s[0] == pytest.approx(2 * 7 / 8 * size / H100.link_bytes_per_s, rel=0.01)
    assert took(cluster(1), size / 8, ring_all_gather).total_s[0] == pytest.approx(
        7 / 8 * size / H100.link_bytes_per_s, rel=0.01
    )
    assert took(cluster(1, "t4", 4), size).total_s[0] == pytest.approx(2 * 3 / 4 * size / 9e9, rel=0.01)


def test_between_hosts_no_more_is_reached_than_the_transport_carries():
    size, whole = 8e9, 2 * 63 / 64 * 1.05
    assert took(cluster(8), size).total_s[0] == pytest.approx(whole * size / (0.9 * 8 * 50e9), rel=0.03)
    assert took(cluster(8, rate=1.25e9), size).total_s[0] == pytest.approx(whole * size / 1.25e9, rel=0.02)
    assert took(cluster(8, rate=1e12), size).total_s[0] == took(cluster(8), size).total_s[0]


def test_one_rank_of_a_host_has_one_interface():
    pair = PointToPoint(source=np.array([0]), target=np.array([8]), share=np.ones(1), num_bytes=np.array([1e9]))
    all_of_it = PointToPoint(
        source=np.arange(8), target=np.arange(8) + 8, share=np.full(8, 1 / 8), num_bytes=np.array([1e9])
    )
    one, eight = (Links(cluster(2)).load(messages).rate_s[0] for messages in (pair, all_of_it))
    assert one == pytest.approx(8 * eight)


def test_staged_messages_cross_the_bus_on_either_side():
    pair = PointToPoint(source=np.array([0]), target=np.array([8]), share=np.ones(1), num_bytes=np.array([1e9]))
    plain, staged = (
        Links(cluster(2), Overheads.of(replace(H100, staged=staged))).load(pair) for staged in (False, True)
    )
    assert staged.staging_s[0] == pytest.approx(1e9 / H100.host_bytes_per_s)
    assert staged.total_s[0] > plain.total_s[0] + staged.staging_s[0]
    inside = replace(pair, target=np.array([1]))
    assert Links(cluster(2), Overheads.of(replace(H100, staged=True))).load(inside).staging_s[0] == 0
    assert took(cluster(2), 1e9, machine=replace(H100, staged=True)).num_messages[0] > 0


def test_windows_hold_a_ring_back():
    """A round trip for each window of all connections, beside the time on the link."""
    far = replace(cluster(2, rate=1e11, delay_s=5e-3), window_bytes=1e6, connections=2)
    each_way = 2 * 15 / 16 * 1e9
    assert took(far, 1e9).rate_s[0] * 1.05 == pytest.approx(each_way * (1.05 / 1e11 + 10e-3 / 2e6))


def test_in_a_mixed_cluster_the_slowest_decides():
    mixed = Topology(hosts=(*cluster(1).hosts, replace(cluster(1, "t4", 4).hosts[0], name="other")))
    assert from_json(Topology, to_json(mixed)) == mixed
    links = Links(mixed)
    assert links.overheads.message_s == Overheads.of(H100).message_s
    assert links.overheads.reduce_bytes_per_s == Overheads.of(PRESETS["t4"]).reduce_bytes_per_s
    assert links.overheads.nccl == "pcie"
    rate = 0.6 * 50e9 / 8
    assert took(mixed, 8e9).rate_s[0] == pytest.approx(2 * 11 / 12 * 8e9 / rate)
    inside = PointToPoint(source=np.array([8]), target=np.array([9]), share=np.ones(1), num_bytes=np.array([1e9]))
    assert links.load(inside).loopback_s[0] == pytest.approx(1e9 / (4 * 9e9))
    with_cores = Topology(hosts=(*cluster(1).hosts, Host(name="cores")))
    assert Links(with_cores).overheads.message_s == Overheads().message_s
    with pytest.raises(ValueError, match="there is no machine 'x100'; there are cpu-core, v100"):
        Links(cluster(1, "x100"))


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"gpus": 8, "host_bytes_per_s": 0.0}, "no rate of the bus"),
        ({"transport_efficiency": 1.2}, "at most 1"),
        ({"nics": 0}, "at least one interface"),
        ({"nic_bytes_per_s": float("inf")}, "no figure is negative"),
    ],
)
def test_a_machine_checks_itself(wrong, sentence):
    with pytest.raises(ValueError, match=sentence):
        replace(H100, **wrong)
    with pytest.raises(ValueError, match="write 'nvlink', 'pcie', or nothing"):
        Overheads(nccl="wire")


PLANS = (
    pliant.allreduce(),
    pliant.bytegrad(),
    pliant.between_hosts(pliant.qsgd(bits=4)),
    pliant.powersgd(),
    pliant.choco(),
    pliant.diloco(period=2),
)


@pytest.mark.parametrize("seed", range(8))
def test_a_better_network_is_never_slower(seed):
    draw = np.random.default_rng(seed)
    machine = str(draw.choice(["v100", "t4", "a100", "h100"]))
    rate, delay_s = 10 ** draw.uniform(8, 11), 10 ** draw.uniform(-6, -3)
    plan, work = plan_of(PLANS[seed % len(PLANS)]), small()

    def step_s(rate: float = rate, delay_s: float = delay_s, slow: float = 1.0) -> float:
        topology = cluster(3, machine, PRESETS[machine].gpus, rate, delay_s)
        slowdown = (slow, *([1.0] * (topology.num_ranks - 1)))
        return simulate(plan, work, topology, slowdown=slowdown).step_s

    base = step_s()
    assert base >= work.forward_s + work.backward_s
    assert step_s(rate=2 * rate) <= base * (1 + 1e-9)
    assert step_s(delay_s=2 * delay_s) >= base * (1 - 1e-9)
    assert step_s(slow=1.5) >= base * (1 - 1e-9)
