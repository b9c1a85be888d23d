"""Control of the ratio that is sent, so that a target is held on a network that changes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pliant.algorithms.link_fit import AlphaBetaFit
from pliant.spec.target import Target

__all__ = ["ControlSample", "RatioPolicy", "SelectionIntervalPolicy"]

_RATE_LIMIT = 1.25
"""A ratio grows by at most this factor a step; it falls as fast as it must."""
_PROPORTIONAL, _INTEGRAL = 0.25, 0.5
"""Gains of the two corrections, for each decision."""
_JUMP = 0.3
"""A correction by more than this part of the target, twice on the same side, is a change and taken whole."""
_LEAST_S = 1e-9
"""What clocks can tell from nothing."""
_SETTLED = 0.1
"""Relative: where bounds are as close as this, so is what is held."""
_NOWHERE = (0.0, 0.0)
_DEAD = 0.03
"""Nothing is changed for less than this part of the target: each ratio has buffers of its own."""
_LOSS_BOUND = 2.0
"""The part that is left behind may grow to so many times what it is at the plan's own ratio."""
_MOST_REUSE = 32
_NEAR, _FAR = 0.1, 0.2
"""Logarithms of ratios that count as the plan's own, and as far enough from it to tell a slope."""


@dataclass(frozen=True, kw_only=True)
class ControlSample:
    """Medians of the steps since the last decision, the same numbers on all ranks."""

    steps: int
    """How many they were."""
    ratio: float
    """That was used; other than what was decided where a ramp or a relief had its way."""
    messages: float
    num_bytes: float
    """Out of the rank that sends most, a step."""
    wire_s: float
    """Waiting for the network, of the rank that waits least: the others waited for a rank too."""
    exposed_s: float
    """Time of a step in which backward was done and the exchange was not, likewise."""
    step_s: float
    left: float = 0.0
    """Part of the squared norm of what could have been sent that was not; 0 if nobody knows."""
    select_s: float = 0.0
    """Choosing what is sent, encoding and decoding."""


class RatioPolicy:
    """Sets the ratio of a sparsifier such that a target is held.

    The link's cost is fitted as it goes, so that the budget of a step, in bytes, follows (TASC's dynamic ratio):

        C = (T + offset + K_p (T - exposed) - messages * alpha) / beta
        offset <- offset + K_i (alpha * messages + beta * bytes - exposed - offset)

    The proportional error counts for 30 % of the target at most: a link that has become ten times slower is for the
    fit to say. offset is the integral part: time that is hidden behind backward, less what codecs take. It estimates
    something that is there, whatever was decided, and so does not wind up while the ratio is at a limit. A second
    line, bytes = fixed + slope * ratio, turns C into a ratio. The ratio grows by 25 % a step at most, stays between
    floor and ceiling, and above the knee: where the part left behind, R(ratio) = R_0 (ratio / ratio_0)^s with s as
    observed, is twice that at the plan's own ratio_0. Targets in bytes need no link: C is the target.

    Where the line does not hold, because the first bytes are free, as out of a shaper's bucket, C is sought between
    the last numbers of bytes that were too few and too many.

    The same numbers go in on all ranks, so the same ratio comes out.

    Args:
        target: What to hold.
        ratio: The plan's own, with which training begins.

    """

    def __init__(self, target: Target, ratio: float) -> None:
        self.target = target
        self.ratio = ratio
        """The one to use."""
        self.bound = ""
        """What has kept the last decision from the target: 'floor', 'ceiling', 'knee' or 'slew'; empty if nothing."""
        self.link = AlphaBetaFit()
        self.load = AlphaBetaFit()
        """Bytes of a step: so many in any case, and so many for a ratio of 1."""
        self._plan_ratio = ratio
        self._offset_s = 0.0
        self._innovation_s = 0.0
        self._low = self._high = _NOWHERE
        """The last too few bytes, and the last too many, with what was exposed then."""
        self._was_below = False
        self._left, self._slope = 0.0, 0.0

    @property
    def loss_bound(self) -> float:
        """The ratio below which twice as much would be left behind as at the plan's own; 0 as long as none shows."""
        return self._plan_ratio * _LOSS_BOUND ** (1 / self._slope) if self._slope < 0 else 0.0

    def decide(self, seen: ControlSample) -> float:
        """Return the ratio for the next steps. Steps in which nothing was sent change nothing."""
        in_bytes = self.target.of in ("bytes_per_step", "bytes_per_s")
        if seen.num_bytes < 1 or (seen.wire_s < _LEAST_S and not in_bytes):
            return self.ratio
        if seen.wire_s >= _LEAST_S:  # on CUDA the host waits for nothing
            self.link.add(seen.messages, seen.num_bytes, seen.wire_s)
        self.load.add(1.0, seen.ratio, seen.num_bytes)
        self._learn_loss_bound(seen)
        wanted = self._ratio_for_bytes(seen) if in_bytes else self._ratio_for_time(seen)
        if wanted is not None:
            self._set((wanted - self.load.alpha) / self.load.beta if self.load.beta else self.target.ceiling, seen)
        return self.ratio

    def target_s(self, seen: ControlSample) -> float:
        """Return how many seconds of a step may be exposed, where that is what is held."""
        if self.target.of == "exposed_s":
            return self.target.value
        return self.target.value * max(seen.step_s - seen.exposed_s, 0.0)

    def state(self) -> list[float]:
        """Return everything as numbers, for a checkpoint."""
        own = [self.ratio, self._offset_s, self._innovation_s, self._left, self._slope]
        own += [*self._low, *self._high, float(self._was_below)]
        return [*own, *self.link.state(), *self.load.state()]

    def restore(self, state: Sequence[float]) -> None:
        """Go on from what `state` has returned."""
        self.ratio, self._offset_s, self._innovation_s, self._left, self._slope = state[:5]
        self._low, self._high, self._was_below = (state[5], state[6]), (state[7], state[8]), bool(state[9])
        middle = 10 + (len(state) - 10) // 2
        self.link.load(state[10:middle])
        self.load.load(state[middle:])

    def _ratio_for_bytes(self, seen: ControlSample) -> float | None:
        """Return the budget of a step, or None if what there is comes close enough."""
        wanted = self.target.value * (seen.step_s if self.target.of == "bytes_per_s" else 1.0)
        return wanted if abs(wanted - self.load(1.0, self.ratio)) > _DEAD * wanted else None

    def _ratio_for_time(self, seen: ControlSample) -> float | None:
        """Return the same where it is a time that is held."""
        target_s = self.target_s(seen)
        error_s = max(-_JUMP * target_s, min(_JUMP * target_s, target_s - seen.exposed_s))
        self._learn_offset(seen, target_s)
        wire_s = target_s + self._offset_s + _PROPORTIONAL * error_s
        self._narrow_bracket(seen, target_s)
        settled = abs(wire_s - self.link(seen.messages, self.load(1.0, self.ratio))) <= _DEAD * target_s
        off = abs(seen.exposed_s - target_s) > _SETTLED * target_s
        if settled and not off:
            return None
        wanted = (wire_s - seen.messages * self.link.alpha) / self.link.beta if self.link.beta else math.inf
        # Through what was just seen, and nothing: it goes the right way, whatever the fit believes.
        by_itself = seen.num_bytes * max(0.0, 1 + (target_s - seen.exposed_s) / seen.wire_s)
        if off and (by_itself - seen.num_bytes) * (wanted - seen.num_bytes) <= 0:
            wanted = by_itself
        (low, low_s), (high, high_s) = self._low, self._high
        if low and high and not low < wanted < high:
            wanted = low + (high - low) * (target_s - low_s) / (high_s - low_s)
        return wanted

    def _narrow_bracket(self, seen: ControlSample, target_s: float) -> None:
        """Note between which numbers of bytes the target lies: regula falsi, as in the Illinois algorithm."""
        here, below = (seen.num_bytes, seen.exposed_s), seen.exposed_s <= target_s
        off = abs(seen.exposed_s - target_s) > _SETTLED * target_s
        if off and self._low[0] and self._high[0] < (1 + _SETTLED) * self._low[0]:
            self._low = self._high = _NOWHERE  # it should be there by now: something has changed
        if below:
            self._high = (
                self._pull(self._high, target_s, twice=self._was_below) if self._high[0] > here[0] else _NOWHERE
            )
            self._low = here
        else:
            self._low = (
                self._pull(self._low, target_s, twice=not self._was_below) if self._low[0] < here[0] else _NOWHERE
            )
            self._high = here
        self._was_below = below

    @staticmethod
    def _pull(end: tuple[float, float], target_s: float, *, twice: bool) -> tuple[float, float]:
        """Return the end that stays, which counts for half as far away where the other has moved twice on end."""
        return (end[0], (end[1] + target_s) / 2) if twice and end[0] else end

    def _learn_offset(self, seen: ControlSample, target_s: float) -> None:
        # Where the fit does not believe a sample yet, the offset must not take a slower link for more codec time.
        wire_s = seen.wire_s if self.link.doubts else self.link(seen.messages, seen.num_bytes)
        innovation_s = wire_s - seen.exposed_s - self._offset_s
        jumps = abs(innovation_s) > _JUMP * target_s and innovation_s * self._innovation_s > 0
        self._innovation_s = innovation_s if abs(innovation_s) > _JUMP * target_s else 0.0
        self._offset_s += innovation_s * (1.0 if jumps else _INTEGRAL)

    def _learn_loss_bound(self, seen: ControlSample) -> None:
        if seen.left <= 0:
            return
        away = math.log(seen.ratio / self._plan_ratio)
        if abs(away) <= _NEAR or not self._left:
            self._left += (seen.left - self._left) * (_INTEGRAL if self._left else 1.0)
        elif abs(away) >= _FAR:
            slope = min(0.0, math.log(seen.left / self._left) / away)
            self._slope += (slope - self._slope) * (_INTEGRAL if self._slope else 1.0)

    def _set(self, ratio: float, seen: ControlSample) -> None:
        self.bound = ""
        limits = (
            ("knee", self.loss_bound, max),
            ("floor", self.target.floor, max),
            ("ceiling", self.target.ceiling, min),
            ("slew", self.ratio * _RATE_LIMIT**seen.steps, min),
        )
        for name, limit, nearer in limits:
            within = nearer(ratio, limit)
            if within != ratio:
                self.bound, ratio = name, within
        self.ratio = ratio


class SelectionIntervalPolicy:
    """Lets what a selection has found out serve longer where choosing takes too much of a step.

    `reuse` is a power of two. Over the limit in two decisions on end it doubles; below a third of it in four it halves,
    so that a doubling, which at best halves the cost, cannot undo itself. How often the curvature is looked at follows
    a limit of its own: `pliant.curvature.Refresh`.

    Args:
        limit: Share of a step that choosing may take.

    """

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self.reuse = 1
        self._over = self._under = 0

    def decide(self, seen: ControlSample) -> int:
        """Return how many times longer than planned it serves in the next steps."""
        share = seen.select_s / seen.step_s if seen.step_s > 0 else 0.0
        self._over = self._over + 1 if share > self._limit else 0
        self._under = self._under + 1 if share < self._limit / 3 else 0
        if self._over >= 2:
            self.reuse, self._over = min(2 * self.reuse, _MOST_REUSE), 0
        elif self._under >= 4:
            self.reuse, self._under = max(self.reuse // 2, 1), 0
        return self.reuse

    def state(self) -> list[float]:
        """Return everything as numbers, for a checkpoint."""
        return [float(self.reuse), float(self._over), float(self._under)]

    def restore(self, state: Sequence[float]) -> None:
        """Go on from what `state` has returned."""
        self.reuse, self._over, self._under = map(int, state)
