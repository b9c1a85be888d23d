"""One parameter of more than 2^31 elements: a training of two steps whose result is known to the bit."""

import os
import sys
import time
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import pliant
from chaos.judge import Record
from chaos.trials import Trial
from chaos.world import World
from pliant_bench.faults.diary_writer import DiaryWriter
from pliant_bench.faults.processes import end_with_job

__all__ = ["COLUMNS", "LIMIT_S", "ROWS", "LargeStart", "large_trial", "train_large"]

ROWS, COLUMNS = 65_537, 32_771
"""2,147,713,027 elements: 2^31 and some, in rows of a length that is no power of two."""
LIMIT_S = 900.0
_BYTES_A_RANK = 4.6
"""An element's weight and gradient in bfloat16, which is DDP's bucket as well, and somewhat more."""
_STEPS = 2


@dataclass(frozen=True, kw_only=True)
class LargeStart:
    """What a rank is told."""

    rank: int
    ranks: int
    port: int
    folder: str
    algorithm: str
    rows: int
    columns: int


class _Large(nn.Module):
    """Each column's sum times a number of its own: the gradient of a row is those numbers, and takes no memory."""

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        # The first backward holds the gradient twice, while it goes into DDP's bucket; zeros of NumPy's take no memory
        # before they are written, at the first step.
        zeros = torch.from_numpy(np.zeros((rows, columns), np.int16))
        self.weight = nn.Parameter(zeros.view(torch.bfloat16))

    def forward(self, numbers: Tensor) -> Tensor:
        return (self.weight.sum(0) * numbers).sum()


def train_large(start: LargeStart) -> None:
    """Train as a rank, and say how many elements are not what they must be."""
    end_with_job()
    diary = DiaryWriter(Path(start.folder) / f"{start.rank}.jsonl")
    os.dup2(os.open(Path(start.folder) / f"{start.rank}.err", os.O_WRONLY | os.O_CREAT), 2)
    os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(start.port), "GLOO_SOCKET_IFNAME": "lo"})
    os.environ.update({"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"})
    os.environ.update({"RANK": str(start.rank), "WORLD_SIZE": str(start.ranks)})
    torch.set_num_threads(1)
    try:
        diary.say("ended", {"wrong": _train(start)})
    except Exception as error:  # noqa: BLE001  whatever it is, it is what this rank ends with
        diary.say("failed", {"error": type(error).__name__, "text": str(error)})
        sys.exit(1)


def _train(start: LargeStart) -> int:
    dist.init_process_group("gloo", timeout=timedelta(seconds=LIMIT_S))
    # No sync of weights, which would write them, and no second bucket, which DDP makes where all parameters are used.
    model = DistributedDataParallel(
        _Large(start.rows, start.columns),
        gradient_as_bucket_view=True,
        init_sync=False,
        find_unused_parameters=True,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, foreach=False)
    numbers = torch.arange(start.columns).remainder(31).to(torch.bfloat16)
    with pliant.relax(model, optimizer, start.algorithm, timeout_s=LIMIT_S, agreement_every=1):
        for _ in range(_STEPS):
            optimizer.zero_grad(set_to_none=False)
            # The mean of 2, 4, .. over ranks: all results are small whole numbers, which bfloat16 holds exactly.
            model(numbers * (2 * (start.rank + 1))).backward()
            optimizer.step()
    expected = -_STEPS * numbers * (start.ranks + 1)
    return sum(int((row != expected).sum()) for row in model.module.weight.detach())


def large_trial(seed: int, ranks: int = 2, algorithm: str = "allreduce", rows: int = ROWS) -> Record:
    """Carry it out, and return its line.

    Raises:
        SystemExit: There is too little memory for it now.

    """
    needed = int(ranks * rows * COLUMNS * _BYTES_A_RANK)
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if available < needed:
        sys.exit(f"{ranks} ranks need {needed / 2**30:.1f} GiB, but {available / 2**30:.1f} are free; give --ranks 1.")
    trial = Trial(
        seed=seed,
        number=-ranks,
        attack="large",
        algorithm=algorithm,
        elastic=False,
        ranks=ranks,
        where="loopback",
        rank_hosts_store=False,
        victims=(),
        moment=0,
        part=0.0,
    )
    start_s = time.monotonic()
    with World(trial, None, None, Path(), 1.0) as world:
        port = world.meet()
        told = LargeStart(
            rank=0, ranks=ranks, port=port, folder=str(world.folder), algorithm=algorithm, rows=rows, columns=COLUMNS
        )
        for rank in range(ranks):
            world.launch(rank, train_large, replace(told, rank=rank))
        exits = world.wait(range(ranks), LIMIT_S)
        last = {rank: (world.diary(rank) or [{"kind": "nothing"}])[-1] for rank in range(ranks)}
    wrong = {rank: line.get("wrong") for rank, line in last.items()}
    outcome = "went on right" if all(n == 0 for n in wrong.values()) else "silent difference"
    if any(exits.values()):
        outcome = "error"
    if None in exits.values():
        outcome = "hang"
    return {
        **asdict(trial),
        "outcome": outcome,
        "why": "" if outcome == "went on right" else f"exit codes {exits}, wrong elements {wrong}",
        "answer_s": round(time.monotonic() - start_s, 2),
        "sentences": {str(r): f"{x['error']}: {x['text']}" for r, x in last.items() if x["kind"] == "failed"},
        "regrouped": {},
        "checkpoint_not_saved": [],
        "stacks": {},
        "slack": 1.0,
        "trial_s": round(time.monotonic() - start_s, 2),
    }
