"""Links that do not explain the watched steps are looked at once more, and what explains them better counts."""

from dataclasses import dataclass, field, replace

import pytest

import pliant
from planner.examples import FLAT, WORKLOAD
from pliant.autotune import measurements
from pliant.autotune.measurements import NetworkMeasurements
from pliant.autotune.watching import WatchedSteps
from pliant.netmodel import Overheads
from pliant.network.first_look import LinkView
from pliant.simulator import simulate
from pliant.spec import SyncPlan

PLAN = SyncPlan()


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    monkeypatch.setattr(measurements, "measure_machine", lambda comm, budget_s: None)
    monkeypatch.setattr(measurements.Overheads, "of", lambda machine: Overheads())


def flat(rate):
    hosts = [replace(host, send_bytes_per_s=rate, receive_bytes_per_s=rate) for host in FLAT.hosts]
    return replace(FLAT, hosts=tuple(hosts))


@dataclass(frozen=True, kw_only=True)
class Watched(WatchedSteps):
    """Steps whose links are seen as told, look by look."""

    rates: tuple[float, ...]
    looks: list[float] = field(default_factory=list)

    def look_at_links(self, comm, message_s, hosts):
        self.looks.append(self.rates[len(self.looks)])
        return LinkView(topology=flat(self.looks[-1]), is_complete=len(self.looks) == 1)


@pytest.mark.parametrize(
    ("rates", "found"),
    [
        ((1.1e7,), 1.1e7),
        ((3e7, 1.1e7), 1.1e7),  # a host was seen at three times its rate
        ((3e6, 1.1e7), 1.1e7),
        ((3e7, 4e7), 3e7),
        ((4e7, 3e7), 3e7),
    ],
)
def test_links_that_explain_the_steps_are_taken(rates, found):
    step_s = simulate(PLAN, WORKLOAD, flat(1e7), overheads=Overheads()).step_s

    def body(place):
        watched = Watched(workload=WORKLOAD, step_s=step_s, finds_loss=True, bytes_per_s=0.0, busy_s=0.0, rates=rates)
        measured = NetworkMeasurements(place.comm, None)
        measured.look(watched, PLAN, 1.0)
        return measured.topology.hosts[0].send_bytes_per_s, measured.is_complete, len(watched.looks)

    assert pliant.run_world(2, body) == [(found, found == rates[0], len(rates))] * 2


def test_links_are_taken_as_seen_where_nothing_can_be_predicted(monkeypatch):
    def fail(*_, **__):
        raise ValueError("no such host")

    monkeypatch.setattr(measurements, "simulate", fail)

    def body(place):
        watched = Watched(workload=WORKLOAD, step_s=1.0, finds_loss=True, bytes_per_s=0.0, busy_s=0.0, rates=(1e7,))
        measured = NetworkMeasurements(place.comm, None)
        measured.look(watched, PLAN, 1.0)
        return measured.topology.hosts[0].send_bytes_per_s

    assert pliant.run_world(2, body) == [1e7, 1e7]
