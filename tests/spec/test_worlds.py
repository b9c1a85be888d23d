"""Topologies by matrices and by name."""

import json

import numpy as np
import pytest
from hypothesis import given, strategies as st

from pliant.cli.topology_file import read_topology_file
from pliant.spec import Host, Link, Rack, Topology, from_json, save, to_json
from pliant.spec.matrices import topology_of_matrices, topology_of_words
from pliant.spec.units import parse_share
from pliant.spec.worlds import WORLDS, world


def figures(topology, noun):
    num = len(topology.hosts)
    index = {host.name: k for k, host in enumerate(topology.hosts)}
    found = np.zeros((num, num))
    for link in topology.links:
        found[index[link.source], index[link.target]] = getattr(link, noun)
    return found


@given(st.integers(1, 6), st.integers(0, 2**32))
def test_a_topology_of_matrices_has_their_figures(num, seed):
    rng = np.random.default_rng(seed)
    rates, delays, jitters, losses = rng.random((4, num, num)) * (1 - np.eye(num))
    found = topology_of_matrices(rates, delays, jitter_s=jitters, loss=losses)
    for noun, matrix in (("bytes_per_s", rates), ("latency_s", delays), ("jitter_s", jitters), ("loss", losses)):
        np.testing.assert_array_equal(figures(found, noun), matrix)
    assert from_json(Topology, to_json(found)) == found
    round_trips = delays + delays.T
    np.testing.assert_array_equal(
        figures(topology_of_matrices(rates, round_trip_s=round_trips), "latency_s"), round_trips / 2
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (([[0, 1], [1]],), "rate matrix is not square: it has 2 rows, but 1 columns in the row of host1"),
        (([[0, 1], [1, 0]], [[0, 1, 2], [1, 0, 2], [1, 2, 0]]), "delay matrix has 3 rows, but there are 2 hosts"),
        (([[0, -1], [1, 0]],), "rate from host0 to host1 is -1; it must be finite and at least 0"),
        (([[0, np.nan], [1, 0]],), "is nan"),
        (([[0, 1], [1, 2]],), "rate from host1 to itself is 2"),
    ],
)
def test_matrices_that_cannot_be_are_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        topology_of_matrices(*arguments)


def test_round_trips_are_the_same_both_ways():
    rates = [[0, 1], [1, 0]]
    with pytest.raises(ValueError, match=r"from host1 to host0 is 2ms, but from host0 to host1 1ms; .* give delays"):
        topology_of_matrices(rates, round_trip_s=[[0, 1e-3], [2e-3, 0]])
    with pytest.raises(ValueError, match="a matrix of delays and one of round trips; give one"):
        topology_of_matrices(rates, [[0, 1], [1, 0]], round_trip_s=[[0, 1], [1, 0]])


WORDS = {
    "hosts": ["a", "b"],
    "rates": [["-", "10mbit"], ["none", "-"]],
    "delays": [["-", "5ms"], ["-", "-"]],
    "losses": [["-", "0.5%"], ["0.01", "-"]],
}


def test_matrices_as_people_write_them(tmp_path):
    path = tmp_path / "m.json"
    path.write_text(json.dumps(WORDS))
    found = read_topology_file(path)
    assert [host.name for host in found.hosts] == ["a", "b"]
    np.testing.assert_array_equal(figures(found, "bytes_per_s"), [[0, 1.25e6], [0, 0]])
    np.testing.assert_array_equal(figures(found, "latency_s"), [[0, 5e-3], [0, 0]])
    np.testing.assert_array_equal(figures(found, "loss"), [[0, 0.005], [0.01, 0]])


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (
            {"rates": [["-", "-"], ["none", "-"]]},
            r"rates\[0\]\[1\] is '-', so that the second host could not be reached",
        ),
        ({"rates": [["-", "0mbit"], ["none", "-"]]}, "could not be reached"),
        ({"rates": [["-", 5], ["none", "-"]]}, r"rates\[0\]\[1\] is 5; write text with a unit"),
        ({"rates": [["-", "x"], ["none", "-"]]}, "'x' is not a rate"),
        ({"rates": "10mbit"}, "rates must be a list"),
        ({"hosts": [1, 2]}, "hosts must be a list of names"),
        ({"hosts": ["a", "a"]}, "two hosts have the same name"),
        ({"speeds": []}, "has no 'speeds'; it has hosts, rates"),
        ({"losses": [["-", "100%"], ["-", "-"]]}, "must be at least 0 and less than 1"),
        ({"round_trips": [["-", "1ms"], ["1ms", "-"]]}, "one of round trips"),
    ],
)
def test_what_people_write_wrongly_is_refused_with_the_file_named(tmp_path, other, words):
    with pytest.raises(ValueError, match=words):
        topology_of_words({**WORDS, **other})
    path = tmp_path / "m.json"
    path.write_text(json.dumps({**WORDS, **other}))
    with pytest.raises(ValueError, match=r"m\.json: "):
        read_topology_file(path)


def test_a_topology_is_a_world_or_a_file(tmp_path, monkeypatch):
    assert read_topology_file("lan") == world("lan")
    own = Topology(hosts=(Host(name="mine"),))
    save(own, tmp_path / "lan")
    monkeypatch.chdir(tmp_path)
    assert read_topology_file("lan") == own
    with pytest.raises(ValueError, match="there is no topology 'lam': it is neither a file nor one of lan, two-racks"):
        read_topology_file("lam")


@pytest.mark.parametrize("name", WORLDS)
def test_worlds_are_records_that_scale(name):
    full, tenth = world(name), world(name, scale=0.1)
    assert from_json(Topology, to_json(full)) == full
    assert [h.send_bytes_per_s for h in tenth.hosts] == pytest.approx([0.1 * h.send_bytes_per_s for h in full.hosts])
    assert [r.receive_bytes_per_s for r in tenth.racks] == pytest.approx(
        [0.1 * r.receive_bytes_per_s for r in full.racks]
    )
    np.testing.assert_allclose(figures(tenth, "bytes_per_s"), 0.1 * figures(full, "bytes_per_s"))
    for noun in ("latency_s", "jitter_s", "loss"):
        np.testing.assert_array_equal(figures(tenth, noun), figures(full, noun))


def test_figures_of_worlds():
    regions = world("ten-regions")
    at = {host.name: k for k, host in enumerate(regions.hosts)}
    trips, rates = figures(regions, "latency_s") * 2e3, figures(regions, "bytes_per_s") * 8e-9
    for matrix in (trips, rates):
        np.testing.assert_array_equal(matrix, matrix.T)
    assert (trips[at["oregon"], at["ireland"]], rates[at["ireland"], at["oregon"]]) == (124, pytest.approx(0.482))
    assert (trips[at["frankfurt"], at["ireland"]], rates[at["tokyo"], at["seoul"]]) == (24, pytest.approx(1.10))
    homes = world("home-uplinks")
    assert all(host.send_bytes_per_s < host.receive_bytes_per_s for host in homes.hosts)
    assert figures(homes, "loss").max() == pytest.approx(1 - 0.998 * 0.995)


def test_what_is_no_world_or_scale_is_refused():
    with pytest.raises(ValueError, match="no world 'moon'; there are lan, two-racks"):
        world("moon")
    for scale in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="cannot be scaled by"):
            world("lan", scale)
    rack = Topology(hosts=(Host(name="a"),), racks=(Rack(name="r", hosts=("a",), send_bytes_per_s=2.0),))
    assert rack.scaled(2).racks[0].send_bytes_per_s == 4


def test_a_link_of_before_reads_and_writes_as_it_did():
    link = '{"bytes_per_s":1000.0,"latency_s":0.5,"source":"a","target":"b"}'
    topology = Topology(
        hosts=(Host(name="a"), Host(name="b")), links=(Link(source="a", target="b", bytes_per_s=1e3, latency_s=0.5),)
    )
    assert link in to_json(topology)
    assert parse_share("0.5%") == pytest.approx(parse_share("0.005")) == 0.005
