"""Command `pliant report`: a page on the steps of a run, measured and predicted."""

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from pliant.algorithms.by_name import plan_of_text
from pliant.cli import inputs
from pliant.cli.page import document, plot, require_plotly, table
from pliant.cli.report.comparison import (
    QUANTITIES,
    Measured,
    bucket_table,
    check,
    check_prediction,
    comparison,
    measured_of,
    predicted_buckets,
    predicted_value,
)
from pliant.cli.report.steps import events_in, median_step, merge_timelines, steps_of
from pliant.simulator import Simulated, simulate, write_trace
from pliant.spec import Event, Timeline, load
from pliant.spec.files import require_places, write_atomically
from pliant.spec.units import format_time, parse_bytes

__all__ = ["report"]

_MOST_TRACKS = 8
"""Most ranks that are drawn one above the other."""
_NOTE = (
    "Measured are means over steps and ranks, sent is the busiest rank's. Exposed: what a step waits for exchanges; "
    "compute: the rest of it. Exchange and coding count whether they are hidden or not. What is still on its way when "
    "the recording ends is not in it."
)


def report(
    files: Annotated[list[Path], typer.Argument(help="What pliant.profile wrote: files, or folders with rank*.json.")],
    html: Annotated[Path, typer.Option(help="Write the page there.")] = Path("report.html"),
    plan: Annotated[str, typer.Option(help="The run's plan, to predict: a file, or an algorithm.")] = "",
    workload: Annotated[str, typer.Option(help="Its workload, from pliant.observe: a file, or a model's name.")] = "",
    topology: inputs.TopologyOption = None,
    hosts: inputs.HostsOption = 0,
    ranks: inputs.RanksOption = None,
    rate: inputs.RateOption = "",
    delay: inputs.DelayOption = "",
    compute: inputs.ComputeOption = "",
    machine: inputs.MachineOption = "",
    overheads: inputs.OverheadsOption = None,
    bucket: inputs.BucketOption = inputs.BUCKET,
    trace: Annotated[Path | None, typer.Option(help="Write all ranks as a trace for Chrome or Perfetto.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures there.")] = None,
) -> None:
    """Draw what ranks did in each step, as one HTML page; with --plan and --workload also the prediction."""
    require_plotly()
    require_places(html, trace, json_file)
    paths = _paths(files)
    timelines = [_load(path) for path in paths]
    check(timelines, [str(path) for path in paths])
    timelines.sort(key=lambda timeline: timeline.events[0].rank)
    predicted, costs = None, ""
    given = (plan, workload, topology, hosts, ranks is not None, rate, delay, compute, machine, overheads)
    if any((*given, bucket != inputs.BUCKET)):
        if not (plan and workload):
            raise ValueError("a prediction needs all three: --plan, --workload, and --topology or --hosts.")
        wanted = plan_of_text(plan)
        network = inputs.read_topology(topology, hosts, ranks, rate, delay, machine=machine)
        check_prediction(timelines[0], str(paths[0]), wanted, network)
        known = inputs.read_overheads(overheads, machine, network)
        work = inputs.read_workload(workload, compute)
        costs = inputs.describe_overheads(overheads, machine, work, network)
        predicted = simulate(
            wanted,
            work,
            network,
            overheads=known,
            bucket_bytes=parse_bytes(bucket),
            slowdown=inputs.slowdown_of(work, network),
        )
    measured = measured_of(timelines, 1 if predicted is None else predicted.period)
    _show(measured, predicted)
    if predicted is not None:
        Console().print(costs, markup=False, highlight=False, soft_wrap=True)
    write_atomically(html, _page(measured, predicted, costs))
    if trace is not None:
        write_trace(merge_timelines(timelines), trace)
    if json_file is not None:
        write_atomically(json_file, _json(measured, predicted))


def _paths(files: Sequence[Path]) -> list[Path]:
    paths: list[Path] = []
    for path in files:
        found = sorted(path.glob("rank*.json")) if path.is_dir() else [path]
        if not found or not all(each.exists() for each in found):
            what = "no rank*.json in the folder" if path.is_dir() else "no file"
            raise ValueError(f"there is {what} {path}; pliant.profile(run, folder) writes one for each rank.")
        paths += found
    return paths


def _load(path: Path) -> Timeline:
    timeline = load(Timeline, path)
    if not any(event.kind in ("forward", "backward", "optimize") for event in timeline.events):
        raise ValueError(f"{path} holds no step; pliant.profile notes the steps that are made after it was called.")
    return timeline


def _show(measured: Measured, predicted: Simulated | None) -> None:
    head, rows = comparison(measured, predicted)
    found = Table(*head, box=None)
    for row in rows:
        found.add_row(*row)
    Console().print(found)


def _page(measured: Measured, predicted: Simulated | None, whose: str) -> str:
    from pliant.cli.report.figures import bucket_figure, bytes_figure, steps_figure, timeline_figure

    said = None if predicted is None else predicted_buckets(predicted)
    buckets = measured.buckets()
    parts = [table(*comparison(measured, predicted)), f'<p class="note">{_NOTE}</p>', "<h2>One step</h2>"]
    if predicted is not None:
        parts.insert(1, f'<p class="note">Predicted with {escape(whose)}.</p>')
    title = f"A step of rank {measured.ranks[0]}"
    if predicted is not None:
        title += ": measured above, predicted below"
    parts.append(plot(timeline_figure(title, _panels(measured, predicted))))
    if len(measured.timelines) > 1:
        parts.append(plot(timeline_figure("The same moments on all ranks", _all_ranks(measured))))
        parts.append('<p class="note">Ranks are laid beside each other by the clocks of their machines.</p>')
    parts += ["<h2>Steps</h2>", plot(steps_figure(measured, predicted)), plot(bytes_figure(measured, predicted))]
    if buckets:
        parts += ["<h2>Buckets</h2>", table(*bucket_table(buckets, said)), plot(bucket_figure(buckets, said))]
    return document("Pliant report", _facts(measured, predicted), parts)


def _panels(measured: Measured, predicted: Simulated | None) -> list[tuple[str, list[Event]]]:
    """Return one step of the first rank, and the same step predicted."""
    step, rank = median_step(measured.steps[0]), measured.ranks[0]
    events = events_in(measured.timelines[0], [rank], step.start_s, step.end_s)
    panels = [(f"measured: {format_time(step.seconds)}, step {step.step}", events)]
    if predicted is not None:
        steps = steps_of(predicted.timeline, 0)[-predicted.period :]
        other = median_step(steps)
        events = events_in(predicted.timeline, [0], other.start_s, other.end_s)
        panels.append((f"predicted: {format_time(other.seconds)}", events))
    return panels


def _all_ranks(measured: Measured) -> list[tuple[str, list[Event]]]:
    """Return what the first ranks did while the lowest made the step that is shown."""
    first, step = measured.timelines[0], median_step(measured.steps[0])
    panels: list[tuple[str, list[Event]]] = []
    for rank, timeline in list(zip(measured.ranks, measured.timelines, strict=True))[:_MOST_TRACKS]:
        shift_s = first.began_unix_s - timeline.began_unix_s
        panels.append((f"rank {rank}", events_in(timeline, [rank], step.start_s + shift_s, step.end_s + shift_s)))
    return panels


def _facts(measured: Measured, predicted: Simulated | None) -> dict[str, str]:
    first, ranks = measured.timelines[0], map(str, measured.ranks)
    facts = {
        "recorded": first.provenance,
        "plan": first.plan or "not known",
        "ranks": f"{', '.join(ranks)} of {first.num_ranks}",
        "steps": f"{measured.steps[0][0].step} to {measured.steps[0][-1].step}",
    }
    if predicted is not None:
        work, links = predicted.prepared.context.workload, predicted.prepared.context.topology
        facts["workload"] = f"{work.name}; {work.provenance}"
        facts["topology"] = f"{links.num_ranks} ranks on {len(links.hosts)} hosts; {links.provenance}"
    return facts


def _json(measured: Measured, predicted: Simulated | None) -> str:
    body = {"measured": measured.means()}
    if predicted is not None:
        body["predicted"] = {q.key: predicted_value(predicted, q.key, measured.ranks) for q in QUANTITIES}
    return json.dumps(body, indent=1, allow_nan=False) + "\n"
