"""Frequencies with which the rows of embedding tables are looked up: records, stated laws, files."""

import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, cast
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from pliant.recsys.frequencies.zipf_cells import cell_masses, log_edges
from pliant.spec.files import write_atomically
from pliant.spec.reading import made_by, parse_json, require_file

__all__ = ["Frequencies", "RowFrequencies", "per_table"]

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
_FORMAT = 1
_HEAD = 4096


@dataclass(frozen=True, kw_only=True, eq=False)
class RowFrequencies:
    """Frequencies of the rows of one table.

    The head lists rows one by one, the tail in bins of rows that are about equally frequent. Probabilities are those of
    one lookup; all of them, head and tail, sum to 1 (to 0 for a table that was never looked up).
    """

    name: str
    num_rows: int
    head_ids: Ids
    """int64 (head,), the most frequent row first"""
    head_p: Floats
    """float64 (head,), probability that a lookup is of this row"""
    tail_p: Floats
    """float64 (bins,), probability that a lookup is of one given row of the bin, falling"""
    tail_rows: Floats
    """float64 (bins,), rows in the bin; estimated from a sample, so not whole numbers, unless the counting was exact"""
    num_lookups: float = 0.0
    """Lookups that were counted; 0 for a stated law. Counts that fade count as what is left of them."""
    num_samples: float = 0.0
    pooling: float = 1.0
    """Mean of lookups per sample, empty bags included."""
    bag_shares: Floats = field(default_factory=lambda: np.array([0.0, 1.0]))
    """float64 (sizes,), share of samples whose bag has 0, 1, 2, ... lookups; the last of 257 means 256 and more"""
    missed_p: float = 0.0
    """How much too large a probability of the head may be, through bounded memory; 0: counted exactly."""

    @property
    def empty_share(self) -> float:
        """Share of samples whose bag is empty."""
        return float(self.bag_shares[0])

    @property
    def num_seen(self) -> float:
        """Different rows that were looked up, or can be."""
        return self.head_ids.size + float(self.tail_rows.sum())

    @property
    def num_unseen(self) -> float:
        """Rows that were never looked up."""
        return max(0.0, self.num_rows - self.num_seen)

    @property
    def bins(self) -> tuple[Floats, Floats]:
        """Probability of one row (bins,) and number of rows (bins,), the head first, each of its rows a bin."""
        rows = np.concatenate([np.ones(self.head_ids.size), self.tail_rows])
        return np.concatenate([self.head_p, self.tail_p]), rows

    def beyond(self, num_hot: float) -> tuple[Floats, Floats]:
        """Return `bins` without the `num_hot` most frequent rows; a bin may be cut."""
        p, rows = self.bins
        before = np.cumsum(rows) - rows
        return p, np.clip(rows - np.maximum(num_hot - before, 0.0), 0.0, None)

    def hot_share(self, num_hot: float) -> float:
        """Return the share of lookups that falls on the `num_hot` most frequent rows."""
        p, cold = self.beyond(num_hot)
        return float(p @ (self.bins[1] - cold))


@dataclass(frozen=True, kw_only=True, eq=False)
class Frequencies:
    """Row frequencies of all tables, in the order of the plan."""

    tables: tuple[RowFrequencies, ...]

    @classmethod
    def zipf(
        cls,
        num_rows: Sequence[int],
        exponent: float | Sequence[float],
        *,
        shift: float = 0.0,
        pooling: float | Sequence[float] = 1.0,
        names: Sequence[str] = (),
        num_exact: int = _HEAD,
    ) -> "Frequencies":
        """State a law instead of counting: row i of a table has probability ~ (i + 1 + shift)^-exponent.

        No array is as long as a table: `num_exact` rows are listed, the others in bins of 1.2 %. Exponent and pooling
        (lookups of each sample, a whole number or the mean) are one for all tables or one per table. Shift flattens the
        head to a plateau of about so many rows (Mandelbrot).

        Raises:
            ValueError: A number has no meaning, or there are not as many of them as tables.

        """
        exponents, poolings = (
            per_table(value, len(num_rows), what) for value, what in ((exponent, "exponents"), (pooling, "poolings"))
        )
        called = tuple(names) or tuple(f"t{t}" for t in range(len(num_rows)))
        per_table(called, len(num_rows), "names")
        if min(num_rows, default=1) < 1 or min(exponents) < 0 or min(poolings) < 0 or shift < 0:
            raise ValueError(
                f"rows must be at least 1, exponent, pooling and shift at least 0, but rows are {list(num_rows)}, "
                f"exponents {list(exponents)}, poolings {list(poolings)}, shift {shift}."
            )
        return cls(
            tables=tuple(
                _stated(name, rows, s, shift, mean, num_exact)
                for name, rows, s, mean in zip(called, num_rows, exponents, poolings, strict=True)
            )
        )

    @classmethod
    def uniform(cls, num_rows: Sequence[int], *, pooling: float | Sequence[float] = 1.0) -> "Frequencies":
        """State that all rows of a table are equally frequent."""
        return cls.zipf(num_rows, 0.0, pooling=pooling)

    def save(self, path: str | Path) -> None:
        """Write one .npz file (arrays and JSON, no pickle), atomically."""
        arrays: dict[str, Any] = {}
        plain: list[dict[str, Any]] = []
        for t, table in enumerate(self.tables):
            body = {f.name: getattr(table, f.name) for f in fields(table)}
            arrays |= {f"{t}.{k}": v for k, v in body.items() if isinstance(v, np.ndarray)}
            plain.append({k: v for k, v in body.items() if not isinstance(v, np.ndarray)})
        header = json.dumps({"pliant": "Frequencies", "format": _FORMAT, "tables": plain})
        file = io.BytesIO()
        np.savez(file, header=np.frombuffer(header.encode(), np.uint8), **arrays)
        write_atomically(Path(path), file.getvalue())

    @classmethod
    def load(cls, path: str | Path) -> "Frequencies":
        """Read what `save` wrote.

        Raises:
            ValueError: The file is something else, or of another format, or damaged.

        """
        try:
            require_file(path)
            with Path(path).open("rb") as raw, np.load(raw, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            header = parse_json(arrays.pop("header").tobytes().decode())
        except FileNotFoundError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, EOFError, OSError, BadZipFile, MemoryError) as error:
            raise ValueError(
                f"{path} holds no Frequencies ({error}); give a file that Frequencies.save wrote."
            ) from None
        with made_by("Frequencies.save", path):
            return cls._of(path, header, arrays)

    @classmethod
    def _of(cls, path: str | Path, header: Any, arrays: dict[str, Any]) -> "Frequencies":
        if header.get("pliant") != "Frequencies" or header.get("format") != _FORMAT:
            found = f"{header.get('pliant')!r} of format {header.get('format')!r}"
            raise ValueError(f"{path} holds {found}, this Pliant reads 'Frequencies' of format {_FORMAT}.")
        bodies = cast(list[dict[str, Any]], header["tables"])
        for name, array in arrays.items():
            bodies[int(name.partition(".")[0])][name.partition(".")[2]] = array
        try:
            tables = tuple(RowFrequencies(**body) for body in bodies)
        except TypeError as error:
            raise ValueError(f"{path} does not fit this Pliant's RowFrequencies: {error}.") from None
        for table in tables:
            if not _is_sound(table):
                raise ValueError(f"{path}: the figures of table {table.name!r} are no frequencies of its rows.")
        return cls(tables=tables)


def _is_sound(table: RowFrequencies) -> bool:
    """Say whether what a file holds of a table can be: kinds, lengths, and figures that are finite and at least 0."""
    floats = (table.head_p, table.tail_p, table.tail_rows, table.bag_shares)
    plain = (table.num_lookups, table.num_samples, table.pooling, table.missed_p)
    return (
        isinstance(table.name, str)  # pyright: ignore[reportUnnecessaryIsInstance]
        and type(table.num_rows) is int
        and table.num_rows >= 1
        and all(type(x) in (int, float) and 0 <= x < math.inf for x in plain)
        and all(a.dtype == np.float64 and a.ndim == 1 and bool(((a >= 0) & (a < np.inf)).all()) for a in floats)
        and table.head_ids.dtype == np.int64
        and table.head_ids.shape == table.head_p.shape
        and table.tail_p.shape == table.tail_rows.shape
        and bool(((table.head_ids >= 0) & (table.head_ids < table.num_rows)).all())
    )


def per_table(value: Any, num_tables: int, what: str) -> tuple[Any, ...]:
    """Return one value per table, of one for all or of a sequence.

    Raises:
        ValueError: The sequence has another length.

    """
    values = tuple(value) if isinstance(value, Sequence) else (value,) * num_tables
    if len(values) != num_tables:
        raise ValueError(f"there are {len(values)} {what} for {num_tables} tables; give one for all, or one per table.")
    return values


def _stated(name: str, num_rows: int, exponent: float, shift: float, pooling: float, num_exact: int) -> RowFrequencies:
    edges = log_edges(num_rows, num_exact)
    rows = np.diff(edges).astype(np.float64)
    p = cell_masses(edges, exponent, shift) / rows
    head = min(num_rows, num_exact)
    whole = int(pooling)
    shares = np.zeros(min(whole + 2, 257))
    shares[min(whole, 256)] = 1 - (pooling - whole)
    shares[min(whole + 1, 256)] += pooling - whole
    return RowFrequencies(
        name=name,
        num_rows=num_rows,
        head_ids=np.arange(head, dtype=np.int64),
        head_p=p[:head],
        tail_p=p[head:],
        tail_rows=rows[head:],
        pooling=float(pooling),
        bag_shares=shares,
    )
