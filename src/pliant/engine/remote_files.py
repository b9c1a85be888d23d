"""Files that fsspec finds, such as those of s3://bucket/checkpoint: written, read and removed whole."""

import shutil
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

__all__ = ["is_url", "on_disk", "read_remote", "remove_folder", "write_remote"]


def is_url(path: str) -> bool:
    """Say whether a path is one for fsspec, and not one of a disk."""
    return "://" in path


def on_disk(path: str | Path) -> Path:
    """Return a path of a disk. Raises ValueError for one of fsspec, which would name a folder beside the script."""
    if is_url(str(path)):
        raise ValueError(
            f"{path} is a path of fsspec, but a whole run is kept in a folder of a disk, where it is replaced in one "
            "move; name one that all ranks see."
        )
    return Path(path)


def write_remote(url: str, content: bytes) -> None:
    """Write a file in one call, and make its folder, where the storage has folders.

    Raises:
        OSError: The storage refuses it, is not known, or needs a package that is not installed.

    """
    with _os_errors():
        files, place = _storage(url)
        files.makedirs(place.rpartition("/")[0], exist_ok=True)
        files.pipe_file(place, content)


def read_remote(url: str) -> bytes:
    """Return the content of a file.

    Raises:
        FileNotFoundError: It is not there.
        OSError: As for `write_remote`.

    """
    with _os_errors():
        files, place = _storage(url)
        return files.cat_file(place)


def remove_folder(path: str) -> None:
    """Remove a folder with all that is in it, on a disk or elsewhere; one that is not there, or refuses, is left."""
    if not is_url(path):
        shutil.rmtree(path, ignore_errors=True)
        return
    with suppress(OSError), _os_errors():
        files, place = _storage(path)
        files.rm(place, recursive=True)


def _storage(url: str) -> tuple[Any, str]:
    from fsspec.core import url_to_fs  # which torch has installed, and few need

    found: Any = url_to_fs(url)
    return found


@contextmanager
def _os_errors() -> Generator[None]:
    """Raise OSError for whatever else is raised: each storage has errors of its own."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise OSError(str(error) or type(error).__name__) from error
