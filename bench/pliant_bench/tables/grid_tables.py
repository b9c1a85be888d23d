"""A grid's figures as cells of tables: who wins where, and every arm in every network. Pure."""

from collections.abc import Callable, Sequence

from pliant.spec.units import format_time
from pliant_bench.tables.winners import CellRow, Trained

__all__ = ["GRID_NOTE", "grid_tables"]

GRID_NOTE = (
    "Gain: the time of the best exact peer (ddp, ddp-bf16) over that of Pliant's best arm, median of paired rounds; "
    "where steps to the target are known, times the ratio of these, among arms that end no worse than 16-bit DDP by "
    "more than half a point, or one percent, and that do not go at a free pace, whose steps depend on the network. "
    "Communication: the part of the peer's step that is not computing. † a link was more than a quarter off."
)

TableOf = tuple[str, list[str], list[list[str]]]


def grid_tables(rows: Sequence[CellRow], trained: dict[str, Trained]) -> list[TableOf]:
    """Return title, head and cells of each table."""
    tables = [_winners(rows)]
    for model in dict.fromkeys(row.model for row in rows):
        own = [row for row in rows if row.model == model]
        tables.append(_matrix(f"{model}: step time", own, lambda row, arm: row.step_s.get(arm), format_time))
        tables.append(
            _matrix(f"{model}: step over computing", own, lambda row, arm: row.over_compute.get(arm), "{:.2f}".format)
        )
        if any(row.to_target_s for row in own):
            title = f"{model}: time to the target"
            tables.append(_matrix(title, own, lambda row, arm: row.to_target_s.get(arm), format_time))
    if trained:
        head = ["arm", "steps to the target", "vs bf16", "keeps it"]
        tables.append(("what trainings say", head, [_trained_cells(arm, t) for arm, t in trained.items()]))
    return tables


def _winners(rows: Sequence[CellRow]) -> TableOf:
    head = [
        *("model", "rate", "delay", "last host", "computing", "best exact peer", "its step", "communication"),
        *("best arm", "its step", "over computing", "gain"),
    ]
    return "who wins where", head, [_winner_cells(row) for row in rows]


def _winner_cells(row: CellRow) -> list[str]:
    return [
        row.model,
        row.rate,
        row.delay,
        f"{row.slow_share:g} of the speed" if row.slow_share else "like all",
        format_time(row.compute_s),
        row.peer or "-",
        "-" if row.peer is None else format_time(row.step_s[row.peer]),
        "-" if row.communication is None else f"{row.communication:.0%}",
        row.best or "-",
        "-" if row.best is None else format_time(row.step_s[row.best]),
        "-" if row.best is None else f"{row.over_compute[row.best]:.2f}",
        ("-" if row.gain is None else f"{row.gain:.2f}x") + ("" if row.links_as_asked else " †"),
    ]


def _matrix(
    title: str,
    rows: Sequence[CellRow],
    value: Callable[[CellRow, str], float | None],
    text: Callable[[float], str],
) -> TableOf:
    """Return a table with a row per arm and a column per network."""
    head = ["arm", *(f"{r.rate} {r.delay}" + (f" slow {r.slow_share:g}" if r.slow_share else "") for r in rows)]
    cells: list[list[str]] = []
    for arm in dict.fromkeys(arm for row in rows for arm in row.step_s):
        values = [value(row, arm) for row in rows]
        if any(v is not None for v in values):
            cells.append([arm, *("-" if v is None else text(v) for v in values)])
    return title, head, cells


def _trained_cells(arm: str, t: Trained) -> list[str]:
    return [
        arm,
        "not reached" if t.steps is None else f"{t.steps:.0f}",
        "-" if t.gap is None else f"{t.gap:+.2f}",
        "yes" if t.keeps else "no",
    ]
