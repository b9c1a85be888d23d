"""A data set on the disk: a Parquet file per table, and a card."""

import tempfile
from pathlib import Path
from typing import Any

from pliant.spec.files import write_atomically
from pliant.spec.reading import made_by, shorten
from pliant_bench.dataset.card import card
from pliant_bench.dataset.schema import COLUMNS, arrow, parquet, schema_of
from pliant_bench.dataset.tables import Dataset

__all__ = ["load", "write"]

_MOST_ROWS = 10**8


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
        ValueError: A table is missing or damaged, or has other columns or types than this Pliant's; the message names
            the file.

    """
    folder = Path(folder)
    tables = {}
    for name in COLUMNS:
        path = folder / f"{name}.parquet"
        if not path.is_file():
            raise ValueError(f"{folder} is no data set: it has no {path.name}; make one with pliant collect --export.")
        tables[name] = _read(path, name)
    dataset = Dataset(tables)
    for name, records in (("models", "models"), ("topologies", "topologies"), ("plans", "plans")):
        with made_by("pliant collect --export", folder / f"{name}.parquet"):
            try:
                getattr(dataset, records)
            except ValueError as error:
                raise ValueError(f"{folder / name}.parquet: {error}") from None
    for column, known in (
        ("model_id", dataset.models),
        ("topo_id", dataset.topologies),
        ("plan_id", dataset.plans),
    ):
        unknown = sorted(set(map(str, dataset.runs[column])) - set(known))
        if unknown:
            raise ValueError(f"{folder / 'runs.parquet'} names the {column} {unknown[0]!r}, which no other table has.")
    return dataset


def _read(path: Path, name: str) -> Any:
    """Return a table whose columns are those of the schema. Raises ValueError, naming the file, for any other."""
    wanted = schema_of(name)
    try:
        file = parquet().ParquetFile(path)
        rows = file.metadata.num_rows
        if rows > _MOST_ROWS:
            raise ValueError(f"{path} says that it has {rows} rows, but at most {_MOST_ROWS} are read.")
        had = file.schema_arrow
        if had.names == wanted.names and had.equals(wanted, check_metadata=False):
            return file.read()
    except (OSError, MemoryError, arrow().ArrowException) as error:
        raise ValueError(f"{path} is no Parquet file that can be read ({shorten(str(error))}).") from None
    raise ValueError(
        f"{path} has the columns {', '.join(had.names)}, but this Pliant reads {', '.join(wanted.names)}, of the types "
        "that docs/dataset.md lists; export it anew with this version."
    )
