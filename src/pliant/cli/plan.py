"""`pliant plan`: the plan that is predicted to pay on a network, without trying it."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from pliant.cli import inputs
from pliant.netmodel import Overheads
from pliant.planner import (
    CodecErrors,
    FrontierPoint,
    Genome,
    LeastTimes,
    Quality,
    Scale,
    Space,
    advise,
    divided,
    error_budget_seeds,
    frontier,
    limits_text,
    measured_genomes,
    named_genomes,
    search_predicted,
)
from pliant.planner.experience import Experience, load_experience
from pliant.simulator import Simulated, simulate, simulate_many, write_trace
from pliant.spec import SyncPlan, Topology, Workload, save, to_json
from pliant.spec.files import require_places, write_atomically
from pliant.spec.units import format_bytes, format_time

__all__ = ["plan"]

_QualityOption = Annotated[
    float | None,
    typer.Option(
        help="How many times the steps to the same accuracy a plan may need; 1: exact ones alone. By default 1, or, "
        "with --error-budget, any."
    ),
]
_ErrorBudgetOption = Annotated[
    float | None,
    typer.Option(help="Relative squared error of the gradient that a plan may have, as the workload measured it."),
]
_OptimizerOption = Annotated[
    str, typer.Option(help="The training's, by its class: SGD, AdamW, Muon for Muon and AdamW; that of --model.")
]
_UnmeasuredOption = Annotated[
    bool, typer.Option(help="With other optimizers than SGD, count on what was measured with SGD.")
]
_ModelOption = Annotated[str, typer.Option(help="Your own training, as module:function, which is profiled here.")]
_ShardedOption = Annotated[
    int, typer.Option(help="Ranks among which fully_shard divides each copy of the model; 0: as the workload says.")
]
_TunedForOption = Annotated[
    int, typer.Option(help="Samples a step for which its learning rate was tuned; 0: one rank's.")
]
_ExperienceOption = Annotated[
    Path | None,
    typer.Option(
        help="What a run has measured and kept (~/.cache/pliant): its costs count, and its model and network "
        "where none are given."
    ),
]
_TraceOption = Annotated[Path | None, typer.Option(help="Write its predicted timeline for Chrome or Perfetto there.")]
_SHOWN = 12


def plan(
    workload: inputs.WorkloadOption = "",
    model: _ModelOption = "",
    topology: inputs.TopologyOption = None,
    hosts: inputs.HostsOption = 0,
    ranks: inputs.RanksOption = None,
    rate: inputs.RateOption = "",
    delay: inputs.DelayOption = "",
    compute: inputs.ComputeOption = "",
    quality: _QualityOption = None,
    error_budget: _ErrorBudgetOption = None,
    candidates: Annotated[int, typer.Option(help="Plans to draw, beside builders and named algorithms.")] = 300,
    seed: Annotated[int, typer.Option(help="Of the plans that are drawn.")] = 0,
    optimizer: _OptimizerOption = "",
    unmeasured: _UnmeasuredOption = False,
    steps: Annotated[
        int, typer.Option(min=0, help="Of the training, if known; ratios of longer ones do not count.")
    ] = 0,
    tuned_for: _TunedForOption = 0,
    sharded: _ShardedOption = 0,
    machine: inputs.MachineOption = "",
    staged: inputs.StagedOption = False,
    overheads: inputs.OverheadsOption = None,
    experience: _ExperienceOption = None,
    out: Annotated[Path | None, typer.Option(help="Write the best plan there, for relax().")] = None,
    trace: _TraceOption = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the plans that are shown there.")] = None,
) -> None:
    """Simulate many plans on a network; say the best at three limits of steps, and write the one for --quality."""
    require_places(out, trace, json_file)
    earlier, errors = None if experience is None else load_experience(experience), error_budget is not None
    training, optimizer = _training(workload, model, compute, optimizer, earlier, errors=errors)
    training = divided(training, sharded) if sharded else training
    network = _network(earlier, topology, hosts, ranks, rate, delay, machine)
    known, whose = _overheads(earlier, overheads, machine, training, network, staged=staged)
    within = quality if quality is not None else 1.0 if error_budget is None else math.inf
    scale, slowdown = Scale.of(training, network, steps), inputs.slowdown_of(training, network)
    allowed = Quality(budget=within, optimizer=optimizer, scale=scale, unmeasured=unmeasured or errors)
    space = Space(training, network, allowed, error_budget, combined=True)

    def step_s(workload: Workload, plans: Sequence[SyncPlan]) -> list[float]:
        return simulate_many(plans, workload, network, overheads=known, slowdown=slowdown).tolist()

    def steps_s(plans: list[Genome]) -> list[float]:
        return step_s(training, [genes.plan() for genes in plans])

    seeds = measured_genomes(optimizer, scale) | named_genomes() | space.baselines
    if not training.is_sharded:  # menus are of whole models
        seeds |= error_budget_seeds(training, space.quality, step_s, budget=error_budget)
    least, few = LeastTimes(training, network, known), candidates // 5
    found = search_predicted(space, steps_s, seeds, candidates, seed, least_s=least)
    points = frontier(
        training, network, optimizer, steps_s, quality=allowed, candidates=few, seed=seed, least_s=least, combined=True
    )
    best = replace(found[0][0].plan("planned"), provenance=_provenance(within, error_budget, seed))
    predicted = simulate(best, training, network, overheads=known, slowdown=slowdown)
    shown = _show(limits_text(training, network, allowed, points, steps_s), found, space, seeds)
    _tell(best, predicted, optimizer, tuned_for)
    _tell_limits(allowed, whose, earlier)
    _write_files(best, predicted, points, shown, out=out, trace=trace, json_file=json_file)


def _provenance(within: float, error_budget: float | None, seed: int) -> str:
    budgets = f"quality {within:g}" + ("" if error_budget is None else f", errors {error_budget:g}")
    return f"pliant plan, simulated, {budgets}, seed {seed}"


def _write_files(
    best: SyncPlan,
    predicted: Simulated,
    points: Sequence[FrontierPoint],
    shown: Sequence[tuple[Genome, float]],
    *,
    out: Path | None,
    trace: Path | None,
    json_file: Path | None,
) -> None:
    """Write the best plan, its timeline and all that is shown, each where a file is asked for."""
    if out is not None:
        save(best, out)
    if trace is not None:
        write_trace(predicted.timeline, trace)
    if json_file is not None:
        rows = [{"to_accuracy_s": s, "plan": json.loads(to_json(genes.plan()))} for genes, s in shown]
        body = {"frontier": [point.as_row() for point in points], "plans": rows}
        write_atomically(json_file, json.dumps(body, indent=1) + "\n")


def _training(
    workload: str, model: str, compute: str, optimizer: str, earlier: Experience | None, *, errors: bool
) -> tuple[Workload, str]:
    """Return a workload that was named, of a user's function, or of the experience, and its optimizer's class."""
    if earlier is not None and not (workload or model or compute):
        return earlier.workload, optimizer or earlier.setup.optimizer
    if bool(workload) == bool(model):
        raise ValueError("say what is trained, once: by --workload, or by --model module:function.")
    if model and compute:
        raise ValueError(f"--compute is for a named workload, but --model {model} is timed here; leave it out.")
    if model:
        from pliant.profiling import profile_own_training  # here, since it needs torch, which takes seconds

        found, own_optimizer = profile_own_training(model, errors=errors)
    else:
        found, own_optimizer = inputs.read_workload(workload, compute), "SGD"
    if earlier is not None:
        _require_same_model(earlier, found)
    return found, optimizer or own_optimizer


def _network(
    earlier: Experience | None,
    topology: Path | None,
    hosts: int,
    ranks: int | None,
    rate: str,
    delay: str,
    machine: str,
) -> Topology:
    """Return the network that is given, or without one that of the experience."""
    if earlier is not None and not (topology or hosts or ranks is not None or rate or delay):
        return earlier.topology
    return inputs.read_topology(topology, hosts, ranks, rate, delay, machine=machine)


def _overheads(
    earlier: Experience | None,
    overheads: Path | None,
    machine: str,
    work: Workload,
    network: Topology,
    *,
    staged: bool,
) -> tuple[Overheads, str]:
    """Return the overheads that are given, or without them those that were fitted there, and whose they are."""
    if earlier is not None and overheads is None and not machine and not staged:
        return earlier.learned_overheads, f"overheads: fitted to {len(earlier.trials)} trials of the experience"
    known = inputs.read_overheads(overheads, machine, network, staged=staged)
    return known, inputs.describe_overheads(overheads, machine, work, network)


def _require_same_model(earlier: Experience, training: Workload) -> None:
    """Raise ValueError for an experience of another model: its trials say nothing of this one."""
    here, there = (sorted(tensor.shape for tensor in each.tensors) for each in (training, earlier.workload))
    if here != there:
        raise ValueError(
            f"the experience is of {earlier.workload.name}, with {len(there)} tensors, and {training.name} has "
            f"{len(here)} of other shapes; leave --workload and --model out, or give the experience of this model."
        )


def _tell(plan: SyncPlan, predicted: Simulated, optimizer: str, tuned_for: int) -> None:
    training, network = predicted.prepared.context.workload, predicted.prepared.context.topology
    error = CodecErrors(training).of(plan)
    advice = advise(
        training,
        network.num_ranks,
        plan,
        optimizer=optimizer,
        tuned_for=tuned_for,
        topology=network,
        step_s=predicted.step_s,
    )
    lost = "" if not error else f"; relative squared error of the gradient, as measured: {error:.3g}"
    for line in (
        f"\n{plan}",
        f"predicted: a step of {format_time(predicted.step_s)}, {format_time(predicted.exposed_s)} of it exposed; "
        f"{format_bytes(max(predicted.sent_bytes))} sent; bottleneck: {predicted.bottleneck}{lost}",
        f"\n{advice.paragraph}",
    ):
        Console().print(line, markup=False, highlight=False)


def _tell_limits(allowed: Quality, whose: str, earlier: Experience | None) -> None:
    cure = "; --unmeasured considers them all" if allowed.sentence else ""
    tried = "" if earlier is None else f"{earlier.plans_text}\nkept there: {earlier.kept.summary}"
    for line in filter(None, (allowed.sentence.removesuffix(".") + cure, whose, tried)):
        Console().print(line, markup=False, highlight=False, soft_wrap=True)


def _show(
    limits: str, found: list[tuple[Genome, float]], space: Space, seeds: Mapping[str, Genome]
) -> list[tuple[Genome, float]]:
    """Show the best plans, and the baselines among the others; return what is shown."""
    Console().print(f"{limits}\n", markup=False, highlight=False, soft_wrap=True)
    names = {genes: name for name, genes in seeds.items()}
    alike: dict[str, tuple[Genome, float]] = {}
    for genes, seconds in found:  # plans that differ in nothing that a table has are one row
        alike.setdefault(names.get(genes, genes.summary), (genes, seconds))
    found = list(alike.values())
    table = Table("", "step", "steps", "to accuracy", "plan", box=None)
    rows = found[:_SHOWN] + [item for item in found[_SHOWN:] if item[0] in space.baselines.values()]
    for k, (genes, seconds) in enumerate(rows):
        ratio = space.quality.factor(genes)
        of = f"{seconds / found[0][1]:.2f}x"
        place, name = str(k + 1) if k < _SHOWN else "", names.get(genes, genes.summary)
        table.add_row(place, format_time(seconds / ratio), f"{ratio:.2f}x", of, name)
    Console().print(table)
    return rows
