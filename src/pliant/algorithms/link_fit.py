"""Fit of a link's cost while it is used: seconds a message and a byte, by recursive least squares."""

import math
from collections.abc import Sequence

__all__ = ["AlphaBetaFit"]

_MEMORY = 20
"""Samples after which an old one counts for 1/e."""
_RIDGE = 0.1
"""What the estimate before weighs, in samples: those that are alike do not say how to divide a time."""
_LEAST_PART = 0.05
"""A part of the time that was nothing may still become so much of it without being held back."""
_USUAL, _MOST_USUAL = 0.07, 0.15
"""Deviation, as a natural logarithm, that is the least to be reckoned with, and the most that can become usual."""
_ODD = 3.0
"""A sample so many times the usual deviation away is odd: one counts for less, and two in succession are a change."""


class AlphaBetaFit:
    """Fits seconds = alpha * messages + beta * bytes to samples as they come, in relative error.

    Recursive least squares in information form, with forgetting (Plackett, "Some theorems in least squares", 1950):
    with rows x = (messages, bytes) / seconds and a memory of 20 samples, l = 1 - 1/20,

        S <- l S + w x x'      r <- l r + w x      (alpha, beta) = argmin (S + D) - 2 (r + D (alpha, beta)_before), >= 0

    D holds what the samples do not tell apart where it was. w is 1, less for a single odd sample (Huber's weight), and
    after two odd ones on the same side everything before them is forgotten: the link has changed.
    Pure arithmetic: the same samples give the same numbers on every rank.

    With 1 for messages it fits any line with nothing negative in it.
    """

    def __init__(self) -> None:
        self.alpha = self.beta = 0.0
        """Seconds a message, and a byte."""
        self.changes = 0
        """How often the link has changed."""
        self._sums = [0.0] * 5
        """S_11, S_12, S_22, r_1, r_2."""
        self._odd = (0.0, 0.0, 0.0)
        """The last sample if it was odd, as (row, deviation)."""
        self._usual = _USUAL

    def __call__(self, messages: float, num_bytes: float) -> float:
        """Return the seconds that so many messages of so many bytes in all take."""
        return self.alpha * messages + self.beta * num_bytes

    @property
    def doubts(self) -> bool:
        """Whether the last sample was odd: an outlier, or the first after a change."""
        return self._odd[2] != 0

    def add(self, messages: float, num_bytes: float, seconds: float) -> None:
        """Take in what some messages have taken.

        Raises:
            ValueError: A number is not finite or negative, or nothing was sent, or it took no time.

        """
        given = (messages, num_bytes, seconds)
        if not all(map(math.isfinite, given)) or min(given) < 0 or seconds == 0 or messages + num_bytes == 0:
            raise ValueError(
                f"a fit was given {messages} messages with {num_bytes} bytes in {seconds} s, but needs something that "
                "was sent, in a time above 0; leave out steps in which nothing was sent."
            )
        row = (messages / seconds, num_bytes / seconds)
        if not self.alpha and not self.beta:
            self.alpha, self.beta = (0.0, seconds / num_bytes) if num_bytes else (seconds / messages, 0.0)
            self._sums = _add([0.0] * 5, row, 1.0)
            return
        off = -math.log(max(self(*row), 1e-9))
        limit = _ODD * self._usual
        if abs(off) > limit and self._odd[2] * off > 0:
            self._begin_anew(row)
        else:
            weight = min(1.0, limit / abs(off)) if off else 1.0
            kept = [s * (1 - 1 / _MEMORY) for s in self._sums]
            # An odd row is large or small as a whole: at its deviation's size it would count by that again.
            self._sums = _add(kept, row, weight * min(1.0, math.exp(2 * off)))
            self._odd = (*row, off) if weight < 1 else (0.0, 0.0, 0.0)
            self._usual = min(_MOST_USUAL, max(_USUAL, self._usual + (min(abs(off), limit) - self._usual) / _MEMORY))
        self._solve(row)

    def state(self) -> list[float]:
        """Return everything as numbers, for a checkpoint."""
        return [self.alpha, self.beta, float(self.changes), self._usual, *self._odd, *self._sums]

    def load(self, state: Sequence[float]) -> None:
        """Go on from what `state` has returned."""
        self.alpha, self.beta, changes, self._usual = state[:4]
        self.changes, self._odd, self._sums = int(changes), (state[4], state[5], state[6]), list(state[7:12])

    def _begin_anew(self, row: tuple[float, float]) -> None:
        """Forget all but the last two samples. What changes is mostly the rate: beta first takes all of it."""
        pair = (self._odd[:2], row)
        self._sums = _add(_add([0.0] * 5, pair[0], 1.0), row, 1.0)
        self._odd, self._usual, self.changes = (0.0, 0.0, 0.0), _USUAL, self.changes + 1
        betas = [(1 - self.alpha * x) / y for x, y in pair if y]
        if betas and min(betas) > 0:
            self.beta = sum(betas) / len(betas)
        else:  # messages alone would take longer than all did
            factor = 2 / sum(self(*each) for each in pair)
            self.alpha, self.beta = self.alpha * factor, self.beta * factor

    def _solve(self, row: tuple[float, float]) -> None:
        before = (self.alpha, self.beta)
        d1, d2 = (_RIDGE / max(t, _LEAST_PART / x if x else 1.0) ** 2 for t, x in zip(before, row, strict=True))
        s11, s12, s22, r1, r2 = self._sums
        a, b, c = s11 + d1, s12, s22 + d2
        p, q = r1 + d1 * before[0], r2 + d2 * before[1]
        det = a * c - b * b
        if det <= 1e-9 * a * c:  # rounding would be all there is
            return
        alpha, beta = (p * c - q * b) / det, (q * a - p * b) / det
        if alpha < 0:
            alpha, beta = 0.0, q / c
        elif beta < 0:
            alpha, beta = p / a, 0.0
        self.alpha, self.beta = alpha, beta


def _add(sums: Sequence[float], row: Sequence[float], weight: float) -> list[float]:
    x, y = row[0], row[1]
    return [s + weight * v for s, v in zip(sums, (x * x, x * y, y * y, x, y), strict=True)]
