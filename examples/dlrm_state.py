"""Checkpoints of `dlrm.py`: a folder for each, with a file for each rank; written whole, or not at all."""

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from pliant.comm import Comm

if TYPE_CHECKING:
    from dlrm import Trainer


class Parts(Mapping[str, Any]):
    """What each rank has saved of the tables, by 'rank<i>'; a file is read when its part is asked for."""

    def __init__(self, folder: Path) -> None:
        self._paths = {path.stem: path for path in sorted(folder.glob("rank*.pt"))}

    def __getitem__(self, name: str) -> Any:
        return _read(self._paths[name])["bags"]

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)


def save(trainer: "Trainer", folder: Path, comm: Comm) -> None:
    """Save the whole model; only then is the checkpoint before it removed. Collective."""
    name = f"step{trainer.steps:08d}"
    unfinished = folder / f"unfinished-{name}"
    if comm.rank == 0:
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
    comm.barrier()
    state = {
        "steps": trainer.steps,
        "bags": trainer.bags.state_dict()[f"rank{comm.rank}"],
        "net": trainer.net.state_dict(),
        "optimizer": trainer.optimizer.state_dict(),
        "run": trainer.run.state_dict(),
    }
    torch.save(state, unfinished / f"rank{comm.rank}.pt")
    comm.barrier()
    if comm.rank == 0:
        unfinished.rename(folder / name)
        for old in sorted(folder.glob("step*"))[:-1]:
            shutil.rmtree(old)


def restore(trainer: "Trainer", folder: Path, comm: Comm) -> str:
    """Go on from the newest checkpoint, if there is one; return what was done, in words. Collective.

    With as many ranks as saved it, training goes on as if there had been no break. With others the tables do, too; the
    dense part has rank 0's weights and momentum, and what its algorithm keeps (residuals, say) begins anew.
    """
    found = sorted(folder.glob("step*"))
    if not found:
        return "begins anew"
    parts = Parts(found[-1])
    same = len(parts) == comm.size
    own = _read(found[-1] / f"rank{comm.rank if same else 0}.pt")
    trainer.steps = own["steps"]
    trainer.bags.load_state_dict(parts)
    trainer.net.load_state_dict(own["net"])
    trainer.optimizer.load_state_dict(own["optimizer"])
    if same:
        trainer.run.load_state_dict(own["run"])
        return f"goes on after step {trainer.steps}"
    return f"goes on after step {trainer.steps}, saved by {len(parts)} ranks, with {comm.size}"


def _read(path: Path) -> dict[str, Any]:
    return torch.load(path, mmap=True, weights_only=True)
