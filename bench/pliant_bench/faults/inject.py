"""Carries points out: starts ranks, strikes one at its moment, lets it back, and waits, but never for ever."""

import multiprocessing
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from pliant.network.local_hosts import reserve_port
from pliant_bench.data.images import load_images
from pliant_bench.faults.outcome import describe
from pliant_bench.faults.points import Point, is_elastic
from pliant_bench.faults.processes import Processes
from pliant_bench.faults.rank import IMAGES_FILE, Start, run_rank
from pliant_bench.harness.setup import Setup

__all__ = ["DEADLINE_S", "Ranks", "inject_all"]

DEADLINE_S = 60.0
"""From the start of a training, or from the loss: whoever has not ended then hangs."""
_POLL_S = 0.005
_SEED = 0
_SIGNALS = {"KILL": signal.SIGKILL, "STOP": signal.SIGSTOP}

Record = dict[str, Any]


def inject_all(
    setup: Setup, size: int, points: Sequence[Point], before: Sequence[Record], keep: Callable[[Record], None]
) -> None:
    """Carry the points out one after the other; each arm that goes on is first trained undisturbed, once.

    Ranks are forked from a server that has imported everything, so that a point takes seconds.
    """
    context = multiprocessing.get_context("forkserver")
    # torch.optim's first step imports the compiler, which takes longer than many a training here.
    context.set_forkserver_preload(["torch._dynamo", "pliant_bench.faults.rank"])
    undisturbed = {r["arm"] for r in before if r["kind"] == "undisturbed"}
    with tempfile.TemporaryDirectory() as data:
        torch.save(vars(load_images(Path(setup.data))), Path(data) / IMAGES_FILE)
        for point in points:
            if is_elastic(point.arm) and point.arm not in undisturbed:
                undisturbed.add(point.arm)
                keep(_train(Ranks(context.Process, setup, size, point, data), size, point.arm))
            keep(_inject(Ranks(context.Process, setup, size, point, data), size, point))


class Ranks(Processes):
    """The processes of one training, and the store they meet in. Used with `with`, after which none is left."""

    def __init__(self, process: Callable[..., BaseProcess], setup: Setup, size: int, point: Point, data: str) -> None:
        super().__init__(process)
        self._setup, self._size, self._point, self._data = setup, size, point, data
        self._store: TCPStore | None = None
        if point.rank_hosts_store:
            self._port = int(self.held.enter_context(reserve_port()).getsockname()[1])
        else:
            self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
            self._port = self._store.port

    def start(self, rank: int) -> None:
        """Start a rank, for the first time or again."""
        told = Start(
            rank=rank,
            size=self._size,
            port=self._port,
            rank_hosts_store=self._point.rank_hosts_store,
            arm=self._point.arm,
            elastic=is_elastic(self._point.arm),
            steps=self._setup.train_steps,
            batch=self._setup.batch,
            bucket_mb=self._setup.bucket_mb,
            seed=_SEED,
            data=self._data,
            folder=str(self.folder),
        )
        self.launch(rank, run_rank, told)

    def __enter__(self) -> "Ranks":
        for rank in range(self._size):
            self.start(rank)
        return self


def _train(ranks: Ranks, size: int, arm: str) -> Record:
    """Train without a loss, for what a training with one is held against."""
    with ranks:
        exits = ranks.wait(range(size), DEADLINE_S)
        diaries = {rank: ranks.diary(rank) for rank in range(size)}
        stacks = ranks.stacks([rank for rank, code in exits.items() if code is None])
    found = describe(diaries, exits, victim=-1, struck_s=time.monotonic(), back_s=None)
    return {"kind": "undisturbed", "arm": arm, **found, "stacks": stacks}


def _inject(ranks: Ranks, size: int, point: Point) -> Record:
    """Carry one point out."""
    with ranks:
        struck_s = back_s = None
        if _await_moment(ranks, size, point):
            struck_s = time.monotonic()
            ranks.signal(point.victim, _SIGNALS[point.signal])
            back_s = _let_back(ranks, point)
        to_end = [r for r in range(size) if r != point.victim or point.back_s]
        exits = ranks.wait(to_end, DEADLINE_S)
        diaries = {rank: ranks.diary(rank) for rank in range(size)}
        stacks = ranks.stacks([rank for rank, code in exits.items() if code is None])
    found = describe(diaries, exits, point.victim, struck_s or time.monotonic(), back_s)
    if struck_s is None:
        found["outcome"] = "not struck"  # somebody ended, or all hung, before the moment came
    return {"kind": "kill", **asdict(point), **found, "stacks": stacks}


def _await_moment(ranks: Ranks, size: int, point: Point) -> bool:
    """Wait until the victim is so far, and then for a part of a step; return whether it came to that."""
    whole, part = divmod(point.moment, 1.0)
    deadline_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline_s:
        made_s = [line["at_s"] for line in ranks.diary(point.victim) if line["kind"] in ("begun", "step")]
        if len(made_s) > whole:  # the first says that the run has begun
            time.sleep(part * min(1.0, (made_s[-1] - made_s[0]) / max(len(made_s) - 1, 1)))
            return True
        if any(code is not None for code in ranks.wait(range(size), 0.0).values()):
            return False
        time.sleep(_POLL_S)
    return False


def _let_back(ranks: Ranks, point: Point) -> float | None:
    """Start a killed victim again after its pause, or let a stopped one go on; return when, or None for never."""
    if not point.back_s:
        return None
    time.sleep(point.back_s)
    if point.signal == "STOP":
        ranks.signal(point.victim, signal.SIGCONT)
    else:
        ranks.wait([point.victim], DEADLINE_S)  # reaped: a rank is one process
        ranks.start(point.victim)
    return time.monotonic()
