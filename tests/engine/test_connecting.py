"""Connections of a run: as asked for, as a topology says, or as measured; the same training to the bit with any."""

import pytest
import torch

import pliant
from models import new_ddp, train, weights
from pliant.comm import ByDeviceComm, striping
from pliant.comm.striping import ConnectionChoice
from pliant.engine import connecting
from pliant.engine.connecting import choice_of, connect
from pliant.spec import Host, Topology, save
from tables import ALGORITHMS, BETWEEN_STEPS, optimizer_for, sampled

FOUR = Topology(hosts=(Host(name="a"), Host(name="b")), connections=4, provenance="measured once")
ROWS = {**ALGORITHMS, **BETWEEN_STEPS}
FREE = {
    "delayed_nesterov",
    "decoupled_diloco",
    "bounded_staleness",
    "stale",
    "stale-free",
    "stale-coded",
    "async_average",
    "gossip-free",
    "choco-free",
    "halos",
    "halos-alone",
}
"""Algorithms whose results depend on which rank comes first."""


@pytest.fixture(autouse=True)
def small_slices(monkeypatch):
    monkeypatch.setattr(striping, "SLICE_BYTES", 64)
    monkeypatch.setattr(striping, "SMALL_BYTES", 32)


def trained(place, name, connections):
    ddp = new_ddp(place)
    optimizer = optimizer_for(name, ddp.parameters())
    hosts = [[0, 1], [2]]
    with pliant.relax(ddp, optimizer, ROWS[name], hosts=hosts, timeout_s=20, connections=connections) as run:
        losses = train(ddp, optimizer, place.rank, range(7))
    return weights(ddp), losses, run.stats()  # with what was in flight at the end


@pytest.mark.parametrize("name", sampled([name for name in ROWS if name not in FREE]))
def test_every_algorithm_trains_to_the_same_bits_with_one_connection_and_with_four(name):
    def body(place):
        return [trained(place, name, connections) for connections in (1, 4)]

    for (one, losses, stats), (four, same_losses, other_stats) in pliant.run_world(3, body, timeout_s=60):
        assert torch.equal(one, four)
        assert losses == same_losses
        assert [stats["connections"], other_stats["connections"]] == [1, 4]
        assert stats["sent_bytes"] == other_stats["sent_bytes"]
        assert stats["received_bytes"] == other_stats["received_bytes"]


@pytest.mark.parametrize("name", sorted(FREE & set(ROWS)))
def test_algorithms_at_a_free_pace_train_with_four_connections(name):
    for found, losses, stats in pliant.run_world(3, lambda place: trained(place, name, 4), timeout_s=60):
        assert bool(found.isfinite().all())
        assert len(losses) == 7
        assert stats["connections"] == 4


@pytest.mark.parametrize(
    ("asked", "connections", "why"),
    [
        (None, 1, "as Gloo has it"),
        (8, 8, "connections=8"),
        (FOUR, 4, "measured once"),
        ("file", 4, "measured once"),
    ],
)
def test_a_number_a_topology_or_its_file_say_how_many(asked, connections, why, tmp_path):
    if asked == "file":
        asked = tmp_path / "topology.json"
        save(FOUR, asked)
    found = choice_of(asked)
    assert found.connections == connections
    assert why in found.why
    if isinstance(asked, type(tmp_path)):
        assert choice_of(str(asked)) == found


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (0, "0 connections between two ranks are asked for; give at least 1 and at most 32, or 'auto'"),
        (33, "33 connections"),
        ("nowhere.json", "connections='nowhere.json' names no topology"),
    ],
)
def test_what_says_no_number_is_refused_before_anything_begins(asked, message):
    def body(place):
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with pytest.raises(ValueError, match=message):
            pliant.relax(model, optimizer, "local_sgd", group=place.process_group, connections=asked)
        pliant.relax(model, optimizer, "local_sgd", group=place.process_group).close()  # nothing is left behind

    pliant.run_world(1, body)


def test_ranks_that_ask_for_different_numbers_are_told_so():
    def body(place):
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with pytest.raises(ValueError, match="connections= of ranks 1 differs from that of rank 0"):
            pliant.relax(model, optimizer, "local_sgd", group=place.process_group, connections=1 + place.rank)

    pliant.run_world(2, body, timeout_s=20)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"connections": 4}, r"elastic run have one connection .*; leave connections= or elastic= out"),
        (
            {"hosts": [[0]]},
            r"hosts=\[\[0\]\] is given, .* no level of hosts.*; leave hosts= or elastic= out",
        ),
        ({"rack": "a"}, r"rack='a' is given, .* no level of racks.*; leave rack= or elastic= out"),
        ({"agreement_every": 7}, "agreement_every=7 is given, .* are not compared.*; leave agreement_every="),
        ({"transport": "device"}, "transport='device' is given, .* by the host's memory.*; leave transport="),
    ],
)
def test_an_elastic_run_refuses_what_it_could_not_follow(given, sentence):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=sentence):
        pliant.relax(model, optimizer, "local_sgd", elastic=pliant.Elastic(), **given)


def test_several_connections_need_gloo(monkeypatch):
    monkeypatch.setattr(
        connecting, "comm_for", lambda *_, **__: (ByDeviceComm(place_comm[0], place_comm[0]), place_comm[0])
    )
    place_comm = []

    def body(place):
        place_comm.append(place.comm)
        arguments = place.process_group, torch.device("cpu"), "device", None, (20, 20)
        with pytest.raises(ValueError, match="go by the device's own backend; set transport='host'"):
            connect(*arguments, choice_of(4))
        comm, host, found = connect(*arguments, None)
        assert isinstance(comm, ByDeviceComm)
        assert host.connections == found.connections == 1
        return found.why

    assert "connections of its own" in pliant.run_world(1, body)[0]


def test_auto_measures_and_the_run_says_what_and_why(monkeypatch):
    found = ConnectionChoice(connections=3, why="measured so")
    monkeypatch.setattr(connecting, "choose_connections", lambda comm, hosts: found)

    def body(place):
        ddp = new_ddp(place)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        with pliant.relax(ddp, optimizer, "bytegrad", connections="auto") as run:
            train(ddp, optimizer, place.rank, range(2))
            stats = run.stats()
        with pliant.relax(ddp, optimizer, "auto") as run:
            assert run.stats()["connections"] == 3
        with pliant.relax(ddp, optimizer, "auto", connections=1) as run:
            assert run.stats()["connections"] == 1
        return stats["connections"], stats["connections_why"]

    assert pliant.run_world(2, body) == [(3, "measured so")] * 2
