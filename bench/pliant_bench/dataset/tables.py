"""A data set in memory: Arrow tables, and what they say as records and NumPy columns."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pliant.planner.trials import Trial
from pliant_bench.dataset.records import ModelRow, NetworkRow, PlanRow, Row
from pliant_bench.dataset.schema import COLUMNS, arrow, schema_of
from pliant_bench.dataset.splits import split_rows

__all__ = ["Dataset", "from_rows"]


@dataclass(frozen=True)
class Dataset:
    """Tables by name, as `COLUMNS` lists them; `docs/dataset.md` says what they hold."""

    tables: Mapping[str, Any]
    """Name -> pyarrow.Table."""

    @cached_property
    def models(self) -> dict[str, ModelRow]:
        """Models by their model_id."""
        return {row["model_id"]: ModelRow.from_row(row) for row in self.rows("models")}

    @cached_property
    def topologies(self) -> dict[str, NetworkRow]:
        """Networks by their topo_id."""
        return {row["topo_id"]: NetworkRow.from_row(row) for row in self.rows("topologies")}

    @cached_property
    def plans(self) -> dict[str, PlanRow]:
        """Plans by their plan_id."""
        return {row["plan_id"]: PlanRow.from_row(row) for row in self.rows("plans")}

    @cached_property
    def runs(self) -> dict[str, NDArray[Any]]:
        """Column -> values, (num_runs,): numbers, where NaN is not known, or strings as objects."""
        return self.columns("runs")

    def columns(self, table: str) -> dict[str, NDArray[Any]]:
        """Return a table's columns that are numbers, truths or strings, (num_rows,) each."""
        plain = ("string", "int64", "double", "bool")
        names = [name for name, (kind, _) in COLUMNS[table].items() if kind in plain]
        return {name: self.tables[table].column(name).to_numpy() for name in names}

    def rows(self, table: str) -> list[Row]:
        """Return a table's rows as plain data."""
        return self.tables[table].to_pylist()

    def samples_of(self, run_id: str) -> NDArray[np.float64]:
        """Return a run's samples of the group's pace in seconds, (num_samples,), in order; empty if it has none."""
        first, last = self._places.get(run_id, (0, 0))
        return self._samples[first:last]

    def trials(self, model_id: str, topo_id: str, provenance: str = "measured_emulated") -> list[Trial]:
        """Return a cell's runs as the search knows them, in the order of the table; controls and repeats included."""
        runs = self.runs
        wanted = (runs["model_id"] == model_id) & (runs["topo_id"] == topo_id) & (runs["provenance"] == provenance)
        return [self._trial(int(k)) for k in np.flatnonzero(wanted)]

    def split(self, name: str) -> dict[str, NDArray[np.int64]]:
        """Return role -> places in `runs`, for the roles train, val and test.

        Raises:
            ValueError: There is no such split.

        """
        splits = self._splits
        named = splits["split"] == name
        if not named.any():
            known = ", ".join(sorted(set(splits["split"].tolist()))[:8])
            raise ValueError(f"there is no split {name!r}; there are {known} ...")
        role_of = dict(zip(splits["run_id"][named], splits["role"][named], strict=True))
        roles = np.array([role_of.get(run_id, "train") for run_id in self.runs["run_id"]])
        return {role: np.flatnonzero(roles == role) for role in ("train", "val", "test")}

    def _trial(self, k: int) -> Trial:
        runs = self.runs
        genes = self.plans[runs["plan_id"][k]].genes
        samples = self.samples_of(runs["run_id"][k])
        steps_s = tuple(samples.tolist()) or (() if np.isnan(runs["step_s"][k]) else (float(runs["step_s"][k]),))
        return Trial(genes=genes, steps_s=steps_s, status=runs["status"][k], reason=runs["reason"][k])

    @cached_property
    def _splits(self) -> dict[str, NDArray[Any]]:
        return self.columns("splits")

    @cached_property
    def _samples(self) -> NDArray[np.float64]:
        return self.columns("steps")["pace_s"]

    @cached_property
    def _places(self) -> dict[str, tuple[int, int]]:
        """Run -> where its samples begin and end; they lie together."""
        run_ids = self.columns("steps")["run_id"]
        first = np.ones(len(run_ids), dtype=bool)
        first[1:] = run_ids[1:] != run_ids[:-1]
        starts = np.flatnonzero(first)
        ends = [*starts[1:], len(run_ids)][: len(starts)]
        return {run_ids[a]: (int(a), int(b)) for a, b in zip(starts, ends, strict=True)}


def from_rows(rows: Mapping[str, list[Row]]) -> Dataset:
    """Return the data set of rows, with its splits made anew; a table without rows is empty."""
    every = {name: rows.get(name, []) for name in COLUMNS}
    every["splits"] = split_rows(every["runs"])
    pa = arrow()
    return Dataset({name: pa.Table.from_pylist(every[name], schema=schema_of(name)) for name in COLUMNS})
