"""The page docs/published.md, from all sources."""

from collections.abc import Sequence

from benchmarks.published.autosync import AUTOSYNC
from benchmarks.published.bagua import ABLATION, BAGUA, SCALABILITY
from benchmarks.published.diloco import INTELLECT, STREAMING, near
from benchmarks.published.onebit_adam import ONEBIT_ADAM
from benchmarks.published.ratios import ENDPOINTS, POWERSGD, SHARDED
from benchmarks.published.record import Row, Source, mean_error
from benchmarks.published.tasc import TASC

__all__ = ["SOURCES", "cell", "page"]

SOURCES: tuple[Source, ...] = (
    BAGUA,
    SCALABILITY,
    ENDPOINTS,
    ABLATION,
    ONEBIT_ADAM,
    STREAMING,
    INTELLECT,
    TASC,
    AUTOSYNC,
    POWERSGD,
    SHARDED,
)
_HEAD = """# Published figures

What others have published, beside what [the simulator](simulator.md) says of the same model, cluster and plan. No
constant is fitted to the table that it is judged by; where each comes from is said below its table. A cell is
published / simulated (deviation); where a source gives no value, the simulator's stands alone.
`python -m benchmarks.published --md docs/published.md` makes this page; times are in the unit of the first column.
"""


def page() -> str:
    """Return the page as Markdown."""
    return "\n".join([_HEAD, *_summary(), *(line for source in SOURCES for line in _section(source))]) + "\n"


def _summary() -> list[str]:
    lines = ["| source | values | mean error | within 20 % | pairs of arms in order |", "|---|---|---|---|---|"]
    for source in SOURCES:
        rows = source.compared
        if not rows:
            lines.append(f"| {source.name} | none published | | | |")
            continue
        right, pairs = source.ordered
        close = sum(abs(row.error) <= 0.2 for row in rows)
        order = f"{right} of {pairs}" if pairs else ""
        lines.append(f"| {source.name} | {len(rows)} | {mean_error(rows):.0%} | {close} | {order} |")
    return [*lines, ""]


def _section(source: Source) -> list[str]:
    named = f"[{source.name}]({source.link})" if source.link else source.name
    lines = [f"## {named}", "", *_table(source.rows), ""]
    machines = sorted({row.machine for row in source.rows})
    read = sorted({row.where for row in source.rows if row.published})
    if read:
        uncertain = max(row.uncertainty for row in source.compared)
        lines += [
            f"Machine: {'; '.join(machines)}. Read from: {', '.join(read)}; values may be off by {uncertain:.0%}.",
            "",
        ]
    else:
        lines += [f"Machine: {'; '.join(machines)}.", ""]
    lines += [f"- {what}: {origin}." for what, origin in source.constants] + [""]
    if source is STREAMING:
        right = sum(near(row.simulated, row.published) for row in source.rows)
        lines += [f"Within a step of the grid: {right} of {len(source.rows)}.", ""]
    return lines + [line for miss in source.misses for line in (miss, "")]


def _table(rows: Sequence[Row]) -> list[str]:
    """Return a row for each case and a column for each arm."""
    cases, arms = (list(dict.fromkeys(getattr(row, name) for row in rows)) for name in ("case", "arm"))
    cells = {(row.case, row.arm): cell(row) for row in rows}
    units = " / ".join(dict.fromkeys(row.unit for row in rows))
    lines = [f"| {units} | " + " | ".join(arms) + " |", "|---" * (len(arms) + 1) + "|"]
    return lines + [f"| {case} | " + " | ".join(cells.get((case, arm), "") for arm in arms) + " |" for case in cases]


def cell(row: Row) -> str:
    """Return published and simulated value and deviation, or the simulated one alone."""
    if not row.published:
        return _number(row.simulated)
    return f"{_number(row.published)} / {_number(row.simulated)} ({row.error:+.0%})"


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
