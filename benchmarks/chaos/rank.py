"""One rank of a trial: a process that is forked from one that has imported torch."""

import faulthandler
import hashlib
import logging
import math
import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import TCPStore
from torch.distributed.checkpoint.api import CheckpointException
from torch.nn.functional import cross_entropy

import pliant
from chaos.hosts import enter
from chaos.saving import load_checkpoint, save_checkpoint
from chaos.trials import Trial
from pliant_bench.faults.diary_writer import DiaryWriter, Regroups
from pliant_bench.faults.processes import end_with_job
from pliant_bench.harness.arms import Arm, plan_of_arm, prepare

__all__ = ["SECRET_FILE", "Start", "StoreStart", "be", "host_store"]

_FEATURES, _CLASSES, _BATCH, _LR = 64, 8, 8, 0.05
_PACE_S = 0.02
"""Sleep in each step: so that an attack of a second strikes a training and not its end."""
_STEPS_A_SAVING = 6
_START_S = 20.0
SECRET_FILE = "run.secret"
"""In the folder of a trial: what the ranks of an elastic run know and strangers do not."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """What a rank is told."""

    trial: Trial
    rank: int
    address: str
    port: int
    network_pid: int
    """A process in the host's network namespace; 0: loopback."""
    disk_pid: int
    """A process in the mount namespace of the disk for checkpoints; 0: none."""
    saves: str
    """Folder of checkpoints."""
    folder: str
    """Where it says what it does (RANK.jsonl), and, asked by SIGUSR1, where it hangs (RANK.err)."""
    steps: int
    slack: float
    timeout_s: float
    plans: tuple[str, ...] = ()
    """To switch to, every other step."""
    loads: bool = False
    """Whether it only loads the last checkpoint, and says what it finds."""


@dataclass(frozen=True, kw_only=True)
class StoreStart:
    """What the process that hosts a store is told."""

    address: str
    network_pid: int
    folder: str


def host_store(start: StoreStart) -> None:
    """Host a store that is no rank's, and say at which port."""
    end_with_job()
    os.dup2(os.open(Path(start.folder) / "store.err", os.O_WRONLY | os.O_CREAT), 2)
    if start.network_pid:
        enter(start.network_pid, "net")
    store = TCPStore(start.address, 0, is_master=True, wait_for_workers=False)
    DiaryWriter(Path(start.folder) / "-1.jsonl").say("hosts", {"port": store.port})
    while True:
        signal.pause()


def be(start: Start) -> None:
    """Train as a rank; exit code 1 says that an error ended it, which is in the diary."""
    end_with_job()
    folder = Path(start.folder)
    diary = DiaryWriter(folder / f"{start.rank}.jsonl")
    errors = (folder / f"{start.rank}.err").open("a")
    os.dup2(errors.fileno(), 2)
    faulthandler.register(signal.SIGUSR1, errors, all_threads=True)
    if start.network_pid:
        enter(start.network_pid, "net")
    if start.disk_pid:
        enter(start.disk_pid, "mnt")
    os.environ.update(_environment(start))
    torch.set_num_threads(1)
    try:
        _train(start, diary)
    except (Exception, CheckpointException) as error:  # noqa: BLE001  whatever it is, it is what this rank ends with
        diary.say("failed", {"error": type(error).__name__, "text": str(error)})
        sys.exit(1)


def _environment(start: Start) -> dict[str, str]:
    plain = {"MASTER_ADDR": start.address, "MASTER_PORT": str(start.port)}
    interface = {"GLOO_SOCKET_IFNAME": "eth0" if start.network_pid else "lo"}
    agent = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
    numbers = {"RANK": str(start.rank), "WORLD_SIZE": str(start.trial.ranks)}
    return {**plain, **interface, **numbers, **({} if start.trial.rank_hosts_store else agent)}


def _train(start: Start, diary: DiaryWriter) -> None:
    trial = start.trial
    if trial.elastic:
        logger = logging.getLogger("pliant")
        logger.setLevel(logging.INFO)
        logger.addHandler(Regroups(diary))
    else:
        dist.init_process_group("gloo", timeout=timedelta(seconds=max(start.timeout_s, 5)))
    arm = _relaxed(start, diary)
    run = arm.run
    if run is None:
        raise ValueError(f"{trial.algorithm} is not an algorithm of Pliant's.")
    if start.loads:
        number = load_checkpoint(start.saves, arm, trial.how)
        diary.say("loaded", {"number": number, "step": arm.run.steps, "hash": hash_of(arm.module)})
        return
    diary.say("begun", {"step": run.steps})
    while run.steps < start.steps:
        _step(arm, start.rank, run.steps)
        diary.say("step", {"step": run.steps, "members": len(run.members)})
        _between_steps(start, arm, diary)
        time.sleep(_PACE_S * start.slack)
    members = list(run.members)
    run.close()
    weights = [float(p.detach().double().square().sum()) for p in arm.module.parameters()]
    finite = all(math.isfinite(w) for w in weights)
    diary.say("ended", {"step": run.steps, "members": members, "finite": finite, "hash": hash_of(arm.module)})
    if not trial.elastic:
        with suppress(RuntimeError):  # of a rank that has ended a moment before
            dist.destroy_process_group()


def _relaxed(start: Start, diary: DiaryWriter) -> Arm:
    """Return the arm. A late rank sleeps when everything of torch's own is there, just before relax()."""
    trial = start.trial
    relax, is_late = pliant.relax, trial.attack == "slow_start" and start.rank in trial.victims and not start.loads

    def late_relax(*given: Any, **settings: Any) -> Any:
        diary.say("coming")
        time.sleep(trial.late_s * start.slack if is_late else 0.0)
        if trial.elastic and trial.attack != "slow_start":  # who comes back after the end is alone at a new start
            settings["start_timeout_s"] = _START_S * start.slack
        return relax(*given, **settings)

    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(_FEATURES, 128), nn.Tanh(), nn.Linear(128, 128), nn.Linear(128, _CLASSES))
    secret = Path(start.folder) / SECRET_FILE
    elastic = pliant.Elastic(regroup_s=10.0 * start.slack, secret_file=secret) if trial.elastic else None
    name = start.plans[0] if start.plans else trial.algorithm
    pliant.relax = late_relax
    arm = prepare(name, module, _LR, 100, 25.0, timeout_s=start.timeout_s, elastic=elastic)
    if start.plans:  # some of them keep a momentum themselves, and refuse one of the optimizer's
        arm.optimizer.param_groups[0]["momentum"] = 0.0
    return arm


def _step(arm: Arm, rank: int, step: int) -> None:
    x = torch.randn(_BATCH, _FEATURES, generator=torch.Generator().manual_seed(1000 * step + rank))
    y = (x[:, :_CLASSES] + x[:, _CLASSES : 2 * _CLASSES]).argmax(1)
    arm.optimizer.zero_grad()
    cross_entropy(arm.model(x), y).backward()
    arm.optimizer.step()


def _between_steps(start: Start, arm: Arm, diary: DiaryWriter) -> None:
    run, trial = arm.run, start.trial
    if run is None:
        return
    if start.plans and run.steps % 2 == 0 and run.steps // 2 < len(start.plans):
        plan = start.plans[run.steps // 2]
        diary.say("switches", {"to": plan})
        run.switch(plan_of_arm(plan), pay=run.steps % 4 == 0)
    if trial.how and run.steps % _STEPS_A_SAVING == 0:
        number = run.steps // _STEPS_A_SAVING
        arm.settle()  # at a free pace, what is on its way still changes weights, and is in what is saved
        told = {"number": number, "step": run.steps, "hash": hash_of(arm.module)}
        diary.say("saving", told)
        try:
            save_checkpoint(start.saves, number, arm, trial.how)
        except (Exception, CheckpointException) as error:  # torch's own is no Exception
            if trial.attack != "disk_full":
                raise
            diary.say("not saved", {"number": number, "error": type(error).__name__, "text": str(error)})
        else:
            diary.say("saved", told)


def hash_of(module: nn.Module) -> str:
    """Return a hash of all weights to the bit."""
    tensors: list[Tensor] = [p.detach().contiguous() for p in module.parameters()]
    return hashlib.sha256(b"".join(bytes(t.view(torch.uint8).numpy()) for t in tensors)).hexdigest()[:16]
