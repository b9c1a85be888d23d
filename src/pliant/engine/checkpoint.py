"""Checkpoints: a folder with a whole run, written completely or not at all, and read without running code."""

import json
import os
import pickle
import secrets
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch

from pliant.comm.base import Comm
from pliant.comm.text_broadcast import broadcast_text
from pliant.engine.rank_checks import gather_numbers, raise_together
from pliant.spec import SyncPlan, from_json, to_json

__all__ = ["Manifest", "read_manifest", "read_part", "write_checkpoint"]

_MANIFEST, _SHARED, _FORMAT = "checkpoint.json", "shared.pt", 1


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Content of `checkpoint.json`. It is written last, in one move: all files that it names are complete."""

    folder: Path
    """Folder that holds the parts."""
    step: int
    plan: SyncPlan
    on_trial: bool
    """Whether the plan was one that "auto" only tried."""
    numels: Mapping[str, int]
    """File -> bytes: shared.pt, then rank0.pt and so on."""

    @property
    def size(self) -> int:
        """Ranks that saved it."""
        return len(self.numels) - 1


def write_checkpoint(
    path: Path,
    *,
    plan: SyncPlan,
    step: int,
    on_trial: bool,
    own: Mapping[str, Any],
    shared: Mapping[str, Any],
    comm: Comm,
    device: torch.device,
) -> None:
    """Write this rank's part, and on rank 0 the shared part; then remove the earlier checkpoint. Collective.

    Raises:
        OSError: On all ranks, if any could not write; the earlier checkpoint is unchanged.
        ValueError: On all ranks, if something to be saved is neither a tensor nor plain data.

    """
    name = f"step{step:08d}-{secrets.token_hex(4)}"
    folder = path / broadcast_text(name, comm, device=device)
    first = comm.rank == 0
    raise_together(_attempt(folder.mkdir if first else None, path, parents=True), comm, device, kind=OSError)
    parts = {f"rank{comm.rank}.pt": own, **({_SHARED: shared} if first else {})}
    odd: list[str] = []
    try:
        error = _attempt(lambda: odd.extend(_write(folder / part, content) for part, content in parts.items()), path)
        raise_together(error, comm, device, kind=OSError)
        raise_together(_not_plain(", ".join(filter(None, odd))), comm, device, kind=ValueError)
        numels = [numel for (numel,) in gather_numbers([(folder / f"rank{comm.rank}.pt").stat().st_size], comm, device)]
        commit = (lambda: _commit(path, folder, plan, step, numels, on_trial=on_trial)) if first else None
        raise_together(_attempt(commit, path), comm, device, kind=OSError)
    except (OSError, ValueError):
        if first:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    if first:
        for old in path.glob("step*-*"):
            if old != folder:
                shutil.rmtree(old, ignore_errors=True)


def read_manifest(path: Path) -> Manifest:
    """Read what a checkpoint holds. Raises ValueError, naming the file, if it is none, or not whole."""
    file = path / _MANIFEST
    if not file.is_file():
        raise ValueError(f"{path} holds no whole checkpoint: {_MANIFEST}, which is written last, is not there.")
    try:
        body = json.loads(file.read_text(encoding="utf-8"))
        if body["pliant"] != "checkpoint" or body["format"] != _FORMAT:
            raise ValueError(f"it is a {body['pliant']} of format {body['format']}")
        manifest = Manifest(
            folder=path / Path(str(body["folder"])).name,
            step=int(body["step"]),
            plan=from_json(SyncPlan, json.dumps(body["plan"])),
            on_trial=bool(body["on_trial"]),
            numels={str(name): int(numel) for name, numel in body["files"].items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{file} cannot be read as a checkpoint of format {_FORMAT} ({error}).") from None
    if set(manifest.numels) != {_SHARED, *(f"rank{k}.pt" for k in range(manifest.size))}:
        raise ValueError(f"{file} names {', '.join(manifest.numels)}, but not one part for each rank.")
    return manifest


def read_part(manifest: Manifest, rank: int | None, *, mapped: bool = False) -> dict[str, Any]:
    """Read one rank's part, or with None that for all, to the CPU; mapped, only what is used of it is read.

    Raises:
        ValueError: The file, which is named, is missing or damaged.

    """
    name = _SHARED if rank is None else f"rank{rank}.pt"
    file = manifest.folder / name
    found = file.stat().st_size if file.is_file() else None
    if found != manifest.numels[name]:
        held = "is not there" if found is None else f"has {found} bytes"
        raise ValueError(f"{file} {held}, but {manifest.numels[name]} bytes were saved; load another checkpoint.")
    try:
        return torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)
    except (RuntimeError, ValueError, EOFError, KeyError, OSError, pickle.UnpicklingError) as error:
        raise ValueError(f"{file} is damaged ({error}); load another checkpoint.") from None


def _attempt(act: Callable[..., Any] | None, path: Path, **options: Any) -> OSError | None:
    """Do something with files, if there is something to do; return what went wrong, in one sentence."""
    try:
        if act is not None:
            act(**options)
    except (OSError, RuntimeError) as error:  # torch's writer says RuntimeError
        why = cast("str | None", getattr(error, "strerror", None)) or str(error).splitlines()[0]
        if isinstance(error, RuntimeError):
            why += f"; {shutil.disk_usage(path).free} bytes are free there"
        return OSError(f"the checkpoint {path} could not be written ({why}); one that was there before is as it was.")
    return None


def _write(file: Path, content: Mapping[str, Any]) -> str:
    """Write a file; return what is in it that could not be read without running it, or ""."""
    try:
        torch.save(content, file)
    except (pickle.PicklingError, AttributeError, TypeError) as error:  # a function of a function, say
        return f"something that cannot be written ({error})"
    _sync(file)
    return ", ".join(torch.serialization.get_unsafe_globals_in_checkpoint(file))


def _not_plain(odd: str) -> ValueError | None:
    """Return an error for what is neither a tensor nor plain data, if there is something."""
    if not odd:
        return None
    return ValueError(
        f"what is to be saved holds {odd}, but a checkpoint holds tensors, numbers, texts, lists and dicts only; let "
        "the scheduler, the scaler or the optimizer keep plain data."
    )


def _commit(path: Path, folder: Path, plan: SyncPlan, step: int, numels: list[int], *, on_trial: bool) -> None:
    """Make a checkpoint of what all ranks have written, in one move."""
    files = {_SHARED: (folder / _SHARED).stat().st_size}
    for rank, numel in enumerate(numels):
        part = folder / f"rank{rank}.pt"
        if not part.is_file() or part.stat().st_size != numel:
            raise OSError(f"rank 0 does not see what rank {rank} has written; name a folder that all ranks share")
        files[part.name] = numel
    body = {
        "pliant": "checkpoint",
        "format": _FORMAT,
        "folder": folder.name,
        "step": step,
        "on_trial": on_trial,
        "files": files,
        "plan": json.loads(to_json(plan)),
    }
    beside = folder / _MANIFEST
    beside.write_text(json.dumps(body, indent=2) + "\n", encoding="utf-8")
    _sync(beside)
    _sync(folder)
    beside.replace(path / _MANIFEST)
    _sync(path)


def _sync(path: Path) -> None:
    """Wait until a file or folder is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
