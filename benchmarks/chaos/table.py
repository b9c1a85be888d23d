"""The lines of trials as a markdown table. Pure."""

import statistics
from collections.abc import Sequence

from chaos.judge import OUTCOMES, Record
from chaos.trials import ATTACKS

__all__ = ["markdown"]

_RIGHT = ("ended right", "went on right")
_HEAD = (
    "attack",
    "trials",
    "went on",
    "ended",
    "hangs",
    "wrong names",
    "no name",
    "silent differences",
    "lost or half-written checkpoints",
    "errors",
    "seconds to an answer, median (largest)",
)
_TEXT_CHARS = 300


def markdown(records: Sequence[Record]) -> str:
    """Return a table by attack, and below it each trial that did not go right."""
    attacks = [attack for attack in (*ATTACKS, "large") if any(r["attack"] == attack for r in records)]
    rows = [_row(attack, [r for r in records if r["attack"] == attack]) for attack in attacks]
    rows.append(_row("all", records))
    parts = [_table(_HEAD, rows)]
    if wrong := [r for r in records if r["outcome"] not in _RIGHT]:
        cells = [[_title(r), r["outcome"], _shortened(r["why"]), _words(r)] for r in wrong]
        parts.append("Not as it should be:\n\n" + _table(("trial", "outcome", "why", "sentences"), cells))
    return "\n".join(parts)


def _row(attack: str, records: Sequence[Record]) -> list[str]:
    counts = {outcome: sum(r["outcome"] == outcome for r in records) for outcome in OUTCOMES}
    seconds = [r["answer_s"] for r in records if r["answer_s"] is not None]
    return [
        attack,
        str(len(records)),
        str(counts["went on right"]),
        str(counts["ended right"]),
        str(counts["hang"]),
        str(counts["wrong name"]),
        str(counts["no name"]),
        str(counts["silent difference"]),
        str(counts["lost or half-written checkpoint"]),
        str(counts["error"] + counts["not struck"]),
        f"{statistics.median(seconds):.1f} ({max(seconds):.1f})" if seconds else "-",
    ]


def _title(r: Record) -> str:
    pace = "elastic" if r["elastic"] else "DDP"
    return (
        f"{r['number']}: {r['attack']} of {list(r['victims'])}, {r['algorithm']}, {pace}, {r['ranks']} on {r['where']}"
    )


def _words(r: Record) -> str:
    texts = [f"rank {rank}: {text}" for rank, text in r["sentences"].items()]
    texts += [f"rank {rank}: {text}" for rank, lost in r["regrouped"].items() for text in lost]
    return " / ".join(_shortened(text) for text in texts)


def _shortened(text: str) -> str:
    line = " ".join(text.split()).replace("|", "\\|")
    return line if len(line) <= _TEXT_CHARS else line[: _TEXT_CHARS - 2] + " …"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)
