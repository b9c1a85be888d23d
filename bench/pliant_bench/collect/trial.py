"""One plan on one network: put it in force in place, warm up, time steps until they are known well enough."""

import itertools
import math
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

import pliant
from pliant.planner import BASELINES
from pliant.spec import SyncPlan
from pliant_bench.collect.job import CONTROL, Job, WorkloadCell
from pliant_bench.collect.replay import Replay
from pliant_bench.harness.exchange_period import ExchangePeriod, period_of, steps_of_a_turn, uncounted_steps
from pliant_bench.harness.wire import busiest, interface_bytes

__all__ = ["ReplayedModel", "is_precise", "run_trial"]

_WARM_UP_STEPS = 2
"""DDP lays out its buckets in the first step and again in the second."""
_ALONE_STEPS = 5
_PRECISE = 0.02
_LEAST_SAMPLES = 6
_LONGEST_CYCLE = 32
"""Steps; of exchanges that repeat later, only those of one period are measured together."""
_REASON_BYTES = 600
_COUNTED = ("sent_bytes", "received_bytes", "exposed_s", "exchange_s", "codec_s")


class ReplayedModel:
    """A replayed model in DDP whose plan is switched from trial to trial. Collective.

    Args:
        place: The workload and its cell.
        job: How many ranks a host has, and how long a collective may take.

    """

    def __init__(self, place: WorkloadCell, job: Job) -> None:
        size, rank, per_host = dist.get_world_size(), dist.get_rank(), job.ranks_per_host
        self._replay = Replay(place.workload, seed=job.seed, rank=rank)
        share = place.cell.slow_share
        self._slowdown = 1 / share if share and rank >= size - per_host else 1.0
        self._optimizer = SGD(self._replay.parameters(), lr=1e-3, momentum=0.9)
        self._model: torch.nn.Module = self._replay
        self.pace()
        self.compute_s = self._alone_s()
        """Step time without communication, of the slowest rank."""
        ddp = DistributedDataParallel(self._replay, gradient_as_bucket_view=True)
        self._model = ddp
        # Comparing the replicas every 100 steps would fall on some trials and not on others.
        self.run = pliant.relax(
            ddp,
            self._optimizer,
            BASELINES[CONTROL].plan(),
            hosts=[list(range(first, first + per_host)) for first in range(0, size, per_host)],
            timeout_s=job.timeout_s / 3,
            agreement_every=0,
        )

    def pace(self, *, waiting: bool = True) -> None:
        """Let steps take the workload's times, or as little as they can."""
        self._replay.slowdown = self._slowdown if waiting else 0.0

    def step(self) -> None:
        """Make a training step."""
        self._optimizer.zero_grad()
        self._model().backward()
        self._optimizer.step()

    def abandon(self) -> None:
        """Remove what a failed trial has left, without asking the other ranks."""
        self.run.__exit__(RuntimeError, RuntimeError("a trial has failed"), None)

    def _alone_s(self) -> float:
        dist.barrier()
        took_s: list[float] = []
        for _ in range(_ALONE_STEPS):
            start_s = time.perf_counter()
            self.step()
            took_s.append(time.perf_counter() - start_s)
        return busiest([statistics.median(took_s)])[0]


def run_trial(model: ReplayedModel, plan: SyncPlan, seconds: float, *, wire: bool, cycle: int = 1) -> dict[str, Any]:
    """Run a plan, and return what came out, the same on all ranks. What any of them raises becomes the reason.

    Collective, and over within the timeouts of the subject's and the default group's collectives.

    Args:
        model: Subject of the trial.
        plan: Plan to put in force.
        seconds: No further turn begins after so many.
        wire: Whether this host has an interface whose bytes are counted.
        cycle: Steps after which the plan's exchanges repeat, as a simulation tells it: partners of a gossip may be
            others in each. They are measured together, unless they are too many.

    """
    reason, found = "", {}
    try:
        found = _time_steps(model, plan, seconds, wire=wire, cycle=cycle)
    except Exception as error:  # noqa: BLE001  a plan that fails is a result; the others are still to be run
        reason = f"{type(error).__name__}: {error}"
    if whole := _first_reason(reason):
        return {"status": "failed", "reason": whole}
    return {"status": "ok", "reason": "", **found}


def _time_steps(model: ReplayedModel, plan: SyncPlan, seconds: float, *, wire: bool, cycle: int) -> dict[str, Any]:
    knows_peak = _forget_peak()
    began_s = time.perf_counter()
    model.run.switch(plan)
    switch_s = time.perf_counter() - began_s
    period = period_of([rule.exchange for rule in plan.rules])
    model.pace(waiting=False)
    for _ in range(max(_WARM_UP_STEPS, period.period + period.delay_steps) if period.period > 1 else _WARM_UP_STEPS):
        model.step()
        period.steps_made += 1
    model.pace()
    if cycle <= _LONGEST_CYCLE:
        period.period = math.lcm(period.period, cycle)
    samples: list[list[float]] = []
    counted = [0.0] * (len(_COUNTED) + 1)
    num_steps = 0
    while True:
        turn, took, elapsed_s = _turn(model, period, began_s, seconds)
        num_steps += turn.shape[1] * period.period
        samples += [[float(c.mean()), float(c.max()), float(c[0])] for c in turn.T]
        counted = [a + b for a, b in zip(counted, took, strict=True)]
        if elapsed_s > seconds or is_precise([mean for mean, _, _ in samples]):
            break
    figures = [*(c / num_steps for c in counted), switch_s, elapsed_s, float(_peak_bytes()) if knows_peak else math.inf]
    *per_step, wire_bytes, switch_s, took_s, peak_bytes = busiest(figures)
    return {
        "samples": samples,
        "num_steps": num_steps,
        "period": period.period,
        **dict(zip(_COUNTED, per_step, strict=True)),
        "wire_bytes": wire_bytes if wire else None,
        "switch_s": switch_s,
        "took_s": took_s,
        "peak_bytes": peak_bytes if math.isfinite(peak_bytes) else None,
    }


def _turn(
    model: ReplayedModel, period: ExchangePeriod, began_s: float, seconds: float
) -> tuple[Tensor, list[float], float]:
    """Take whole periods. Collective.

    As in the cells of `pliant bench`: no rank waits for the others between the end of a step that is not counted and
    the end of its last. So as much is in flight at the start as at the end.

    Returns:
        Times per step of each rank in each period, (size, num_periods); what this rank counted; seconds since began_s.

    """
    dist.barrier()
    start_s = 0.0
    for _ in range(uncounted_steps(period)):
        start_s = time.perf_counter()
        model.step()
        period.steps_made += 1
    # Where the network is asked every so many steps only, this one says little, but then a period is what is taken.
    (step_s,) = busiest([time.perf_counter() - start_s])
    # One period is all that a plan gets whose single step takes longer than a trial should.
    num_steps = steps_of_a_turn(period, step_s) if step_s < seconds else period.period
    before = _counters(model)
    stamps_s = [time.perf_counter()]
    for k in range(1, num_steps + 1):
        model.step()
        if k % period.period == 0:
            stamps_s.append(time.perf_counter())
    took = [b - a for a, b in zip(before, _counters(model), strict=True)]
    period.steps_made += num_steps
    table = torch.zeros(dist.get_world_size(), len(stamps_s), dtype=torch.float64)
    own_s = [(b - a) / period.period for a, b in itertools.pairwise(stamps_s)]
    table[dist.get_rank()] = torch.tensor([*own_s, time.perf_counter() - began_s], dtype=torch.float64)
    dist.all_reduce(table)
    return table[:, :-1], took, float(table[:, -1].max())


def is_precise(samples_s: Sequence[float]) -> bool:
    """Say whether the 95 % interval of the samples' median is within 2 % of it.

    Its half-width is 1.96 sqrt(pi / 2) sigma / sqrt(n), with sigma from the median distance from the median, as of
    normal errors.
    """
    num = len(samples_s)
    if num < _LEAST_SAMPLES:
        return False
    middle = statistics.median(samples_s)
    sigma = 1.4826 * statistics.median(abs(s - middle) for s in samples_s)
    return 1.96 * math.sqrt(math.pi / 2) * sigma / math.sqrt(num) < _PRECISE * middle


def _counters(model: ReplayedModel) -> list[float]:
    stats = model.run.stats()
    return [*(float(stats[name]) for name in _COUNTED), float(interface_bytes())]


def _first_reason(mine: str) -> str:
    """Return one rank's reason, with its number; empty if no rank has any. Collective.

    Where a rank fails alone, the others only see that it does not answer, so their CommErrors come last.
    """
    raw = mine.encode()[:_REASON_BYTES]
    table = torch.zeros(dist.get_world_size(), _REASON_BYTES, dtype=torch.uint8)
    table[dist.get_rank(), : len(raw)] = torch.tensor(list(raw), dtype=torch.uint8)
    dist.all_reduce(table)
    texts = [bytes(row).rstrip(b"\0").decode(errors="ignore") for row in table.tolist()]
    reasons = sorted((text.startswith("CommError"), rank, text) for rank, text in enumerate(texts) if text)
    return f"rank {reasons[0][1]}: {reasons[0][2]}" if reasons else ""


def _forget_peak() -> bool:
    """Let the kernel count this process's peak of memory from now on; say whether it may be asked to."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:  # some containers forbid it
        return False
    return True


def _peak_bytes() -> int:
    line = next(text for text in Path("/proc/self/status").read_text().splitlines() if text.startswith("VmHWM"))
    return int(line.split()[1]) << 10
