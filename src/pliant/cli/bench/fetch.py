"""Where the images are: a folder of the user's own, the Debian package, or that package fetched once. No torch."""

import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

__all__ = ["DataMissingError", "find_images"]

_PACKAGE = "dataset-fashion-mnist"
_SHA256 = "39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0"
_INSTALLED = Path("/usr/share/datasets/fashion-mnist")


class DataMissingError(RuntimeError):
    """The data cannot be had; the message says where it was looked for, and how to get it."""


def find_images(folder: str) -> Path:
    """Return the folder with the images: the one given, or Fashion-MNIST, fetched if it is nowhere.

    Called before hosts are up, since emulated hosts reach no network but their own.

    Raises:
        DataMissingError: There is no such folder, or the package could not be fetched.

    """
    if folder:
        if not Path(folder).is_dir():
            raise DataMissingError(f"--data {folder} is not a folder; give one with idx files or CIFAR-10's batches.")
        return Path(folder).resolve()
    cache = Path.home() / ".cache" / "pliant" / "fashion-mnist"
    for place in (_INSTALLED, cache):
        if place.is_dir():
            return place
    _fetch(cache)
    return cache


def _fetch(cache: Path) -> None:
    """Fetch the package, check and unpack it beside the cache, and move it there as the last act."""
    print(f"fetching the Debian package {_PACKAGE} (31 MB) into {cache} ...", flush=True)
    cache.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache.parent) as scratch:
        _run(["apt-get", "download", _PACKAGE], scratch)
        archives = list(Path(scratch).glob("*.deb"))
        found = [hashlib.sha256(archive.read_bytes()).hexdigest() for archive in archives]
        if found != [_SHA256]:
            raise DataMissingError(
                f"apt-get brought {len(archives)} packages with sha256 {', '.join(found) or 'none'}, but {_PACKAGE} "
                f"has {_SHA256}; it was not used. Give a folder of images with --data."
            )
        _run(["dpkg-deb", "-x", str(archives[0]), scratch], scratch)
        shutil.move(str(Path(scratch) / _INSTALLED.relative_to("/")), cache)


def _run(command: list[str], folder: str) -> None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
        failure = "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["no reason given"])[-1]
    except (OSError, subprocess.TimeoutExpired) as error:
        failure = str(error)
    if failure:
        raise DataMissingError(
            f"Fashion-MNIST is not on this machine and could not be fetched ({' '.join(command[:2])}: {failure}). "
            f"Install the Debian package {_PACKAGE}, or give a folder of images with --data."
        )
