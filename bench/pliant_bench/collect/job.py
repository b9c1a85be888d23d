"""Order of what is to be run: data that travels from the command line to the ranks. No torch."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal

from pliant.planner import BASELINES, Genome, Quality, Space
from pliant.planner.quality import MEASURED_STEPS_RATIO
from pliant.spec import Topology, Workload
from pliant_bench.harness.setup import Cell

__all__ = ["CHECK", "CONTROL", "Job", "PlannedTrial", "WorkloadCell", "entries_of", "left_of", "place_of"]

CHECK = -2
"""Asked for in the place of a cell's number: look at the links as they are."""
CONTROL = "ddp-bf16"
"""The builder that is run again and again: what it does to the same plan tells how far the machine has moved."""
_CONTROL_EVERY = 10
_REPEATED_SHARE = 0.05
_TRIES = 300
"""Samples in a row that bring nothing new, after which a space counts as exhausted."""

Kind = Literal["plan", "control", "repeat"]


@dataclass(frozen=True, kw_only=True)
class PlannedTrial:
    """A trial that is to be run."""

    number: int
    """Its place in its cell's order."""
    kind: Kind
    name: str
    """Of the builder, or 'sample'."""
    genes: Genome


@dataclass(frozen=True, kw_only=True)
class WorkloadCell:
    """A workload on a network, and what is to be run there."""

    cell: Cell
    workload: Workload
    size_share: float
    """Elements of the workload over those of the whole model."""
    topology: Topology
    entries: tuple[PlannedTrial, ...]


@dataclass(frozen=True, kw_only=True)
class Job:
    """All that one life of the ranks shall do."""

    places: tuple[WorkloadCell, ...]
    seconds_per_trial: float
    timeout_s: float
    """After which a trial counts as hung."""
    seed: int
    ranks_per_host: int
    emulated: bool
    """Whether each host has an interface of its own, so that its bytes mean something."""


def entries_of(
    cell: Cell, workload: Workload, topology: Topology, num: int, budget: float, seed: int
) -> list[PlannedTrial]:
    """Return the trials of a cell in their order: the same for the same arguments, on every machine.

    `num` different plans: the builders that are possible there, then samples of the space within the budget of
    quality; with 0, every plan that exchanges all layers alike. They come in random order, 5 % of them twice; a control
    plan comes first, last, and every 10 trials.

    Raises:
        ValueError: The space does not have so many plans.

    """
    rng = random.Random(f"{seed} {cell}")  # noqa: S311  an order, not a secret
    space = Space(workload, topology, Quality(budget=budget, ratios=MEASURED_STEPS_RATIO))  # nobody trains
    if num == 0:
        builders = {genes: name for name, genes in BASELINES.items() if genes in space}
        chosen = [(builders.get(genes, "sample"), genes) for genes in dict.fromkeys([*builders, *space.enumerate()])]
        num = len(chosen)
    else:
        chosen = list(islice(space.distinct(rng, _TRIES), num))
    if len(chosen) < num:
        raise ValueError(
            f"--plans is {num}, but only {len(chosen)} different plans were found within the budget of {budget:g}; "
            "lower --plans or raise --budget."
        )
    plans: list[tuple[Kind, str, Genome]] = [("plan", name, genes) for name, genes in chosen]
    rng.shuffle(plans)
    for _, name, genes in rng.sample(plans, round(_REPEATED_SHARE * num)):
        plans.insert(rng.randrange(len(plans) + 1), ("repeat", name, genes))
    return _with_controls(plans)


def _with_controls(plans: Sequence[tuple[Kind, str, Genome]]) -> list[PlannedTrial]:
    control: tuple[Kind, str, Genome] = ("control", CONTROL, BASELINES[CONTROL])
    order: list[tuple[Kind, str, Genome]] = []
    for k, plan in enumerate(plans):
        order += [control, plan] if k % _CONTROL_EVERY == 0 else [plan]
    order.append(control)
    return [PlannedTrial(number=n, kind=kind, name=name, genes=genes) for n, (kind, name, genes) in enumerate(order)]


def place_of(cell: Cell) -> str:
    """Return a cell's name for people."""
    slow = f", last host at {cell.slow_share:g} of the others' speed" if cell.slow_share else ""
    return f"{cell.model} at {cell.rate}, {cell.delay}{slow}"


def left_of(job: Job, done: Callable[[Cell, int], bool]) -> Job:
    """Return what is left of a job, given which trials of which cells were run; each session begins with a control."""
    places: list[WorkloadCell] = []
    for place in job.places:
        left = [entry for entry in place.entries if not done(place.cell, entry.number)]
        if left and left[0].kind != "control":
            control = next(entry for entry in place.entries if entry.kind == "control")
            left.insert(0, replace(control, number=-left[0].number))  # a number that no other has
        if left:
            places.append(replace(place, entries=tuple(left)))
    return replace(job, places=tuple(places))
