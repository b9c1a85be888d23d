"""One rank of a training in which a rank is lost: a process that is forked from one that has imported torch."""

import faulthandler
import logging
import os
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

import pliant
from pliant_bench.data.images import Images
from pliant_bench.faults.diary_writer import DiaryWriter, Regroups
from pliant_bench.faults.processes import end_with_job
from pliant_bench.harness.arms import Arm, prepare
from pliant_bench.harness.training import set_learning_rate

__all__ = ["IMAGES_FILE", "TIMEOUT_S", "Start", "run_rank"]

IMAGES_FILE = "images.pt"
TIMEOUT_S = 5.0
"""Of one exchange; far longer than a step takes."""
_REGROUP_S = 10.0
_JUDGED = 2000
"""Test images that the end of a training is judged by."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """Orders that a rank is given."""

    rank: int
    size: int
    port: int
    rank_hosts_store: bool
    arm: str
    elastic: bool
    steps: int
    batch: int
    bucket_mb: float
    seed: int
    data: str
    """Folder of `IMAGES_FILE`."""
    folder: str
    """Where it says what it does (RANK.jsonl), and, asked by SIGUSR1, where it hangs (RANK.err)."""


def run_rank(start: Start) -> None:
    """Train as a rank; exit code 1 says that an error ended it, which is in the diary."""
    end_with_job()
    folder = Path(start.folder)
    diary = DiaryWriter(folder / f"{start.rank}.jsonl")
    errors = (folder / f"{start.rank}.err").open("a")
    os.dup2(errors.fileno(), 2)
    faulthandler.register(signal.SIGUSR1, errors, all_threads=True)
    os.environ.update(_environment(start))
    torch.set_num_threads(1)
    try:
        _train(start, diary)
    except Exception as error:  # noqa: BLE001  whatever it is, it is what this rank ends with
        diary.say("failed", {"error": type(error).__name__, "text": str(error)})
        sys.exit(1)
    diary.say("ended")


def _environment(start: Start) -> dict[str, str]:
    plain = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(start.port), "GLOO_SOCKET_IFNAME": "lo"}
    agent = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
    numbers = {"RANK": str(start.rank), "WORLD_SIZE": str(start.size)}
    return {**plain, **numbers, **({} if start.rank_hosts_store else agent)}


def _train(start: Start, diary: DiaryWriter) -> None:
    images = Images(**torch.load(Path(start.data) / IMAGES_FILE, mmap=True, weights_only=True))
    if start.elastic:
        logger = logging.getLogger("pliant")
        logger.setLevel(logging.INFO)
        logger.addHandler(Regroups(diary))
    else:
        dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT_S))
    torch.manual_seed(start.seed)
    elastic = pliant.Elastic(regroup_s=_REGROUP_S) if start.elastic else None
    arm = prepare(
        start.arm, images.model(), images.lr, start.steps, start.bucket_mb, timeout_s=TIMEOUT_S, elastic=elastic
    )
    run = arm.run
    if run is None:
        raise ValueError(f"{start.arm} is not an arm of Pliant's, so there is no promise to hold it to.")
    diary.say("begun", {"step": run.steps})
    while run.steps < start.steps:
        _step(arm, images, start, run.steps)
        diary.say("step", {"step": run.steps, "members": len(run.members)})
    members = run.members
    run.close()
    if start.rank == min(members):
        diary.say("judged", {"accuracy": _accuracy(arm, images)})
    if not start.elastic:
        with suppress(RuntimeError):
            dist.destroy_process_group()


def _step(arm: Arm, images: Images, start: Start, step: int) -> None:
    set_learning_rate(arm, step, start.steps)
    x, y = images.batch(step, start.rank, start.size, start.batch, start.seed)
    arm.optimizer.zero_grad()
    cross_entropy(arm.model(x), y).backward()
    arm.optimizer.step()


def _accuracy(arm: Arm, images: Images) -> float:
    arm.module.eval()
    with torch.no_grad():
        right, num = images.tally(arm.module, 0, min(_JUDGED, images.num_held_out))
    return right / num
