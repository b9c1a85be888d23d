"""Experience: what one training's search has measured and kept, as a file that a later run begins from."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pliant.netmodel import KEYS, Overheads
from pliant.planner.genome import Gene, Genome, all_of
from pliant.planner.predictor import trusted_coefficients
from pliant.planner.trials import Trial
from pliant.spec import Topology, Workload, load
from pliant.spec.files import canonical_hash
from pliant.spec.plain import LATER

__all__ = ["Experience", "TrainingSetup", "load_experience", "plans_text"]


@dataclass(frozen=True, kw_only=True)
class TrainingSetup:
    """Training that an experience is of: a model with its optimizer, and the ranks that train it."""

    shapes: tuple[tuple[int, ...], ...]
    """Shapes of the parameters, in the model's order."""
    dtypes: tuple[str, ...]
    """Their types, such as 'float32'."""
    optimizer: str
    """Class of the optimizer."""
    ranks: tuple[int, ...]
    """Ranks of each host."""
    machines: tuple[str, ...]
    """Names of the hosts."""
    quality: float
    """How many times the steps a plan might need."""
    release: str
    """Version of Pliant."""
    num_shards: int = field(default=0, metadata=LATER)
    """Ranks among which parameters are divided; 0 for a model that each rank holds whole."""

    @property
    def model_hash(self) -> str:
        """Hash of what is trained: shapes, types and optimizer."""
        return canonical_hash(_Model(shapes=self.shapes, dtypes=self.dtypes, optimizer=self.optimizer))

    @property
    def file_name(self) -> str:
        """Name of the file of this setup in a folder of experiences: the hash of the model, then that of it all."""
        return f"{self.model_hash}-{canonical_hash(self)}.json"

    def objection(self, other: "TrainingSetup") -> str:
        """Return why what was kept under another setup says nothing about this one; "" if it may be a start."""
        if other.release != self.release:
            return f"it was written by Pliant {other.release}, and this is {self.release}"
        if (other.shapes, other.dtypes) != (self.shapes, self.dtypes):
            return f"it is of a model with {_describe(other)}, and this one has {_describe(self)}"
        if other.optimizer != self.optimizer:
            return f"it is of a training with {other.optimizer}, and this one uses {self.optimizer}"
        return ""


@dataclass(frozen=True, kw_only=True)
class _Model:
    """Model and optimizer, without the ranks."""

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    optimizer: str


@dataclass(frozen=True, kw_only=True)
class Experience:
    """Measurements of a search, and the plan that it kept.

    A search that was interrupted has written what it knew: `kept` is then the best plan so far.
    """

    setup: TrainingSetup
    workload: Workload
    """Computing and tensors of a step."""
    topology: Topology
    """Hosts and links as they were measured."""
    overheads: Overheads
    """Costs of the machine, as they were measured."""
    coefficients: tuple[float, ...]
    """Coefficients of `pliant.netmodel.KEYS` that were fitted to the trials, (num_keys,)."""
    trials: tuple[Trial, ...]
    """Plans that were tried, with their step times."""
    predicted_s: tuple[float, ...]
    """Step time that was predicted for each of them before its trial."""
    ratios: tuple[float, ...]
    """How many times the steps of exact training each of them was taken to need."""
    kept: Genome
    kept_s: float
    """Step time of the kept plan; 0 if it is not known."""
    bytes_per_s: float = 0.0
    """Rate of the watched steps' own messages; 0 if they were too small to tell."""
    written: str = ""
    """Date and time."""
    complete: bool = True
    """Whether the search had come to its end."""
    refused: tuple[str, ...] = ()
    """Plans that failed, and why, a sentence each."""
    knows_links: bool = True
    """Whether all links were measured; else the topology is of a first look at hosts that are not even."""

    def __post_init__(self) -> None:
        if len({len(self.trials), len(self.predicted_s), len(self.ratios)}) > 1 or not self.trials:
            raise ValueError(
                f"an experience has {len(self.trials)} trials, {len(self.predicted_s)} predictions and "
                f"{len(self.ratios)} ratios; it needs one of each for every plan, and at least one plan."
            )
        strange = [g for plan in (self.kept, *(t.genes for t in self.trials)) for g in plan.genes if not _is_known(g)]
        if strange:
            raise ValueError(f"a plan in this experience is {strange[0].family} with settings that no search tries.")
        if len(self.coefficients) != len(KEYS):
            raise ValueError(
                f"an experience has {len(self.coefficients)} coefficients, but this Pliant has {len(KEYS)}."
            )
        if min(self.kept_s, self.bytes_per_s, *self.predicted_s, *self.ratios) < 0:
            raise ValueError("a time, a rate or a ratio in this experience is below 0, which none can be.")
        if any(min(trial.steps_s, default=float(trial.status == "failed")) <= 0 for trial in self.trials):
            raise ValueError("a trial in this experience has no step time above 0, but says that it did not fail.")

    @property
    def plans_text(self) -> str:
        """Lines on the plans that were tried: what was predicted, and what was seen."""
        return plans_text(self.trials, self.predicted_s)

    def step_s(self, genes: Genome) -> float:
        """Return the measured step time of a plan in s; 0 if it is not known."""
        seen = (trial.step_s for trial in self.trials if trial.genes == genes and trial.status == "ok")
        return next(seen, self.kept_s if genes == self.kept else 0.0)

    @property
    def learned_overheads(self) -> Overheads:
        """The machine's costs with the fitted coefficients, none of them beyond four times what was measured."""
        fitted = trusted_coefficients(np.array(self.coefficients), self.overheads.coefficients())
        return self.overheads.with_coefficients(fitted)


def _is_known(gene: Gene) -> bool:
    return gene in all_of(gene.family)


def plans_text(trials: Sequence[Trial], predicted_s: Sequence[float]) -> str:
    """Return a line for each plan that was tried, with its predicted and its measured step time."""
    lines = ["Plans that were tried, predicted and seen:"]
    for trial, before_s in zip(trials, predicted_s, strict=True):
        seen = f"{1e3 * trial.step_s:.4g} ms" if trial.steps_s else f"failed: {trial.reason}"
        lines.append(f"  {trial.genes.summary}: {1e3 * before_s:.4g} ms, {seen}")
    return "\n".join(lines)


def load_experience(path: str | Path, setup: TrainingSetup | None = None) -> Experience:
    """Read an experience again.

    Args:
        path: File that `pliant.spec.save` has written.
        setup: Of the training that it is for; None to take any.

    Raises:
        ValueError: It is damaged, holds something else, or is of another model, optimizer or version of Pliant.
        OSError: It is not there, or may not be read.

    """
    found = load(Experience, path)
    if setup is not None and (why := setup.objection(found.setup)):
        raise ValueError(f"{path}: {why}.")
    return found


def _describe(setup: TrainingSetup) -> str:
    numel = sum(math.prod(shape) for shape in setup.shapes)
    return f"{len(setup.shapes)} parameters of {numel} elements in all"
