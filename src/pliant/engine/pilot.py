"""What "auto" does: the first steps of a training find out which plan it goes on with, and later ones watch over it."""

import json
import math
import random
import statistics
import time
from collections.abc import Generator, Sequence
from typing import Protocol, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer

from pliant.comm.base import Comm
from pliant.engine.auto import Auto
from pliant.engine.observe import Observation, observe
from pliant.network.probing import probe, require_gloo, share_text
from pliant.planner import BUILDERS, Found, Gene, Genes, Limits, Quality, Space, Trial, searching
from pliant.planner.predictor import Predictor
from pliant.simulator import Physics
from pliant.spec import SyncPlan, Topology, Workload, from_json, to_json

__all__ = ["Flown", "Pilot", "take_off"]

R = TypeVar("R")
Steps = Generator[None, None, R]
"""Goes on by one `yield` after each optimizer step."""

_EXACT = Genes(Gene("exact", {"bits": 32}))
"""DDP's own exchange, in its own buckets."""
_WATCHED = 5
"""Steps at the beginning whose times are taken, after two that are not."""
_UNCOUNTED = 2
"""Steps after a switch that are not timed: buckets are provisional in the first, and connections wake up."""
_LEAST_BLOCKS, _MOST_BLOCKS, _ENOUGH_S = 3, 16, 0.6
"""A trial is timed in blocks of a whole period: as many as begin within so much time."""
_BATCH, _SAMPLES = 4, 100
_TURNS = 3
_ADOPT_ABOVE = 1.01
_WATCHED_STEPS = 10
_CHANGED = 1.3
"""A window of steps is odd if their median is so many times longer, or shorter, than when the plan was adopted."""
_ODD_WINDOWS = 2
_HOLD_STEPS = 100
"""After a search that kept the plan, nothing is searched for so many steps; twice as many after the next such one."""


class Flown(Protocol):
    """What a pilot needs of a run."""

    plan: SyncPlan
    model: nn.Module
    optimizer: Optimizer

    def switch(self, what: SyncPlan) -> None:
        """Put another plan in force. Collective."""
        ...


class Pilot:
    """Chooses the plan of a run while it trains. All ranks have one; the first decides, and tells the others.

    Args:
        run: Whose plan it is.
        auto: What it may do.
        observation: Of the run's first steps.
        comm: Over a group that nobody else uses.

    """

    def __init__(self, run: Flown, auto: Auto, observation: Observation, comm: Comm) -> None:
        self._run, self._auto, self._observation, self._comm = run, auto, observation, comm
        self.explanation = "auto is still watching the first steps."
        """Which plan was chosen and why, in one paragraph; the same on all ranks."""
        self._flight = self._fly()
        next(self._flight)

    def after_step(self) -> None:
        """Go on; a plan may be switched in it. Collective."""
        next(self._flight)

    def close(self) -> None:
        """Stop, whatever it was about to do."""
        self._flight.close()
        self._observation.close()
        self._comm.close()

    def _fly(self) -> Steps[None]:
        while not self._observation.done:  # its hooks go by themselves
            yield
        workload = self._observation.workload()
        hold_steps = _HOLD_STEPS
        while True:
            before = self._run.plan.hash
            topology = probe(self._comm, budget_s=self._auto.probe_s)
            yield from self._choose(workload, topology)
            hold_steps = 2 * hold_steps if self._run.plan.hash == before else _HOLD_STEPS
            yield from self._cruise(hold_steps)

    # - Choosing

    def _choose(self, workload: Workload, topology: Topology) -> Steps[None]:
        """Try plans, then hold the best against exact training, turn about, and keep the faster one."""
        quality = Quality(budget=self._auto.quality)
        asking = self._search(workload, topology, quality) if self._comm.rank == 0 else None
        asked, found = (next(asking), None) if asking is not None else (None, None)
        while (told := self._tell(asked)) is not None:
            blocks_s, reason = yield from self._try(*told)
            if asking is None or asked is None:
                continue
            status = "failed" if reason else "aborted" if len(blocks_s) == 1 else "ok"
            try:
                asked = asking.send(Trial(genes=asked[0], steps_s=tuple(blocks_s), status=status, reason=reason))
            except StopIteration as end:
                asked, found = None, end.value
        best = found.best if found is not None else _EXACT
        ratio = quality.ratio(best) or 1.0
        best_plan, ratio = self._share(best.plan("auto"), ratio)
        gains = yield from self._compare(best_plan, ratio)
        adopted = min(gains) > 1 and statistics.median(gains) > _ADOPT_ABOVE
        self._run.switch(best_plan if adopted else _EXACT.plan("auto"))
        why = _explanation(workload, topology, best_plan, ratio, gains, adopted=adopted, found=found)
        self.explanation = share_text(why, self._comm)

    def _search(
        self, workload: Workload, topology: Topology, quality: Quality
    ) -> Generator[tuple[Genes, float], Trial, Found]:
        space = Space(workload, topology, quality)
        rng = random.Random(self._auto.seed)  # noqa: S311  not for secrets
        drawn = {f"sample {k}": space.sample(rng) for k in range(_SAMPLES)}
        limits = Limits(
            max_trials=self._auto.max_trials,
            max_seconds=self._auto.max_seconds,
            batch=_BATCH,
            num_candidates=_SAMPLES,
            seeds={"exact": _EXACT, **BUILDERS, **drawn},
            num_seeds=_BATCH,
            seed=self._auto.seed,
        )
        return searching(
            space, Predictor(Physics(workload, topology, slowdown=workload.rank_factors), self._auto.seed), limits
        )

    def _tell(self, asked: tuple[Genes, float] | None) -> tuple[SyncPlan, float] | None:
        """Share what the first rank wants to have tried: a plan, and the step time above which it is given up."""
        text = "" if asked is None else json.dumps([to_json(asked[0].plan()), min(asked[1], 1e9)])
        text = share_text(text, self._comm)
        if not text:
            return None
        plan, limit_s = json.loads(text)
        return from_json(SyncPlan, plan), limit_s

    def _share(self, plan: SyncPlan, ratio: float) -> tuple[SyncPlan, float]:
        text, ratio = json.loads(share_text(json.dumps([to_json(plan), ratio]), self._comm))
        return from_json(SyncPlan, text), ratio

    # - Trying

    def _try(self, plan: SyncPlan, limit_s: float) -> Steps[tuple[list[float], str]]:
        """Train under a plan for a while; return its step times, one a block, or why it cannot be in force."""
        try:
            self._run.switch(plan)
        except ValueError as error:  # on all ranks alike, and nothing has changed
            return [], str(error)
        return (yield from self._timed(plan, limit_s)), ""

    def _timed(self, plan: SyncPlan, limit_s: float = math.inf) -> Steps[list[float]]:
        """Return step times, the means of whole periods, the slowest rank's; only one if it is above the limit."""
        period = max(rule.choice.every for rule in plan.rules)
        for _ in range(_UNCOUNTED):
            yield
        blocks_s = [(yield from self._block(period))]
        if blocks_s[0] > limit_s:
            return blocks_s
        wanted = _ENOUGH_S / (blocks_s[0] * period)
        num_blocks = max(2, math.ceil(_LEAST_BLOCKS / period), min(_MOST_BLOCKS, math.ceil(wanted)))
        for _ in range(num_blocks - 1):
            blocks_s.append((yield from self._block(period)))
        return blocks_s

    def _block(self, num_steps: int) -> Steps[float]:
        """Return the mean time of some steps, the slowest rank's."""
        return self._slowest((yield from _passed(num_steps)) / num_steps)

    def _slowest(self, mine_s: float) -> float:
        shared = torch.tensor([mine_s], dtype=torch.float64)
        self._comm.all_reduce(shared, "max").wait()
        return float(shared)

    def _compare(self, plan: SyncPlan, ratio: float) -> Steps[list[float]]:
        """Return how many times faster a plan is to the same accuracy than exact training, turn by turn."""
        exact = _EXACT.plan("auto")
        gains: list[float] = []
        for _ in range(_TURNS if plan.hash != exact.hash else 0):
            times_s: list[float] = []
            for each in (exact, plan):
                self._run.switch(each)
                times_s.append(statistics.median((yield from self._timed(each))))
            gains.append(times_s[0] / (times_s[1] * ratio))
        return gains or [1.0]

    # - Watching

    def _cruise(self, hold_steps: int) -> Steps[None]:
        """Go on until steps have been longer, or shorter, for a while than they were."""
        while not self._auto.watch:
            yield
        period = max(rule.choice.every for rule in self._run.plan.rules)
        window = math.ceil(_WATCHED_STEPS / period) * period
        for _ in range(_UNCOUNTED):
            yield
        usual_s = yield from self._window(window, period)
        made, odd = window, 0
        while odd < _ODD_WINDOWS or made < hold_steps:
            now_s = yield from self._window(window, period)
            made += window
            odd = odd + 1 if max(now_s / usual_s, usual_s / now_s) > _CHANGED else 0

    def _window(self, num_steps: int, period: int) -> Steps[float]:
        """Return the median over periods of some steps, the slowest rank's."""
        took_s: list[float] = []
        for _ in range(num_steps // period):
            took_s.append((yield from _passed(period)))
        return self._slowest(statistics.median(took_s))


def _passed(num_steps: int) -> Steps[float]:
    """Let some steps be made, and return how long they took this rank."""
    start_s = time.perf_counter()
    for _ in range(num_steps):
        yield
    return time.perf_counter() - start_s


def take_off(run: Flown, auto: Auto, comm: Comm) -> Pilot:
    """Let a run's plan be chosen, and watched over, from here on. Collective.

    Raises:
        ValueError: The comm is not over Gloo, through which links are measured.

    """
    require_gloo(comm)
    own = comm.split([range(comm.size)])
    if own is None:
        raise RuntimeError("a group of all ranks was made without this one.")
    return Pilot(run, auto, observe(run.model, run.optimizer, steps=_WATCHED, gradient_steps=0), own)


def _explanation(
    workload: Workload,
    topology: Topology,
    plan: SyncPlan,
    ratio: float,
    gains: Sequence[float],
    *,
    adopted: bool,
    found: Found | None,
) -> str:
    num_bytes = sum(tensor.numel for tensor in workload.tensors) * 4
    rates = [rate for host in topology.hosts if (rate := min(host.send_bytes_per_s, host.receive_bytes_per_s)) > 0]
    rate = f"{min(rates) * 8e-6:.3g} Mbit/s" if rates and len(topology.hosts) > 1 else "no limit that was found"
    tried = found.trials if found is not None else ()
    compute_s = workload.forward_s + workload.backward_s + workload.step_s
    chosen = plan if adopted else _EXACT.plan("auto")
    verdict = (
        f"it is {statistics.median(gains):.2f} times as fast to the same accuracy as DDP's own exchange in "
        f"{len(gains)} turns ({min(gains):.2f} to {max(gains):.2f}), counting {ratio:.2f} times the steps"
        if adopted
        else f"the best of the others was {statistics.median(gains):.2f} times as fast, which is not enough"
    )
    return (
        f"A step computes for {compute_s:.3g} s and has {num_bytes / 1e6:.3g} MB of gradients; the slowest host of "
        f"{len(topology.hosts)} carries {rate}. Of {len(tried)} plans that were tried "
        f"({sum(t.status == 'ok' for t in tried)} to the end), this one was kept: {verdict}. {chosen}"
    )
