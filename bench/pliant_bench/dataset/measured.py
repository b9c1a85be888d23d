"""The measured cells of a data set, each with its physics."""

import statistics
from dataclasses import dataclass, replace

from pliant.planner import Trial
from pliant.simulator import CostFeatures, Overheads
from pliant.spec import Workload
from pliant_bench.dataset import Dataset, NetworkRow

__all__ = ["MeasuredCell", "as_watched", "measured_cells", "physics_of"]


@dataclass(frozen=True, kw_only=True)
class MeasuredCell:
    """A model on a network, and the plans that were run there to the end, each once."""

    model_id: str
    topo_id: str
    physics: CostFeatures
    trials: tuple[Trial, ...]

    @property
    def name(self) -> str:
        """Model and network, without hashes."""
        return f"{self.model_id.rpartition('-')[0]} {self.topo_id.rpartition('-')[0]}"

    def shares(self, other: "MeasuredCell") -> bool:
        """Say whether two cells have the model or the network in common."""
        return self.model_id == other.model_id or self.topo_id == other.topo_id


def measured_cells(dataset: Dataset) -> list[MeasuredCell]:
    """Return the cells that were measured; of a plan that was run again, its first run.

    Raises:
        ValueError: Nothing was measured.

    """
    runs = dataset.runs
    named = sorted(
        {
            (model, topo, provenance)
            for model, topo, provenance in zip(runs["model_id"], runs["topo_id"], runs["provenance"], strict=True)
            if provenance != "simulated"
        }
    )
    watched: dict[tuple[str, str], list[float]] = {}
    for row in dataset.rows("sessions"):
        watched.setdefault((row["model_id"], row["topo_id"]), []).append(row["compute_s"])
    cells: list[MeasuredCell] = []
    for model_id, topo_id, provenance in named:
        sound = [t for t in dataset.trials(model_id, topo_id, provenance) if t.status == "ok"]
        if not sound:
            continue
        first = {trial.genes: trial for trial in reversed(sound)}
        network = dataset.topologies[topo_id]
        step_s = statistics.median(watched[model_id, topo_id])
        physics = physics_of(as_watched(dataset.models[model_id].workload, network, step_s), network)
        cells.append(
            MeasuredCell(model_id=model_id, topo_id=topo_id, physics=physics, trials=tuple(reversed(first.values())))
        )
    if not cells:
        raise ValueError("the data set has no measured run that came to an end; collect some with pliant collect.")
    return cells


def as_watched(workload: Workload, network: NetworkRow, alone_s: float) -> Workload:
    """Return a workload whose step takes as long as it was watched to take, as "auto" watches it before it predicts.

    Args:
        workload: By formula: it knows nothing of the optimizer, nor of gradients that are copied.
        network: Where it ran.
        alone_s: Step of the slowest rank without communication.

    """
    slowest = max(network.slowdown, default=1.0)
    return replace(workload, step_s=max(0.0, alone_s / slowest - workload.forward_s - workload.backward_s))


def physics_of(workload: Workload, network: NetworkRow, overheads: Overheads | None = None) -> CostFeatures:
    """Return the simulator for a workload on a network, with its slow host."""
    return CostFeatures(workload, network.topology, overheads, network.slowdown)
