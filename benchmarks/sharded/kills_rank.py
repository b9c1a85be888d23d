"""One rank of `kills.py`: trains until it is struck, or until somebody else was, and says what it has seen."""

import faulthandler
import os
import signal
import sys
import tempfile
import threading
import traceback
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from kills_drawn import Trial

from pliant_bench.faults.diary_writer import DiaryWriter
from pliant_bench.faults.processes import end_with_job

__all__ = ["LEFT", "Start", "be"]

LEFT = "left"
"""Folder for temporary files of all ranks."""
_STEPS = 100_000
_TOLD_CHARS, _WHERE_CHARS = 600, 3000


@dataclass(frozen=True, kw_only=True)
class Start:
    """What a rank is told."""

    trial: Trial
    rank: int
    port: int
    folder: str
    timeout_s: float


class StruckError(RuntimeError):
    """A rank raises it where its trial says so."""


def be(start: Start) -> None:
    """Be a rank."""
    end_with_job()
    folder, trial = Path(start.folder), start.trial
    faulthandler.register(signal.SIGUSR1, file=(folder / f"{start.rank}.err").open("w"), all_threads=True)
    diary = DiaryWriter(folder / f"{start.rank}.jsonl")
    store = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(start.port), "GLOO_SOCKET_IFNAME": "lo"}
    os.environ.update({**store, "RANK": str(start.rank), "WORLD_SIZE": "4", "TMPDIR": str(folder / LEFT)})
    tempfile.tempdir = None  # asked for anew
    diary.say("begun", {"pid": os.getpid()})
    try:
        _train(start, trial, diary)
    except BaseException as error:  # noqa: BLE001  what ends a rank is what it is asked for
        lost = sorted(getattr(error, "lost", ()))
        where = "".join(traceback.format_exception(error))[-_WHERE_CHARS:]
        text = str(error)[:_TOLD_CHARS]
        diary.say("failed", {"error": type(error).__name__, "text": text, "lost": lost, "where": where})
    left = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    diary.say("over", {"threads": left})
    sys.stdout.flush()
    os._exit(0)  # torch's own groups, which a lost rank has broken, are not asked to say good-bye


def _train(start: Start, trial: Trial, diary: DiaryWriter) -> None:
    import torch
    import torch.distributed as dist
    from subjects import Gpt, loss_of
    from torch.distributed._composable.replicate_with_fsdp import replicate
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    import pliant

    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=start.timeout_s))
    torch.manual_seed(0)
    model: Any = Gpt(width=32, layers=2, heads=2, length=16)
    meshes = {"shards": ((4,), ("shard",)), "hsdp": ((2, 2), ("replica", "shard")), "replicate": ((4,), ("replica",))}
    shape, names = meshes[trial.mesh]
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    divide = replicate if trial.mesh == "replicate" else fully_shard
    for part in (*model.blocks, model):
        divide(part, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    mine = Strike(trial, diary) if start.rank == trial.victim else None
    if mine is not None:
        model.blocks[1].register_forward_hook(mine.after_block)
    with pliant.relax(model, optimizer, trial.what, timeout_s=start.timeout_s):
        for step in range(_STEPS):
            diary.say("step", {"step": step})
            at = (lambda where, step=step: None) if mine is None else (lambda where, step=step: mine.at(where, step))
            at("before forward")
            loss = loss_of(model, torch.randint(0, 256, (2, 17)))
            at("after forward")
            loss.backward()
            at("after backward")
            optimizer.step()
            at("after step")
            optimizer.zero_grad()


class Strike:
    """Strikes this rank at its moment."""

    def __init__(self, trial: Trial, diary: DiaryWriter) -> None:
        self._trial, self._diary, self._step = trial, diary, 0

    def at(self, where: str, step: int) -> None:
        """Strike, if this is the place."""
        self._step = step
        if (where, step) == (self._trial.where, self._trial.step):
            self._diary.say("struck")
            if self._trial.how == "exception":
                raise StruckError("struck by the trial")
            os.kill(os.getpid(), signal.SIGKILL)

    def after_block(self, module: Any, given: Any, output: Any) -> None:
        """Strike within forward, or, when its gradient comes by, within backward."""
        self.at("forward", self._step)
        if output.requires_grad:
            output.register_hook(lambda gradient: self.at("backward", self._step))
