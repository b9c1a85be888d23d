"""Racks that streams of all pairs show, and networks on which they show none."""

import numpy as np
import pytest

from pliant.network.rack_inference import infer_racks, within_racks

NAMES = [f"h{k}" for k in range(8)]


def streams(sends, receives, rack_of, up, down, rng, noise=0.05):
    """Rates of streams to the host so many before each, all at once, which share what leaves and enters racks."""
    num = len(sends)
    rates = np.zeros((num, num))
    for shift in range(1, num):
        pairs = [(i, (i - shift) % num) for i in range(num)]
        crossing = [(i, j) for i, j in pairs if rack_of[i] != rack_of[j]]
        for i, j in pairs:
            rates[i, j] = min(sends[i], receives[j])
            if (i, j) in crossing:
                leave = sum(rack_of[a] == rack_of[i] for a, _ in crossing)
                enter = sum(rack_of[b] == rack_of[j] for _, b in crossing)
                rates[i, j] = min(rates[i, j], up[rack_of[i]] / leave, down[rack_of[j]] / enter)
            rates[i, j] *= rng.uniform(1 - noise, 1 + noise)
    return rates


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("rack_of", "up"),
    [
        ([0, 0, 0, 1, 1, 1], 20e6),
        ([0, 0, 0, 1, 1, 1], 8e6),
        ([0, 0, 1, 1], 15e6),
        ([0, 0, 1, 1, 2, 2], 20e6),
        ([0, 0, 0, 0, 1, 1], 20e6),
    ],
)
def test_hosts_behind_slow_uplinks_are_racks_with_their_rates(rack_of, up, seed):
    num, num_racks = len(rack_of), max(rack_of) + 1
    rates = streams(
        [37e6] * num, [37e6] * num, rack_of, [up] * num_racks, [up] * num_racks, np.random.default_rng(seed)
    )
    racks = infer_racks(NAMES[:num], rates)
    wanted = {tuple(name for name, its in zip(NAMES, rack_of, strict=False) if its == k) for k in range(num_racks)}
    assert {rack.hosts for rack in racks} == wanted
    for rack in racks:
        assert rack.send_bytes_per_s == pytest.approx(up, rel=0.1)
        assert rack.receive_bytes_per_s == pytest.approx(up, rel=0.1)
    inside = within_racks(rates)
    assert (inside[inside > 0] > 30e6).all()


@pytest.mark.parametrize("seed", range(20))
def test_hosts_and_pairs_with_rates_of_their_own_show_no_racks(seed):
    rng = np.random.default_rng(seed)
    num = int(rng.integers(3, 7))
    alone = [0] * num
    even = streams([37e6] * num, [37e6] * num, alone, [0], [0], rng)
    uneven = streams(10 ** rng.uniform(6.5, 8, num), 10 ** rng.uniform(6.5, 8, num), alone, [0], [0], rng)
    pairs = 10 ** rng.uniform(6.5, 8, (num, num)) * (1 - np.eye(num))
    assert [infer_racks(NAMES[:num], rates) for rates in (even, uneven, pairs)] == [()] * 3


def test_short_streams_that_share_an_uplink_unevenly_show_racks_too():
    """Mbit/s as seen on emulated hosts: two racks of three, hosts with 300 and uplinks with 150."""
    seen = [
        [0, 292, 299, 100, 10, 147],
        [299, 0, 302, 14, 26, 149],
        [301, 294, 0, 116, 65, 80],
        [37, 63, 149, 0, 294, 299],
        [174, 34, 81, 299, 0, 300],
        [148, 32, 32, 300, 293, 0],
    ]
    racks = infer_racks(NAMES[:6], np.array(seen) * 125e3)
    assert [rack.hosts for rack in racks] == [("h0", "h1", "h2"), ("h3", "h4", "h5")]
    for rack in racks:
        assert rack.send_bytes_per_s == pytest.approx(150 * 125e3, rel=0.1)
        assert rack.receive_bytes_per_s == pytest.approx(150 * 125e3, rel=0.1)


def test_two_groups_of_hosts_with_slow_paths_of_their_own_between_them_are_no_racks():
    rates = np.full((6, 6), 37e6)
    rates[:3, 3:] = rates[3:, :3] = 8e6
    assert infer_racks(NAMES[:6], rates * (1 - np.eye(6))) == ()


def test_alternating_racks_cannot_be_told_from_slow_paths_since_always_as_many_streams_leave():
    rates = streams([37e6] * 6, [37e6] * 6, [0, 1] * 3, [20e6] * 2, [20e6] * 2, np.random.default_rng(0))
    assert infer_racks(NAMES[:6], rates) == ()


def test_pairs_that_were_not_all_measured_show_no_racks():
    rates = streams([37e6] * 6, [37e6] * 6, [0, 0, 0, 1, 1, 1], [20e6] * 2, [20e6] * 2, np.random.default_rng(0))
    rates[0, 5] = 0.0
    assert infer_racks(NAMES[:6], rates) == ()


@pytest.mark.parametrize("rack_of", [[0, 0, 0, 1, 1, 1], [0, 0, 1, 1], [0, 1, 0, 1, 0, 1]])
def test_streams_of_a_second_look_tell_uneven_shares_from_paths_of_their_own(rack_of):
    """Streams through one queue have any part of it each time; on paths of their own they are what they were."""
    rng, num = np.random.default_rng(0), len(rack_of)
    across = np.array(rack_of)[:, None] != np.array(rack_of)

    def look(between):
        return np.where(across, between, 37e6) * rng.uniform(0.97, 1.03, (num, num)) * (1 - np.eye(num))

    own = 18e6 * 10 ** rng.uniform(-0.5, 0.0, (num, num))
    assert infer_racks(NAMES[:num], look(own), look(own)) == ()
    shared = [look(18e6 * 10 ** rng.uniform(-1.0, 0.0, (num, num))) for _ in range(2)]
    if rack_of == [0, 1, 0, 1, 0, 1]:  # always as many leave a rack
        assert infer_racks(NAMES[:num], shared[0]) == ()
    assert {rack.hosts for rack in infer_racks(NAMES[:num], *shared)} == {
        tuple(name for name, its in zip(NAMES, rack_of, strict=False) if its == k) for k in (0, 1)
    }


def test_the_rate_of_an_uplink_is_that_of_streams_alone_on_it_where_others_were_counted_twice():
    """MB/s as seen on emulated hosts: 18.7 is true, and streams at once had 40 in sum, one after another."""
    first = [
        *([0, 36.6, 37.3, 8.2, 18.1, 18.7], [37.3, 0, 37.5, 8.8, 5.8, 1.4], [37.2, 37.5, 0, 16.2, 12.4, 9.3]),
        *([6.2, 18.7, 18.6, 0, 37.5, 37.4], [18.9, 18.8, 6.9, 37.5, 0, 37.2], [18.7, 7.5, 17.3, 38, 36.8, 0]),
    ]
    racks = infer_racks(NAMES[:6], np.array(first) * 1e6)
    assert [rack.hosts for rack in racks] == [("h0", "h1", "h2"), ("h3", "h4", "h5")]
    rates = [rate for rack in racks for rate in (rack.send_bytes_per_s, rack.receive_bytes_per_s)]
    assert rates == pytest.approx([18.7e6] * 4, rel=0.02)
    around = infer_racks(NAMES[:6], np.array(first) * 1e6, least=25e6)  # what messages of a training have shown
    assert [(rack.hosts, rack.send_bytes_per_s, rack.receive_bytes_per_s) for rack in around] == [
        (rack.hosts, 25e6, 25e6) for rack in racks
    ]
