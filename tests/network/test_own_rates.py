"""The messages of training tell the rate of even links that they fill; where they do not, a probe is asked for."""

import numpy as np
import pytest

import pliant
from pliant.netmodel import Overheads
from pliant.network import own_rates
from pliant.network.own_rates import own_rate, topology_of_messages

WIRE = Overheads().wire_factor
RATE = 12.5e6


def told(monkeypatch, streams, *, rate=RATE, message_s=0.1, half_trip_s=1e-4, one_host=False):
    """Return what three ranks make of messages at a rate, and of these streams from each host, in bytes per s."""
    names = ["a", "b", "c"]
    places = ([["a", "b", "c"], [[0], [1], [2]]], [["a"], [[0, 1, 2]]])[one_host]
    monkeypatch.setattr(own_rates, "ranks_of_hosts", lambda comm, hosts: places)
    monkeypatch.setattr(own_rates, "half_trips_s", lambda comm, pairs, limit_s: np.full((3, 3), half_trip_s))
    monkeypatch.setattr(
        own_rates, "measure_throughput", lambda asks, answers, to, came, s: {came[0]: streams[came[0]] / WIRE}
    )
    found = pliant.run_world(3, lambda place: topology_of_messages(place.comm, rate, message_s, 1))
    assert len({str(each) for each in found}) == 1
    assert found[0] is None or [host.name for host in found[0].hosts] == names
    return found[0]


def test_even_links_that_are_full_have_the_rate_of_the_messages(monkeypatch):
    found = told(monkeypatch, [RATE, 1.1 * RATE, 0.95 * RATE])
    assert [host.send_bytes_per_s for host in found.hosts] == pytest.approx([RATE] * 3)
    assert [host.receive_bytes_per_s for host in found.hosts] == pytest.approx([RATE] * 3)
    assert "12.5MB/s in the messages of training" in found.provenance


@pytest.mark.parametrize(
    "case",
    [
        {"streams": [RATE, RATE, RATE / 2]},  # uneven
        {"streams": [2 * RATE] * 3},  # not filled by what training sends
        {"streams": [RATE] * 3, "half_trip_s": 0.05},  # mostly latency
        {"streams": [RATE] * 3, "rate": 0.0},  # too small
        {"streams": [RATE] * 3, "one_host": True},
    ],
)
def test_otherwise_a_probe_is_needed(monkeypatch, case):
    assert told(monkeypatch, **case) is None


def test_the_rank_that_waited_least_tells_the_rate_and_few_bytes_tell_none():
    busy_s = (0.9, 0.8, 1.0)
    rates = pliant.run_world(3, lambda place: own_rate(place.comm, 8e6, busy_s[place.rank]))
    assert rates == pytest.approx([WIRE * 1e7] * 3)
    sent = (8e6, 9e5, 8e6)
    assert pliant.run_world(3, lambda place: own_rate(place.comm, sent[place.rank], 1.0)) == [0.0] * 3
