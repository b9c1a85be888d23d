"""Draw recorded steps and what was predicted of them, one above the other on one scale: needs matplotlib.

``python benchmarks/draw_timelines.py FOLDER docs/images/timelines.svg``, of what record_timelines.py wrote; prints the
table of docs/timelines.md.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt

from pliant.cli.report.comparison import check_prediction, comparison, measured_of
from pliant.cli.report.figures import COLOURS
from pliant.cli.report.steps import events_in, median_step, steps_of
from pliant.simulator import simulate
from pliant.spec import Event, SyncPlan, Timeline, Topology, Workload, load

LANES = {"exchange": 1, "encode": 2, "communicate": 3, "decode": 4}
NAMES = ("compute", "exchange", "encode", "network", "decode")


def main(folder: Path, target: str) -> None:
    mpl.rcParams["svg.hashsalt"] = "pliant"  # the same figure gives the same file
    workload, topology = load(Workload, folder / "workload.json"), load(Topology, folder / "topology.json")
    panels: list[tuple[str, list[Event]]] = []
    tables = []
    for own in sorted(path.parent for path in folder.glob("*/plan.json")):
        plan, timeline = load(SyncPlan, own / "plan.json"), load(Timeline, own / "rank0.json")
        check_prediction(timeline, own.name, plan, topology)
        predicted = simulate(plan, workload, topology)
        measured = measured_of([timeline], predicted.period)
        tables.append((own.name, comparison(measured, predicted)[1]))
        for what, line, steps in (
            ("measured", timeline, measured.steps[0]),
            ("predicted", predicted.timeline, steps_of(predicted.timeline, 0)[-predicted.period :]),
        ):
            step = median_step(steps)
            panels.append((f"{own.name}, {what}", events_in(line, [0], step.start_s, step.end_s)))
    draw(panels, target)
    for name, rows in tables:
        print(
            f"| {name} | " + " | ".join(f"{found} / {said} ({error or '0'})" for _, found, said, error in rows) + " |"
        )


def draw(panels: Sequence[tuple[str, Sequence[Event]]], target: str) -> None:
    figure, rows = plt.subplots(
        len(panels), 1, figsize=(9, 1.35 * len(panels) + 0.8), sharex=True, layout="constrained"
    )
    seen = {}
    for row, (title, events) in zip(rows, panels, strict=True):
        for event in events:
            lane, length = LANES.get(event.kind, 0), 1e3 * (event.end_s - event.start_s)
            bar = row.barh(lane, length, 0.8, 1e3 * event.start_s, color=COLOURS[event.kind], edgecolor="white", lw=0.4)
            seen.setdefault(event.kind, bar)
        row.set_title(title, loc="left", fontsize=9)
        row.set_yticks(range(len(NAMES)), NAMES, fontsize=7)
        row.invert_yaxis()
        row.spines[["top", "right"]].set_visible(False)
    rows[-1].set_xlabel("ms from the start of the step")
    kinds = [kind for kind in COLOURS if kind in seen]
    figure.legend([seen[kind] for kind in kinds], kinds, loc="outside lower center", ncols=8, frameon=False, fontsize=8)
    figure.savefig(target, metadata={"Date": None})


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
