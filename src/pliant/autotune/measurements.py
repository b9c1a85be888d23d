"""Measurements of machine and links: short before the first plan is chosen, and longer once a run has the time."""

import math
from collections.abc import Sequence

from pliant.autotune.coordination import share_number
from pliant.autotune.recall import Conditions
from pliant.autotune.watching import WatchedSteps
from pliant.comm.base import Comm
from pliant.netmodel import Overheads
from pliant.network.first_look import LinkView
from pliant.network.machine import measure_machine
from pliant.network.probing import probe
from pliant.planner.challenge import is_changed
from pliant.simulator import simulate
from pliant.spec import SyncPlan, Topology

__all__ = ["NetworkMeasurements"]

_PROBES = 40
"""Times of a probe that a run trains before it probes links that a first look has not shown: a probe of hosts that are
not even may take twice its time, so that is a twentieth."""
_OF_TIMEOUT = 0.4
"""Share of the longest time of an exchange that a probe may take, which refuses half of it."""
_OF_STEP, _OF_PROBE = 1 / 3, 1 / 20
"""Share of a step, and of a probe, that a measurement of the machine may take: what it finds is a part of a step."""


class NetworkMeasurements:
    """Measurements of the machine and of the links of a run; the same on all ranks.

    Args:
        comm: Over a group that nothing else uses.
        hosts: Ranks of each host; those of each machine if None.

    """

    def __init__(self, comm: Comm, hosts: Sequence[Sequence[int]] | None) -> None:
        self._comm, self._hosts = comm, hosts
        self.overheads = Overheads()
        """Costs of the machine; the defaults until it was measured."""
        self.topology: Topology
        """Hosts and links, there once they were measured."""
        self.is_complete = True
        """Whether a probe would tell little more of the links."""

    def recall(self, known: Conditions) -> None:
        """Take over what an earlier run has left."""
        self.overheads, self.topology, self.is_complete = known.overheads, known.topology, known.knows_links

    def due_s(self, probe_s: float) -> float:
        """Return the time since the run began from which on links are probed; inf for never."""
        return math.inf if self.is_complete else _PROBES * probe_s

    def look(self, watched: WatchedSteps, plan: SyncPlan, probe_s: float) -> None:
        """Measure the machine, and links by a first look; by a probe where all ranks are on one host. Collective.

        Links that do not explain the time of the first steps are looked at once more, and what explains it better
        counts: one stream that was held up can make another network of them all.

        Args:
            watched: The first steps.
            plan: What was in force in them.
            probe_s: Time for a probe.

        """
        machine_s = min(_OF_PROBE * probe_s, _OF_STEP * watched.step_s)
        self.overheads = Overheads.of(measure_machine(self._comm, budget_s=machine_s))
        view = self._look_at_links(watched)
        if view is None:
            self.probe(probe_s)
            return
        times = self._times_off(view, watched, plan)
        if is_changed(times, 1.0) and (again := self._look_at_links(watched)) is not None:
            view = again if self._times_off(again, watched, plan) < times else view
        self.topology, self.is_complete = view.topology, view.is_complete

    def probe(self, budget_s: float) -> None:
        """Measure all links, within a budget in s. Collective."""
        budget_s = min(budget_s, _OF_TIMEOUT * self._comm.timeout_s)
        connections = self._comm.connections
        self.topology = probe(self._comm, budget_s=budget_s, connections=connections, hosts=self._hosts)
        self.is_complete = True

    def _look_at_links(self, watched: WatchedSteps) -> LinkView | None:
        return watched.look_at_links(self._comm, self.overheads.message_s, self._hosts)

    def _times_off(self, view: LinkView, watched: WatchedSteps, plan: SyncPlan) -> float:
        """Return how many times longer or shorter than seen these links make a step; the first rank's on all."""
        factors = watched.workload.rank_factors
        try:
            found = simulate(plan, watched.workload, view.topology, overheads=self.overheads, slowdown=factors)
        except Exception:  # noqa: BLE001  predictions will fail as well, and the search says so
            found = None
        step_s = watched.step_s if found is None else found.step_s
        return share_number(self._comm, max(step_s / watched.step_s, watched.step_s / step_s))
