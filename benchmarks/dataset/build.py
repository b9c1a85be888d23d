"""The data set's second version, made of the first, of the lines of `measure.py`, and of the simulator.

    python benchmarks/dataset/build.py                 rows that were measured, the card; simulated rows stay
    python benchmarks/dataset/build.py --simulated     all of it, in minutes

Needs pyarrow, for the first version's files, and no torch. The same inputs and version of Pliant give the same rows.
"""

import argparse
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from dataset.card import CARD, card, counts
from dataset.carried import add_slept
from dataset.check import faults
from dataset.computed import add_computed
from dataset.rows import Tables
from dataset.schema import FILES, FOLDER, KINDS, LINES, Row, read, write
from dataset.simulated import CELLS, SEED, add_simulated
from dataset.tasks import results, table

from pliant.spec.files import write_atomically

PAGE = Path(__file__).parents[2] / "docs" / "dataset.md"
BEGIN, END = "<!-- from here made by benchmarks/dataset/build.py -->", "<!-- to here -->"
KEYS = {"models": "model", "clusters": "cluster", "plans": "plan", "sessions": "session"}


def build(folder: Path = FOLDER, lines: Path = LINES, simulated_cells: int = 0) -> None:
    """Write the files of a data set.

    Args:
        folder: Where.
        lines: Of `measure.py`.
        simulated_cells: Cells that are simulated anew; 0: those that are there stay.

    """
    tables = Tables()
    add_slept(tables)
    add_computed(tables, lines)
    if simulated_cells:
        add_simulated(tables, SEED, simulated_cells)
    else:
        _keep_simulated(tables, folder)
    for name, kind in KINDS.items():
        write(name, [row for row in tables.runs if row["kind"] == kind], folder)
    for name, key in KEYS.items():
        write(name, sorted(tables.rows[name].values(), key=lambda row: row[key]), folder)
    write_atomically(folder / CARD, card(folder, lines))


def update_docs(page: Path = PAGE) -> None:
    """Write counts and scores between the marks of the page of the documentation."""
    text = page.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    if not after:
        raise ValueError(f"{page.name} lacks the marks {BEGIN} and {END}; put them where the tables shall be.")
    tables = {name: read(name) for name in FILES}
    made = f"{BEGIN}\n\n{counts(tables, LINES)}\n{table(results())}\n{END}"
    write_atomically(page, f"{before}{made}{after}")


def _keep_simulated(tables: Tables, folder: Path) -> None:
    """Take over the simulated rows of a folder, with what they refer to."""
    kept = read("simulated", folder)
    tables.runs += kept
    for name, key in KEYS.items():
        wanted = {row[key] for row in kept}
        rows: list[Row] = [row for row in read(name, folder) if row[key] in wanted]
        tables.rows[name] |= {row[key]: tables.rows[name].get(row[key], row) for row in rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulated", action="store_true", help="simulate anew")
    given = parser.parse_args()
    build(simulated_cells=CELLS if given.simulated else 0)
    update_docs()
    found = faults()
    print("\n".join(found) or f"{FOLDER.name} is written, and sound.")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
