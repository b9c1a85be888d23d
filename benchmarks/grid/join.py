"""Times to a target over those of 16-bit DDP, from lines of step times and of trainings. Pure."""

import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))

from grid.trials import BASE, SEEDS, STEPS

from pliant_bench.harness.metric import METRICS
from pliant_bench.harness.names import warmup_steps_of

Record = dict[str, Any]
METRIC, TARGET = METRICS["images"], 0.85
FIRST = {"post_local_sgd": "allreduce", "onebit_adam": "allreduce", "topk_dgc": "allreduce", "ddp-postlocal": "ddp"}
"""Arms of two stages -> arm that steps as they do in the first. `topk_dgc` sends less and less, so at most that."""
FIRST_STEPS = warmup_steps_of(STEPS)


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Trainings of one arm, by seed."""

    steps: dict[int, float]
    """Seed -> steps to the target, of those that reach it."""
    time_s: dict[int, float]
    """Seed -> seconds to the target, of those trained on a network."""
    final: dict[int, float]
    """Seed -> accuracy at the end."""
    step_s: dict[int, float]
    """Seed -> mean step time, of those trained on a network."""
    base_step_s: dict[int, float]
    """Seed -> step time of 16-bit DDP on the hosts and the machine where it was trained, of those that say it."""

    @property
    def whole(self) -> bool:
        """Whether all seeds are there, and reach the target."""
        return set(self.steps) == set(SEEDS)

    @property
    def mean_steps(self) -> float | None:
        """Mean over seeds; None if a seed is missing or does not get there."""
        return statistics.mean(self.steps.values()) if self.whole else None

    def gap(self, base: "Curve | None") -> float | None:
        """Return the mean over seeds of how many points better than the base it ended; None if seeds are missing."""
        paired = [METRIC.gap(self.final[k], base.final[k]) for k in self.final if base and k in base.final]
        return statistics.mean(paired) if len(paired) == len(SEEDS) else None

    def keeps(self, base: "Curve | None") -> bool:
        """Say whether it ended no worse than the tolerance allows."""
        gap = self.gap(base)
        return gap is not None and gap >= -METRIC.tolerance


@dataclass(frozen=True, kw_only=True)
class Entry:
    """An arm in a cell."""

    cell: str
    arm: str
    step_s: float
    """Median of the turns, or of the trainings in the cell."""
    to_target_s: float | None
    """Mean over seeds; None if a seed is missing or does not get there."""
    gain: float | None
    """Time of 16-bit DDP to the target over this arm's."""
    least: float
    most: float
    """Least and most of the gain over paired seeds and all pairs of turns; 0 where it is not known."""
    keeps: bool


def curves_of(lines: Sequence[Record]) -> dict[str, Curve]:
    """Return arm -> its trainings; those that failed are left out."""
    by_arm: dict[str, list[Record]] = defaultdict(list)
    for line in lines:
        if "curve" in line:
            by_arm[line["arm"]].append(line)
    return {arm: _curve(mine) for arm, mine in by_arm.items()}


def _curve(lines: Sequence[Record]) -> Curve:
    steps = {line["seed"]: METRIC.step_to(TARGET, line["curve"]) for line in lines}
    timed = {
        line["seed"]: [{**point, "step": point["time_s"]} for point in line["curve"]] for line in lines if _timed(line)
    }
    time_s = {seed: METRIC.step_to(TARGET, curve) for seed, curve in timed.items()}
    return Curve(
        steps={seed: step for seed, step in steps.items() if step is not None},
        time_s={seed: at for seed, at in time_s.items() if at is not None},
        final={line["seed"]: line["final_accuracy"] for line in lines},
        step_s={line["seed"]: line["step_s"] for line in lines if _timed(line)},
        base_step_s={line["seed"]: line["base_step_s"] for line in lines if "base_step_s" in line},
    )


def _timed(line: Record) -> bool:
    return "time_s" in line["curve"][0]


def entries(
    steps: Sequence[Record], curves: dict[str, Curve], free: dict[str, dict[str, Curve]]
) -> dict[tuple[str, str], Entry]:
    """Return (cell, arm) -> what came out, of all that have step times, as far as trainings are known.

    Args:
        steps: Lines of `steps.py`.
        curves: Arm -> trainings that do not depend on the network.
        free: Cell -> arm at a free pace -> trainings there.

    """
    turns = {(r["cell"], r["arm"]): r["step_s"] for r in steps if "step_s" in r and r["number"] == 0}
    found: dict[tuple[str, str], Entry] = {}
    base = curves.get(BASE)
    for (cell, arm), step_s in turns.items():
        own = free.get(cell, {}).get(arm) or curves.get(arm)
        own_steps_s = list(own.step_s.values()) if own is not None else []
        times = _times(step_s, own, turns.get((cell, FIRST.get(arm, arm)), []))
        base_turns = turns.get((cell, BASE), [])
        base_times = _times(base_turns, base, base_turns)
        if own is not None and base is not None and base_times:  # machines differ, so each beside its own base
            base_times |= {seed: [at_s * base.steps[seed]] for seed, at_s in own.base_step_s.items()}
        found[cell, arm] = Entry(
            cell=cell,
            arm=arm,
            step_s=statistics.median(own_steps_s or step_s),
            to_target_s=_mean(times) if times else None,
            gain=_mean(base_times) / _mean(times) if times and base_times else None,
            least=min((min(base_times[k]) / max(times[k]) for k in times if k in base_times), default=0.0),
            most=max((max(base_times[k]) / min(times[k]) for k in times if k in base_times), default=0.0),
            keeps=own is not None and own.keeps(base),
        )
    return found


def _times(turns_s: Sequence[float], curve: Curve | None, first_turns_s: Sequence[float]) -> dict[int, list[float]]:
    """Return seed -> times to the target, one for each turn; at a free pace one, with the training's own step time.

    The mean is that of all of the training: ranks that share cores go ahead of each other by turns, so that the last
    one's time at a point says more of the machine than of the network.

    Args:
        turns_s: Step times of the arm.
        curve: Its trainings.
        first_turns_s: Step times of the arm that it is like in its first stage; its own if it has one stage.

    """
    if curve is None or not curve.whole or not turns_s or not first_turns_s:
        return {}
    if curve.step_s:
        return {seed: [step_s * curve.steps[seed]] for seed, step_s in curve.step_s.items()}
    if first_turns_s is turns_s:
        return {seed: [turn_s * steps for turn_s in turns_s] for seed, steps in curve.steps.items()}
    first_s = statistics.median(first_turns_s)
    stages = {seed: (min(steps, FIRST_STEPS), max(steps - FIRST_STEPS, 0.0)) for seed, steps in curve.steps.items()}
    return {seed: [first_s * first + turn_s * rest for turn_s in turns_s] for seed, (first, rest) in stages.items()}


def _mean(times: dict[int, list[float]]) -> float:
    return statistics.mean(statistics.median(each) for each in times.values())
