"""Checkpoints as users write them: by `run.save`, into one place again and again, or by torch's own idiom."""

from pathlib import Path
from typing import Any

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import pliant
from pliant_bench.harness.arms import Arm

__all__ = ["load_checkpoint", "save_checkpoint"]


def save_checkpoint(folder: str, number: int, arm: Arm, how: str) -> None:
    """Write a checkpoint. Collective."""
    run: Any = arm.run
    if how == "run.save":
        run.save(Path(folder) / "run")
        return
    model, optimizer = get_state_dict(arm.model, arm.optimizer)
    state = {"model": model, "optimizer": optimizer, "run": run.state_dict()}
    dcp.save(state, checkpoint_id=Path(folder) / str(number))


def load_checkpoint(folder: str, arm: Arm, how: str) -> int:
    """Load the last checkpoint that is whole into an arm that has made no step, and return its number; 0 if unknown."""
    run: Any = arm.run
    if how == "run.save":
        run.close()
        arm.run = pliant.load_run(Path(folder) / "run", arm.model, arm.optimizer)
        return 0
    # torch writes .metadata last: a folder with it is said to be whole.
    number = max(int(found.parent.name) for found in Path(folder).glob("*/.metadata"))
    model, optimizer = get_state_dict(arm.model, arm.optimizer)
    state = {"model": model, "optimizer": optimizer, "run": run.state_dict()}
    dcp.load(state, checkpoint_id=Path(folder) / str(number))
    set_state_dict(arm.model, arm.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    run.load_state_dict(state["run"])
    return number
