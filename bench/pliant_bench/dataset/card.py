"""Page that a person reads before using a data set: counts, columns, limits."""

from collections import Counter

from pliant_bench.dataset.schema import COLUMNS
from pliant_bench.dataset.tables import Dataset

__all__ = ["card"]

_LIMITS = """\
- Measured steps replay compute: ranks sleep for the workload's times, while gradients of its shapes are coded on the
  CPU and sent through real sockets over emulated links. Codec times are those of the CPU that ran them.
- Times of models by formula are arithmetic over an assumed speed, not measured on any device.
- Large models are shrunk (`size_share`); a row at rate r stands for the whole model at r / size_share, but for delays
  and the cost of messages, which do not shrink.
- Hosts share one machine. `drifted`, `links_wrong` and `load` say when it was not quiet; leave such rows out of
  comparisons within a few percent.
- Rows whose provenance is `simulated` are predictions; never mix them with measured ones in an evaluation.
- `aborted` and `failed` runs have no step time; they are not runs of time 0.
"""


def card(dataset: Dataset) -> str:
    """Return the card as Markdown."""
    runs = dataset.runs
    kinds = Counter(zip(runs["provenance"].tolist(), runs["status"].tolist(), strict=True))
    cells = Counter(zip(runs["model_id"].tolist(), runs["topo_id"].tolist(), strict=True))
    lines = ["# Plans and their step times", "", "Made by `pliant collect`. License: Apache-2.0.", "", "## Runs", ""]
    lines += ["| provenance | status | runs |", "|---|---|---|"]
    lines += [f"| {provenance} | {status} | {num} |" for (provenance, status), num in sorted(kinds.items())]
    lines += ["", "| model | topology | runs |", "|---|---|---|"]
    lines += [f"| {model} | {topology} | {num} |" for (model, topology), num in sorted(cells.items())]
    lines += ["", "## Limits", "", _LIMITS, "## Tables"]
    for table, columns in COLUMNS.items():
        lines += ["", f"### {table}: {dataset.tables[table].num_rows} rows", "", "| column | type | meaning |"]
        lines += ["|---|---|---|", *(f"| `{name}` | {kind} | {text} |" for name, (kind, text) in columns.items())]
    return "\n".join(lines) + "\n"
