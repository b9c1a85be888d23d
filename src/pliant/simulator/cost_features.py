"""Counted quantities of simulated steps, to which coefficients are fitted."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pliant.netmodel import KEYS, Floats, Overheads, overheads_of
from pliant.simulator.context import SimulationContext
from pliant.simulator.prepared import prepare
from pliant.simulator.simulate import BUCKET_BYTES, context_for, run
from pliant.spec import SyncPlan, Topology, Workload

__all__ = ["CostFeatures"]

_MEANS = 2
"""Of weights, and of one state of the optimizer."""
_SURE, _UNSURE = 3.0, 0.03
"""Trust in seconds that follow from what was measured of computing and links; and in costs of messages, of buckets and
of codecs, which are measured on cores that are busy."""


class CostFeatures:
    """Counted quantities on the critical paths of plans, on one workload and topology.

    Args:
        workload: The model and its times.
        topology: The ranks and their links.
        overheads: Initial coefficients; those of the machines that hosts name, or defaults, if None.
        slowdown: As in `simulate`.

    """

    def __init__(
        self, workload: Workload, topology: Topology, overheads: Overheads | None = None, slowdown: Sequence[float] = ()
    ) -> None:
        self._workload, self._topology, self._slowdown = workload, topology, slowdown
        self._overheads = overheads or overheads_of(topology)
        self.coefficients = self._overheads.coefficients()
        """Seconds per unit of each of `KEYS`, (num_keys,)."""
        self.trust = np.array([_SURE if key in ("compute_s", "wire_s", "latency_s") else _UNSURE for key in KEYS])
        """Trust in each of them, in trials, (num_keys,)."""
        self._context: SimulationContext | None = None
        self._of = self.coefficients
        """What the last plans were simulated with, and the coefficients of it."""

    def counts(self, plans: Sequence[SyncPlan], coefficients: Floats) -> Floats:
        """Return the quantities on each plan's critical path of a step, (num_plans, num_keys), with these coefficients.

        A plan's step time is the sum of its quantities, each times its coefficient.
        """
        compute = max(float(coefficients[0]), 1e-30)
        if self._context is None or not np.array_equal(coefficients, self._of):
            overheads, workload = self._overheads.with_coefficients(coefficients), _slower(self._workload, compute)
            self._context, self._of = context_for(workload, self._topology, overheads, self._slowdown), coefficients
        context = self._context
        found = [run(prepare(plan, context, BUCKET_BYTES), 0).counted for plan in plans]
        table = np.array([[counted.get(key, 0.0) for key in KEYS] for counted in found])
        table[:, 0] /= compute
        return table

    def leaving_s(self) -> float:
        """Return about the time in which ranks leave a plan that has kept them apart, while nothing computes.

        They come to the means, in 32 bits, of all parameters and of one state of the optimizer.
        """
        idle = replace(_slower(self._workload, 0.0), num_shards=0)
        context = context_for(idle, self._topology, self._overheads, self._slowdown)
        return _MEANS * run(prepare(SyncPlan(), context, BUCKET_BYTES), 0).step_s


def _slower(workload: Workload, factor: float) -> Workload:
    return replace(
        workload,
        forward_s=workload.forward_s * factor,
        backward_s=workload.backward_s * factor,
        step_s=workload.step_s * factor,
        tensors=tuple(replace(tensor, ready_s=tensor.ready_s * factor) for tensor in workload.tensors),
    )
