"""Files of single ranks, inside the checkpoint of a framework that saves model and optimizer itself."""

import io
import json
import os
import pickle
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pliant.engine.remote_files import is_url, read_remote, remove_folder, write_remote
from pliant.spec import SyncPlan, from_json, to_json

__all__ = ["RankFile", "read_rank_file", "remove_rank_file", "write_rank_file"]

_FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class RankFile:
    """Content of one rank's file."""

    plan: SyncPlan
    on_trial: bool
    """Whether the plan was one that "auto" only tried."""
    state: Mapping[str, Any]
    """The rank's part of the run, as `Run.state_dict` returns it."""


def write_rank_file(folder: str, rank: int, content: RankFile) -> OSError | None:
    """Write a rank's file, completely or not at all; return why that failed, in one sentence.

    Args:
        folder: On a disk, or where fsspec finds it.
        rank: Whose file.
        content: What is written.

    """
    body = {
        "pliant": "rank",
        "format": _FORMAT,
        "plan": to_json(content.plan),
        "on_trial": content.on_trial,
        "state": dict(content.state),
    }
    file = _file(folder, rank)
    try:
        if is_url(file):
            written = io.BytesIO()
            torch.save(body, written)
            write_remote(file, written.getvalue())
        else:
            beside = Path(file).with_suffix(".part")
            beside.parent.mkdir(parents=True, exist_ok=True)
            torch.save(body, beside)
            os.replace(beside, file)
    except (OSError, RuntimeError) as error:  # torch's writer says RuntimeError
        return OSError(f"{file} could not be written ({_said(error)}).")
    return None


def read_rank_file(folder: str, rank: int) -> RankFile:
    """Read a rank's file to the CPU; nothing in it is run. Raises ValueError, naming the file."""
    file = _file(folder, rank)
    try:
        source = io.BytesIO(read_remote(file)) if is_url(file) else file
        body: dict[str, Any] = torch.load(source, map_location="cpu", weights_only=True)
        if body["pliant"] != "rank" or body["format"] != _FORMAT:
            raise ValueError(f"it is a {body['pliant']} of format {body['format']}")
        plan = from_json(SyncPlan, body["plan"])
        return RankFile(plan=plan, on_trial=bool(body["on_trial"]), state=body["state"])
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(
            f"{file} is not there, so the checkpoint holds nothing of Pliant for rank {rank}: it was saved without "
            "Pliant, by fewer ranks, or on a disk that this rank does not see; load another one, or start anew."
        ) from None
    except (RuntimeError, ValueError, EOFError, KeyError, TypeError, OSError, pickle.UnpicklingError) as error:
        what = "could not be read" if isinstance(error, OSError) else "is damaged"
        raise ValueError(f"{file} {what} ({json.dumps(_said(error))}); load another checkpoint.") from None


def remove_rank_file(folder: str, rank: int) -> None:
    """Remove a rank's file from its host's disk, and the folder with the last one; the first rank removes all it sees.

    What is not there, or refuses, is left. Where fsspec finds the folder, the first rank sees all files.
    """
    if rank == 0:
        remove_folder(folder)
    elif not is_url(folder):
        with suppress(OSError):
            os.remove(_file(folder, rank))
            os.rmdir(folder)


def _said(error: Exception) -> str:
    """Return the first line of an error, or its kind, since a storage that does not answer may say nothing."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _file(folder: str, rank: int) -> str:
    return f"{folder.rstrip('/')}/rank{rank}.pt"
