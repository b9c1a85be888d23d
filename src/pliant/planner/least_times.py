"""Least time of a step under a plan, by arithmetic: what is above the best known plan need not be simulated."""

from dataclasses import dataclass
from functools import cached_property

from pliant.netmodel import KEYS, Overheads
from pliant.planner.genome import Genome
from pliant.simulator.layout import itemsize
from pliant.spec import (
    AllReduce,
    BetweenGroups,
    Delayed,
    Every,
    Exchange,
    LocalSteps,
    ScatterGather,
    Topology,
    Workload,
)

__all__ = ["LeastTimes"]


@dataclass(frozen=True)
class LeastTimes:
    """Least step times that the simulator can say on a workload and a topology, without simulating.

    A step takes at least what a rank computes. It also takes at least what the wires need: to add up a vector of h
    hosts and to give all of them the sum, hosts send at least 2 (h - 1) vectors together. The bound is of Patarasuk
    and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009. Exchanges whose bytes are
    not known here count nothing, nor do gradients that come as rows.
    """

    workload: Workload
    topology: Topology
    overheads: Overheads

    def __call__(self, genes: Genome) -> float:
        """Return the least time of a step, in s."""
        divided = any(gene.exchange.has_owners for gene in genes.genes) or self.workload.is_sharded
        compute_s = self.workload.forward_s + self.workload.backward_s + (0.0 if divided else self.workload.step_s)
        fastest = min((1.0, *self.workload.rank_factors))  # at a free pace it waits for nobody
        return max(self._factors[0] * fastest * compute_s, self._factors[1] * self._wire_s(genes))

    def _wire_s(self, genes: Genome) -> float:
        if not self._bytes_per_s or self.workload.is_sharded:
            return 0.0
        if not any(_bits(gene.exchange) for gene in genes.genes):
            return 0.0
        plan = genes.plan()
        bits = 0.0
        for tensor in self.workload.tensors:
            if not tensor.sparse_rows:
                most = _bits(plan.exchange_for(tensor.name, tensor.layer, tensor.numel))
                bits += tensor.numel * min(most, 8.0 * itemsize(tensor))
        return 2 * (len(self.topology.hosts) - 1) * bits / 8 / self._bytes_per_s

    @cached_property
    def _bytes_per_s(self) -> float:
        """Bytes that all hosts send in a second; 0 if one has no limit."""
        rates = [host.send_bytes_per_s for host in self.topology.hosts]
        return sum(rates) if all(rates) else 0.0

    @cached_property
    def _factors(self) -> tuple[float, float]:
        """Coefficients of computing and of the wire where they shorten times, else 1."""
        known = self.overheads.coefficients()
        return min(1.0, float(known[KEYS.index("compute_s")])), min(1.0, float(known[KEYS.index("wire_s")]))


def _bits(node: Exchange) -> float:
    """Return the least bits of an element that go through a sum in a step; 0 where that is not known."""
    if isinstance(node, LocalSteps):
        return _bits(node.averaging) / node.period if node.pace == "lockstep" and not node.stretch else 0.0
    if isinstance(node, Every):
        return _bits(node.inner) / node.steps
    if isinstance(node, (BetweenGroups, Delayed)):
        return _bits(node.inner)
    if not isinstance(node, (AllReduce, ScatterGather)):
        return 0.0
    codec = node.codec
    if codec is None:
        return 32.0
    if codec.facts.kind not in ("cast", "quantizer"):
        return 0.0
    return codec.setting("bits") if "bits" in codec.facts.settings else codec.facts.bits
