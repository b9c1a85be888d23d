"""Tables of the grid, for a file and for a page. Pure."""

import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))

from grid.join import FIRST, FIRST_STEPS, METRIC, TARGET, Curve, Entry
from grid.trials import ARMS, BASE, FREE, SEEDS

from pliant.spec.units import format_time
from pliant_bench.tables.winners import is_ours

Record = dict[str, Any]
Table = tuple[str, str, list[str], list[list[str]]]
"""Title, note, head and cells."""
GOAL = METRIC.goal(TARGET)
OTHERS = ("onebit_adam", "decoupled_momentum")
"""Arms of Pliant's that train by another rule than SGD, at a rate of their own: no gain of theirs is the network's."""


@dataclass(frozen=True, kw_only=True)
class Joined:
    """All that was measured, as far as it is there."""

    cells: list[str]
    steps: list[Record]
    curves: dict[str, Curve]
    free: dict[str, dict[str, Curve]]
    """Cell -> arm at a free pace -> trainings."""
    confirmed: dict[str, dict[str, Curve]]
    """Cell -> arm -> trainings end to end."""
    entries: dict[tuple[str, str], Entry]

    def found(self, arm: str) -> list[Entry | None]:
        """Return an arm's entry in each cell."""
        return [self.entries.get((cell, arm)) for cell in self.cells]


def tables(found: Joined) -> Iterator[Table]:
    """Return all tables that have something to show."""
    yield _winners(found)
    arms = [arm for arm in ARMS if any(found.found(arm))]
    note = (
        f"Time of 16-bit DDP to {GOAL} over the arm's; in brackets least and most over paired seeds and all pairs of "
        f"turns. *: ends more than {METRIC.tolerance:g} points below 16-bit DDP. -: a seed does not reach the target, "
        f"or there is no line yet. {', '.join(OTHERS)} and ddp-adam train by other rules than SGD. "
        f"The first {FIRST_STEPS} steps of {', '.join(FIRST)} count as those of "
        f"{', '.join(sorted(set(FIRST.values())))}."
    )
    rows = [[arm, *map(_gain, found.found(arm))] for arm in arms if arm != BASE]
    yield f"gain to {GOAL}", note, ["arm", *found.cells], [row for row in rows if set(row[1:]) != {"-"}]
    steps = [[arm, *("-" if e is None else format_time(e.step_s) for e in found.found(arm))] for arm in arms]
    yield "step time", "Median of the turns; at a free pace of the trainings.", ["arm", *found.cells], steps
    yield _trainings(found)
    if found.free:
        yield _at_a_free_pace(found)
    if found.confirmed:
        yield _confirmed(found)
    failed = [[line["cell"], line["arm"], line["error"]] for line in found.steps if "error" in line]
    if failed:
        yield "no step time", "Last words of the first rank that failed.", ["cell", "arm", "error"], failed


def markdown(found: Joined, introduction: str, facts: dict[str, str]) -> str:
    """Return the tables for a file that people read, with how they came about."""
    lines = [introduction, ""]
    for title, note, head, cells in tables(found):
        lines += [f"**{title}**", "", _line(head), _line(["---"] * len(head)), *map(_line, cells), "", _plain(note), ""]
    return "\n".join([*lines, *(f"- {name}: `{value}`" for name, value in facts.items()), ""])


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_plain(cell).replace("|", "\\|") for cell in cells) + " |"


def _plain(text: str) -> str:
    return text.replace("*", "\\*")


def _winners(found: Joined) -> Table:
    head = [
        *("cell", "computing", f"{BASE}: step", "communication", "again", f"to {GOAL}"),
        *("best arm", "its step", f"to {GOAL}", "gain"),
    ]
    note = (
        f"Best: fastest to {GOAL} of Pliant's arms with SGD that end at most {METRIC.tolerance:g} points "
        "below 16-bit DDP. "
        "Communication: the part of its step that is not computing. Again: its step at the end of the cell over the "
        "first. †: a link was more than a quarter off before the cell."
    )
    return "who wins where", note, head, [_winner(found, cell) for cell in found.cells]


def _winner(found: Joined, cell: str) -> list[str]:
    base, compute = (found.entries.get((cell, arm)) for arm in (BASE, "compute"))
    mine = [step for step in found.steps if step["cell"] == cell and "step_s" in step]
    ours = [found.entries[key] for key in found.entries if key[0] == cell and is_ours(key[1]) and key[1] not in OTHERS]
    best = max((e for e in ours if e.keeps and e.gain), key=lambda e: e.gain or 0.0, default=None)
    again = [statistics.median(step["step_s"]) for step in mine if step["arm"] == BASE and step["number"] == 1]
    return [
        cell + (" †" if any(step["links_wrong"] for step in mine) else ""),
        "-" if compute is None else format_time(compute.step_s),
        "-" if base is None else format_time(base.step_s),
        "-" if base is None or compute is None else f"{max(0.0, 1 - compute.step_s / base.step_s):.0%}",
        "-" if base is None or not again else f"{again[0] / base.step_s:.2f}",
        _time(base),
        "-" if best is None else best.arm,
        "-" if best is None else format_time(best.step_s),
        _time(best),
        _gain(best),
    ]


def _time(entry: Entry | None) -> str:
    return "-" if entry is None or entry.to_target_s is None else f"{entry.to_target_s:.1f} s"


def _gain(entry: Entry | None) -> str:
    if entry is None or entry.gain is None:
        return "-"
    return f"{entry.gain:.2f} ({entry.least:.2f} to {entry.most:.2f})" + ("" if entry.keeps else " *")


def _trainings(found: Joined) -> Table:
    head = ["arm", f"steps to {GOAL}", "seeds", "accuracy", f"points over {BASE}", "keeps it"]
    base = found.curves.get(BASE)
    everything = [*found.curves.items(), *((f"{a}, {cell}", c) for cell in found.cells for a, c in _free(found, cell))]
    rows: list[list[str]] = []
    for name, curve in everything:
        gap = curve.gap(base)
        rows.append(
            [
                name,
                _steps(curve),
                str(len(curve.final)),
                f"{statistics.mean(curve.final.values()):.2%}",
                "-" if gap is None else f"{gap:+.2f}",
                "-" if gap is None else "yes" if curve.keeps(base) else "no",
            ]
        )
    note = (
        "Mean over seeds, and range; -: seeds are missing. At a free pace in each cell, where a step is one of each "
        "rank's own."
    )
    return "what trainings say", note, head, rows


def _steps(curve: Curve) -> str:
    """Return the steps to the target, or why there are none."""
    if len(curve.final) < len(SEEDS):
        return "-"
    steps = curve.steps.values()
    return f"{curve.mean_steps:.0f} ({min(steps):.0f} to {max(steps):.0f})" if curve.whole else "not reached"


def _free(found: Joined, cell: str) -> list[tuple[str, Curve]]:
    return list(found.free.get(cell, {}).items())


def _at_a_free_pace(found: Joined) -> Table:
    arms = [arm for arm in FREE if any(arm in curves for curves in found.free.values())]
    rows: list[list[str]] = []
    for cell in found.cells:
        curves = found.free.get(cell, {})
        base_s = [step_s for curve in curves.values() for step_s in curve.base_step_s.values()]
        cells = [_paced(found.entries.get((cell, arm)), curves.get(arm), found.curves.get(BASE)) for arm in arms]
        rows.append([cell, format_time(statistics.mean(base_s)) if base_s else "-", *cells])
    note = (
        f"The step of {BASE} just before, mean over trainings; of each arm its step, its gain to {GOAL} over that, and "
        f"by how many points it ends above {BASE}. -: seeds are missing, or do not reach it."
    )
    return "at a free pace", note, ["cell", f"{BASE}: step", *arms], rows


def _paced(entry: Entry | None, curve: Curve | None, base: Curve | None) -> str:
    gap = None if curve is None else curve.gap(base)
    if entry is None or entry.gain is None or gap is None:
        return "-"
    return f"{format_time(entry.step_s)}, {entry.gain:.2f}x, {gap:+.2f}"


def _confirmed(found: Joined) -> Table:
    rows: list[list[str]] = []
    for cell, curves in found.confirmed.items():
        for arm, curve in curves.items():
            measured, entry = next(iter(curve.time_s.values()), None), found.entries.get((cell, arm))
            said = None if entry is None else entry.to_target_s
            ratio = "-" if not said or not measured else f"{measured / said:.2f}"
            rows.append([cell, arm, _time(entry), "-" if measured is None else f"{measured:.1f} s", ratio])
    note = "Predicted: step time times steps to the target. Measured: a training on the network itself, one seed."
    return "confirmed end to end", note, ["cell", "arm", "predicted", "measured", "measured over predicted"], rows
