"""Rings over hops that differ: the longest way of a block through all rounds."""

import numpy as np
import pytest

from pliant.netmodel import Overheads
from pliant.netmodel.rings import lag_s
from pliant.schedules.dense import ring_s
from pliant.simulator import simulate
from pliant.spec import Host, Link, SyncPlan, TensorSpec, Topology, Workload

RATE = 12.5e6
WIRE = Overheads().wire_factor


def longest_way_s(block_s, delay_s, waits_s, num_rounds):
    """Return the same by trying every way: in each round a block stays on a hop or moves on to the next."""
    ways = np.zeros(len(block_s))
    for _ in range(num_rounds):
        stays = ways + np.maximum(block_s, block_s / 2 + waits_s)
        moves = np.roll(ways + block_s + delay_s, 1)
        ways = np.maximum(stays, moves)
    return ways.max()


@pytest.mark.parametrize("num_hops", [2, 3, 4, 7])
@pytest.mark.parametrize("spread", [0.0, 0.5, 3.0])
def test_the_longest_of_all_ways_through_a_ring_counts(num_hops, spread):
    rng, num_rounds = np.random.default_rng(num_hops), 2 * (num_hops - 1)
    for _ in range(40):
        block_s, delay_s, back_s = np.exp(spread * rng.standard_normal((3, num_hops)))
        found = lag_s(block_s[None], delay_s, (delay_s + back_s)[None], num_rounds)[0] + num_rounds * block_s.max()
        every = longest_way_s(block_s, delay_s, delay_s + back_s, num_rounds)
        assert 0.93 * every <= found <= every + 1e-9 + (delay_s.max() if spread else 0.0)


def test_a_hop_that_is_slow_and_one_that_is_far_are_not_one_hop():
    """A round takes what the slow hop takes, or what the far one does, whichever is longer, and not both."""
    hosts = tuple(Host(name=name, send_bytes_per_s=100 * RATE, receive_bytes_per_s=100 * RATE) for name in "abcd")
    slow = Link(source="b", target="a", bytes_per_s=RATE, latency_s=0.0)
    far = [Link(source=a, target=b, bytes_per_s=100 * RATE, latency_s=0.02) for a, b in ("dc", "cd")]
    both = Topology(hosts=hosts, links=(slow, *far))
    num_bytes, num_rounds = 2_000_000, 6
    slow_s, far_s = num_bytes / 4 / RATE * WIRE, 0.04
    by_rounds = ring_s(num_bytes, both, Overheads(message_s=0.0))
    tensor = TensorSpec(name="x", shape=(num_bytes // 4,), dtype="float32", layer="", ready_s=0.0)
    work = Workload(name="", tensors=(tensor,), forward_s=0.0, backward_s=0.0)
    for predicted_s in (by_rounds, simulate(SyncPlan(), work, both).step_s):
        assert predicted_s == pytest.approx(num_rounds * max(slow_s, far_s), rel=0.1)
        assert predicted_s < 0.8 * num_rounds * (slow_s / 2 + far_s)
