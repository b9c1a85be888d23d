"""Number of connections: as few as fill the long links, and twice or four times as many for pauses."""

import itertools
import math
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import pliant
from pliant.comm.base import duplicate
from pliant.comm.striping import Striping
from pliant.comm.wrapped import WrappedComm
from pliant.netmodel.slow_start import halvings
from pliant.network import connection_choice
from pliant.network.connection_choice import choose_between_hosts, choose_connections, with_spare
from pliant.network.parallel_streams import End, measure_connections
from pliant.network.probing import probe
from pliant.network.streams import measure_throughput
from pliant.spec import Topology, from_json, to_json


def latencies_s(*pairs):
    table = np.full((4, 4), math.nan)
    for i, j, trip_s in pairs:
        table[i, j] = table[j, i] = trip_s / 2
    return table


def streams_of(rates_over):
    """Streams whose rates follow from the pairs and the number of connections."""

    @contextmanager
    def streams(comm, pairs, duration_s):
        yield lambda connections: np.array(rates_over(pairs, connections))

    return streams


def rates_of(limits, window=1.0):
    """Streams of pairs, each with a limit, over connections that carry a window each."""
    return streams_of(lambda pairs, connections: [min(connections * window, limits[pair]) for pair in pairs])


@pytest.mark.parametrize(
    ("limit", "wanted"), [(0.5, 1), (1.05, 1), (1.5, 4), (2.1, 4), (7.9, 16), (8.1, 16), (20, 32), (1e9, 32)]
)
def test_twice_the_number_that_pays_is_chosen(limit, wanted, monkeypatch):
    monkeypatch.setattr(connection_choice, "_streams", rates_of({(0, 1): limit}))

    def body(place):
        return choose_between_hosts(place.comm, ["a", "b"], latencies_s((0, 1, 0.1)))

    found = pliant.run_world(2, body)
    assert found[0] == found[1]
    assert found[0].connections == wanted
    assert "a to b, round trip 100ms" in found[0].why


@pytest.mark.parametrize(
    ("carried", "measured", "wanted"),
    [
        ({1: 10, 32: 10.9}, [32, 1], 1),
        ({1: 10, 2: 19, 32: 20}, [32, 1, 1, 2], 4),
        ({1: 10, 4: 30, 8: 42, 32: 40}, [32, 1, 1, 4, 8], 16),  # four carry less than four times what one does
        ({1: 10, 2: 14, 4: 19, 8: 25, 16: 30, 32: 40}, [32, 1, 1, 4, 8, 16], 32),
        ({1: 10, 2: 40, 4: 42, 32: 20}, [32, 1, 1, 2], 4),  # too many are in each other's way
        ({1: 10, 32: 0}, [32, 1], 1),
        ({1: 0, 32: 0}, [32, 1], 1),
    ],
)
def test_what_one_and_what_all_carry_tell_what_to_measure(carried, measured, wanted, monkeypatch):
    asked = []

    def rates(pairs, connections):
        asked.append(connections)
        return [carried[connections]]

    monkeypatch.setattr(connection_choice, "_streams", streams_of(rates))
    found = choose_between_hosts(SimpleNamespace(rank=0, size=2), ["a", "b"], latencies_s((0, 1, 0.1)))
    assert (asked, found.connections) == (measured, wanted)


def test_one_connection_has_a_second_try(monkeypatch):
    """A packet that is lost halves the window of one, and hardly matters to many."""
    tries = iter([5.0, 10.0])
    streams = streams_of(lambda _, count: [next(tries) if count == 1 else 10.5])
    monkeypatch.setattr(connection_choice, "_streams", streams)
    found = choose_between_hosts(SimpleNamespace(rank=0, size=2), ["a", "b"], latencies_s((0, 1, 0.1)))
    assert found.connections == 1


RATES_BYTES_PER_S, TRIPS_S, WINDOWS = (1e6, 12.5e6, 125e6), (0.01, 0.1, 0.19, 0.21, 0.25, 0.5), (1e6, 2.8e6, 16e6)
LINKS = [*itertools.product(RATES_BYTES_PER_S, TRIPS_S, WINDOWS), (37.5e6, 0.25, 2.87e6)]


@pytest.mark.parametrize(("rate", "trip_s", "window"), LINKS)
def test_windows_fill_links_also_as_pauses_leave_them(rate, trip_s, window, monkeypatch):
    """A law over links: windows hold a round trip after the least pause of lock-step, and after a timeout more."""
    monkeypatch.setattr(connection_choice, "_streams", rates_of({(0, 1): rate}, window / trip_s))
    two = SimpleNamespace(rank=0, size=2)
    chosen = choose_between_hosts(two, ["a", "b"], latencies_s((0, 1, trip_s))).connections
    filling, gain = rate * trip_s, connection_choice._LEAST_GAIN
    if gain * window > filling:
        assert chosen == 1
        return
    for pause_s in (2 * trip_s, 2 * trip_s + trip_s + 0.2):  # one's slices may end a timeout before another's
        left = chosen * window / 2 ** float(halvings(pause_s, trip_s))
        assert chosen == 32 or gain * left >= filling
    assert chosen < 8 * gain * filling / window, "and no more than that takes"


def test_the_link_that_needs_most_decides(monkeypatch):
    limits = {(0, 1): 1.0, (2, 3): 4.0, (0, 2): 1e9}
    monkeypatch.setattr(connection_choice, "_streams", rates_of(limits))

    def body(place):
        # 0-2 shares its hosts with longer ones, and is not measured beside them.
        known = latencies_s((0, 1, 0.3), (2, 3, 0.2), (0, 2, 0.1))
        return choose_between_hosts(place.comm, list("abcd"), known)

    found = pliant.run_world(4, body)[0]
    assert found.connections == 8
    assert "c to d" in found.why


def test_each_link_counts_with_its_own_round_trip(monkeypatch):
    """Four pay on a short link, two on a long one, whose windows each message finds halved."""
    monkeypatch.setattr(connection_choice, "_streams", rates_of({(0, 1): 2.0, (2, 3): 2.0}))

    def body(place):
        known = latencies_s((0, 1, 0.3), (2, 3, 0.1))
        return choose_between_hosts(place.comm, list("abcd"), known)

    found = pliant.run_world(4, body)[0]
    assert found.connections == 8
    assert "a to b" in found.why
    assert with_spare(np.array([1, 2, 4, 2, 4, 16]), np.array([0.3, 0.1, 0.1, 0.3, 0.3, 0.3])).tolist() == [
        *(1, 4, 8, 8, 16, 32)
    ]


def test_short_round_trips_and_single_hosts_have_one_and_nothing_is_measured(monkeypatch):
    monkeypatch.setattr(connection_choice, "_streams", lambda *_: pytest.fail("something was measured"))

    def body(place):
        short = choose_between_hosts(place.comm, ["a", "b"], latencies_s((0, 1, 0.0019)))
        return short, choose_connections(place.comm)

    for short, alone in pliant.run_world(2, body):
        assert short.connections == alone.connections == 1
        assert "round trips take at most 1.9ms" in short.why
        assert "one host" in alone.why


def test_the_rates_are_those_of_real_streams(monkeypatch):
    """On loopback, where a second stream need not pay: any number may come out, the same on all ranks."""
    monkeypatch.setattr(connection_choice, "_LEAST_TRIP_S", 0.0)
    monkeypatch.setattr(connection_choice, "_LEAST_S", 0.05)
    monkeypatch.setattr(connection_choice, "MAX_CONNECTIONS", 4)
    found = pliant.run_world(2, lambda place: choose_connections(place.comm, hosts=[[0], [1]]))
    assert found[0] == found[1]
    assert found[0].connections in (1, 4)
    assert "connections 1: " in found[0].why


class Noted(WrappedComm):
    """Notes turn and bytes of the data that is sent."""

    def __init__(self, comm):
        super().__init__(comm)
        self.sent = []

    def exchange(self, sends, receives, *, turn=0, tag=0, patience_s=None):
        self.sent += [(turn, x.nbytes) for _, x in sends if x.dtype == torch.uint8]
        return super().exchange(sends, receives, turn=turn, tag=tag, patience_s=patience_s)


def connections_of(sent, striping):
    placed = [striping.placed(torch.empty(num_bytes, dtype=torch.uint8), turn) for turn, num_bytes in sent]
    return {connection for parts in placed for connection, _ in parts}


def test_streams_go_over_all_connections():
    """As large messages of a training do; a chunk of a stream by itself is cut into few slices."""

    def body(place):
        noted = Noted(place.comm)
        measure_throughput(noted, [1 - place.rank], [1 - place.rank], 0.2)
        return noted.sent

    for sent in pliant.run_world(2, body):
        assert connections_of(sent[-32:], Striping(2, 16)) == set(range(16))


@pytest.mark.parametrize("connections", [1, 3, 16])
def test_streams_go_over_so_many_of_the_first_connections(connections):
    def body(place):
        other = 1 - place.rank
        noted = Noted(duplicate(place.comm))
        rate = measure_connections(End(place.comm, other), End(noted, other), 0.1, connections)
        noted.close()
        return rate, noted.sent

    for rate, sent in pliant.run_world(2, body):
        assert rate > 0
        assert connections_of(sent[:32], Striping(2, 16)) == set(range(connections))
        assert connections_of(sent, Striping(2, 16)) == set(range(connections))


def test_the_probe_writes_the_number_into_the_topology(monkeypatch):
    monkeypatch.setattr(
        "pliant.network.probing.choose_between_hosts",
        lambda comm, names, known: pliant.comm.striping.ConnectionChoice(connections=3, why="three paid"),
    )

    def body(place):
        hosts = [[0], [1]]
        chosen = probe(place.comm, budget_s=0.5, hosts=hosts)
        return chosen, probe(place.comm, budget_s=0.5, hosts=hosts, connections=2)

    chosen, asked = pliant.run_world(2, body)[0]
    assert (chosen.connections, asked.connections) == (3, 2)
    assert "three paid" in chosen.provenance
    assert "2 connections between two ranks, as asked for" in asked.provenance
    assert from_json(Topology, to_json(chosen)) == chosen


def test_older_topologies_have_one_connection_and_keep_their_text():
    old = Topology(hosts=(pliant.spec.Host(name="a"),))
    assert "connections" not in to_json(old)
    assert from_json(Topology, to_json(old)).connections == 1
    with pytest.raises(ValueError, match="0 connections between two ranks; give at least 1"):
        Topology(hosts=(pliant.spec.Host(name="a"),), connections=0)
