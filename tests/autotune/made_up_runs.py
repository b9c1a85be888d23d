"""Made-up runs: steps pass, and a clock says what they would have taken on the network of the moment."""

import threading
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pliant.autotune import measurements, monitor, plan_search, searches, trials
from pliant.autotune.recall import recall
from pliant.autotune.tuner import AutoTuner
from pliant.engine.plan_resolution import resolve_plan
from pliant.engine.trial import PlanOnTrial
from pliant.netmodel import PRESETS
from pliant.simulator import CostFeatures, Overheads, simulate
from pliant.simulator.models import equal_layers
from pliant.spec import Host, Topology

__all__ = ["FAST", "SLOW", "WORKLOAD", "Clock", "Remembering", "Sky", "clock", "few", "network"]

WORKLOAD = equal_layers("thirty", 2e7, 30, 0.3)
SLOW_CODERS = {
    name: {codec: 30 * each_s for codec, each_s in getattr(Overheads(), name).items()}
    for name in ("encode_s", "feedback_s", "decode_s", "add_s")
}
TRUTH = Overheads(wire_factor=1.2, message_s=4e-4, bucket_s=6e-4, **SLOW_CODERS)
"""What pays on a slow network does not on a fast one."""


def network(mbit_per_s: float) -> Topology:
    rate = mbit_per_s * 1e6 / 8
    return Topology(hosts=tuple(Host(name=f"h{k}", send_bytes_per_s=rate, receive_bytes_per_s=rate) for k in range(4)))


FAST, SLOW = network(10_000), network(100)


class Clock:
    """Each thread's own, in place of the module `time`, and the probe that sees the network of the moment."""

    def __init__(self):
        self.mine = threading.local()
        self.probes = []

    def perf_counter(self):
        return self.mine.now_s

    def probe(self, comm, **_):
        sky = self.mine.sky
        if comm.rank == 0:
            self.probes.append(sky.steps)
        return sky.network_at(sky.steps)


class Sky:
    """A run of which only the plan is real."""

    def __init__(self, clock, network_at, switch_s=0.0):
        self.plan = resolve_plan("allreduce", None)
        self.switch_s = switch_s
        """Time that it takes to put a plan on trial."""
        self.model = torch.nn.Linear(2, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.steps = 0
        self.trial = PlanOnTrial()
        self.curvature = SimpleNamespace(is_told=True)
        self.num_shards = 0
        self.clock, self.network_at = clock, network_at
        self.log = []
        """Steps and plans of all switches."""
        clock.mine.now_s, clock.mine.sky = 0.0, self

    def stats(self):
        return {
            "residual_norm": 0.0,
            "consensus_distance": 0.0,
            "sent_bytes": 0,
            "exchange_s": 0.0,
            "sent_messages": 0,
        }

    def switch(self, what, *, pay=True):
        if what.hash != self.plan.hash:
            self.log.append((self.steps, what))
        self.plan = what

    def put_on_trial(self, plan):
        self.trial.begin(self.model, (self.optimizer,), {})
        self.clock.mine.now_s += self.switch_s
        self.switch(plan)

    def adopt(self, plan):
        self.trial.guard(self.model, (self.optimizer,))
        self.switch(plan)

    def undo(self, plan):
        raise AssertionError("no trial fails here")

    fall_back = undo

    def step_s(self, plan):
        return simulated(plan, self.network_at(self.steps))

    def fly(self, auto, comm, num_steps):
        first_s = self.step_s(self.plan)
        observed = SimpleNamespace(done=True, blind=False, step_s=first_s, workload=lambda comm: WORKLOAD)
        observed.close = observed.end_step = lambda: None
        flight = self.tuner = AutoTuner(self, auto, observed, comm, recall(self.model, self.optimizer, auto, comm))
        for _ in range(num_steps):
            self.clock.mine.now_s += self.step_s(self.plan)
            self.steps += 1
            flight.after_step(self.steps)
        flight.close()
        return self


@cache
def simulated(plan, topology):
    return simulate(plan, WORKLOAD, topology, overheads=TRUTH).step_s


class Remembering(CostFeatures):
    """Searches of all tests ask for much the same."""

    kept = {}  # noqa: RUF012

    def counts(self, plans, coefficients):
        asked = [(self._topology, coefficients.tobytes(), plan) for plan in plans]
        for key in asked:
            if key not in self.kept:
                self.kept[key] = super().counts([key[2]], coefficients)[0]
        return np.array([self.kept[key] for key in asked])


@pytest.fixture
def few(monkeypatch):
    """Predict few plans, for runs of which only the end counts."""
    monkeypatch.setattr(searches, "_SAMPLES", 12)


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(plan_search, "CostFeatures", Remembering)
    for module in (trials, monitor, searches):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(measurements, "probe", clock.probe)
    monkeypatch.setattr(measurements, "measure_machine", lambda comm, budget_s: PRESETS["cpu-core"])
    return clock
