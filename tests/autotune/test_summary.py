"""The paragraph that says why `auto` kept a plan."""

from dataclasses import replace

import pytest

from pliant.autotune.summary import explain
from pliant.spec import Host, SyncPlan, TensorSpec, Topology, Workload

WEIGHT = TensorSpec(name="w", shape=(1000, 500), dtype="float32", layer="Linear", ready_s=0.1)
WORKLOAD = Workload(name="w", tensors=(WEIGHT,), forward_s=0.1, backward_s=0.2, step_s=0.05, batch_size=1)
HOSTS = Topology(
    hosts=tuple(Host(name=f"host {k}", send_bytes_per_s=(k + 1) * 1.25e6, receive_bytes_per_s=1e9) for k in range(2))
)


def said(topology=HOSTS, *, adopted):
    plan, exact = SyncPlan(name="chosen"), SyncPlan(name="exact")
    return explain(WORKLOAD, topology, plan, exact, 1.04, [1.2, 1.5, 1.3], adopted=adopted, found=None)


def test_it_says_what_a_step_takes_and_what_the_network_carries():
    text = said(adopted=True)
    assert "computes for 0.35 s and has 2 MB of gradients" in text
    assert "the slowest host of 2 carries 10 Mbit/s" in text


def test_it_counts_the_bytes_that_elements_have():
    half = replace(WORKLOAD, tensors=(replace(WEIGHT, dtype="bfloat16"),))
    plan = SyncPlan()
    assert "has 1 MB of gradients" in explain(half, HOSTS, plan, plan, 1.0, (), adopted=False, found=None)


@pytest.mark.parametrize(("adopted", "kept"), [(True, "chosen"), (False, "exact")])
def test_it_names_the_plan_that_is_in_force(adopted, kept):
    text = said(adopted=adopted)
    assert f"{kept} [" in text
    assert "1.30 times as fast" in text


def test_it_says_when_no_limit_was_found():
    free = replace(HOSTS, hosts=tuple(Host(name=host.name) for host in HOSTS.hosts))
    assert "carries no limit that was found" in said(free, adopted=True)
