"""A data set on the disk: a Parquet file per table, and a card."""

import tempfile
from pathlib import Path

from pliant.planner.dataset.card import card
from pliant.planner.dataset.schema import COLUMNS, parquet, schema_of
from pliant.planner.dataset.tables import Dataset
from pliant.spec.files import write_atomically

__all__ = ["load", "write"]


def write(dataset: Dataset, folder: str | Path) -> None:
    """Write a data set: Parquet with ZSTD, each file put in the place of an earlier one as a whole, and card.md.

    Raises:
        RuntimeError: pyarrow is not installed.

    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".writing") as beside:
        for name, table in dataset.tables.items():
            file = Path(beside) / f"{name}.parquet"
            parquet().write_table(table, file, compression="zstd")
            file.replace(folder / file.name)
    write_atomically(folder / "card.md", card(dataset))


def load(folder: str | Path) -> Dataset:
    """Load a data set.

    Raises:
        RuntimeError: pyarrow is not installed.
        ValueError: A table is missing or has other columns than this Pliant's; the message names the file.

    """
    folder = Path(folder)
    tables = {}
    for name in COLUMNS:
        path = folder / f"{name}.parquet"
        if not path.is_file():
            raise ValueError(f"{folder} is no data set: it has no {path.name}; make one with pliant collect --export.")
        tables[name] = parquet().read_table(path)
        had, wanted = tables[name].schema.names, schema_of(name).names
        if had != wanted:
            raise ValueError(
                f"{path} has the columns {', '.join(had)}, but this Pliant reads {', '.join(wanted)}; export it anew "
                "with this version."
            )
    return Dataset(tables)
