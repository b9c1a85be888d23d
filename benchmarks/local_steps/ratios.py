"""Steps ratios of local steps, from finished trainings, as lines that `benchmarks/quality/fit.py` reads.

``python benchmarks/local_steps/ratios.py results.jsonl > ratios.jsonl``
``python benchmarks/quality/fit.py ratios.jsonl``    adds the rows of the planner's table, with other files and --write

The target is the held-out loss of 16-bit all-reduce after 80 % of its steps, with the same optimizer, cell and seed,
and each arm has its own best rate. A training is as long as that of all-reduce, so that the largest ratio that can be
seen is 1.25. One that has not come to the target by its end has none.

Left out are arms whose optimizer has no all-reduce beside it in the cell, those with more steps of the loop than of the
optimizer, those at another rate than their best, settings that are not in the planner's space, and bare names that take
settings from the optimizer.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from page import Cells, Row, find, rows
from rates import Trainings
from trials import ADAMW_DDP, LIST, LOCAL_MUON_LIST, Record, read

from pliant.algorithms import ALGORITHMS, parse
from pliant.planner.compositions import searched_genes
from pliant.planner.genome import Gene
from pliant.spec import Exchange
from pliant_bench.lab.ratios import TARGET_SHARE, step_reaching, target_of

MOST_RATIO = 1 / TARGET_SHARE


def lines(cells: Cells) -> Iterator[Record]:
    """Yield a line for each arm and seed that has an all-reduce beside it."""
    for (size, windows, ranks, steps, decay), found in cells.items():
        about = {"kind": "curve", "task": f"{windows} windows, {decay} decay", "ranks": ranks, "steps": steps}
        about |= {"parameters": round(1e6 * float(str(size).removesuffix("M"))), "limit": MOST_RATIO}
        for row in found:
            base, gene = find(found, ADAMW_DDP, row.optimizer), gene_of(row.algorithm, int(str(steps)))
            if base is None or gene is None or row.algorithm == base.algorithm or "x DDP" in row.arm:
                continue
            named = {"setting": gene.summary, "family": gene.family, "settings": dict(gene.settings)}
            for seed, ratio in ratios(row, base).items():
                why = "not reached" if ratio is None else ""
                yield {**about, **named, "optimizer": row.optimizer, "seed": seed, "ratio": ratio, "why": why}


def ratios(row: Row, base: Row) -> dict[int, float | None]:
    """Return seed -> ratio, None where the target was not reached, of seeds that both have."""
    found: dict[int, float | None] = {}
    for seed, line in row.by_seed.items():
        other = base.by_seed.get(seed)
        if other is not None and line["steps"] == other["steps"]:
            step = None if line["diverged"] else step_reaching(line["curve"], target_of(other["curve"]))
            found[seed] = None if step is None else step / (TARGET_SHARE * line["steps"])
    return found


def gene_of(algorithm: str, steps: int) -> Gene | None:
    """Return the gene of an arm's algorithm; None if the planner has none, or its optimizer says more than its text."""
    row = ALGORITHMS.get(algorithm)
    if row is not None and row.from_optimizer is not None:
        return None
    return _genes().get(parse(algorithm.replace("{steps}", str(steps))))


@cache
def _genes() -> dict[Exchange, Gene]:
    return {gene.exchange: gene for gene in reversed(searched_genes(combined=False))}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="file that measure.py has written")
    given = parser.parse_args(argv)
    trials = [trial for path in (LIST, LOCAL_MUON_LIST) for trial in read(path) if trial["kind"] != "borrowed"]
    for line in lines(rows(trials, Trainings(given.results))):
        print(json.dumps(line))


if __name__ == "__main__":
    main()
