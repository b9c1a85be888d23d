"""Curve of a training: how good the model is after so many steps, and what it has cost until then."""

from dataclasses import dataclass, field, replace

from torch import Tensor

from pliant_bench.harness.arms import Arm, mean_states
from pliant_bench.harness.emit import emit
from pliant_bench.harness.learners import TrainedLearner
from pliant_bench.harness.wire import busiest, interface_bytes

__all__ = ["Curve"]

_TOGETHER = 8
"""Points that ranks judge in one meeting, since each takes round trips, and memory for as many means."""


@dataclass(frozen=True, kw_only=True)
class _Note:
    """Facts that one rank knows at a point."""

    step: int
    train_s: float
    wire_bytes: float
    loss: float
    state: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    """Weights and buffers, a copy of its own or the mean of all; empty where they are judged at once."""


class Curve:
    """Points of one training.

    Where ranks keep pace, each point is judged when it is reached. At a free pace that would let ranks wait for each
    other, and every exchange end for nothing. There a rank only copies its weights, and the means of these copies are
    judged when the training is over.

    Args:
        arm: What is trained.
        seed: Of the training.
        learner: Which judges it.
        total: Steps of the whole training.
        max_s: Training time after which the next point is the last; 0: no limit.

    """

    def __init__(self, arm: Arm, seed: int, learner: TrainedLearner, total: int, max_s: float) -> None:
        self._arm, self._seed, self._learner, self._total, self._max_s = arm, seed, learner, total, max_s
        self.points: list[dict[str, float]] = []
        self._notes: list[_Note] = []
        self._evaluation_sent = self._sent_by_evaluation()
        self._num_evaluations = 1  # the one above
        self._other_bytes = interface_bytes()  # of the start and of evaluations

    @property
    def evaluation_sent(self) -> float:
        """Bytes that evaluations have made this rank's run send."""
        return self._evaluation_sent * self._num_evaluations

    def reach(self, step: int, train_s: float, loss: float) -> bool:
        """Note a point, and say whether it is the last one. Collective where ranks keep pace.

        Args:
            step: Steps until it, in those of the whole training.
            train_s: Training time of this rank until it, seconds.
            loss: Mean loss of this rank's batches since the point before.

        """
        now_bytes = interface_bytes()
        wire_bytes = now_bytes - self._other_bytes
        if not self._arm.free:
            train_s, wire_bytes = busiest([train_s, wire_bytes])
        last = step == self._total or (self._max_s > 0 and train_s >= self._max_s)
        state = self._arm.copied_state() if self._arm.free and not last else {}
        note = _Note(step=step, train_s=train_s, wire_bytes=wire_bytes, loss=loss, state=state)
        if self._arm.free:
            self._notes.append(note)
        else:
            self._judge([note], last=last)
            self._other_bytes += interface_bytes() - now_bytes
        return last

    def end(self) -> None:
        """Judge what was only noted. Collective.

        At a free pace ranks may meet the limit of time at different points; the first of these is the last of all.
        """
        if not self._arm.free:
            return
        (negative,) = busiest([-len(self._notes)])
        notes = self._notes[: round(-negative)]
        most = busiest([value for note in notes for value in (note.train_s, note.wire_bytes)])
        *notes, end = [replace(n, train_s=most[2 * k], wire_bytes=most[2 * k + 1]) for k, n in enumerate(notes)]
        for first in range(0, len(notes), _TOGETHER):
            some = notes[first : first + _TOGETHER]
            means = mean_states([note.state for note in some])
            self._judge([replace(note, state=mean) for note, mean in zip(some, means, strict=True)], last=False)
        self._judge([replace(end, state={})], last=True)

    def _judge(self, notes: list[_Note], *, last: bool) -> None:
        metric, about = self._learner.metric, {"arm": self._arm.name, "seed": self._seed, "total": self._total}
        losses, states = [note.loss for note in notes], [note.state for note in notes]
        for note, value in zip(notes, self._learner.judge(self._arm, losses, last=last, states=states), strict=True):
            self._num_evaluations += not note.state
            facts = {"time_s": note.train_s, metric.name: value, "loss": note.loss, "wire_bytes": note.wire_bytes}
            self.points.append({"step": note.step, **facts})
            emit("progress", {**about, "score": f"{metric.name} {metric.text(value)}", **self.points[-1]})

    def _sent_by_evaluation(self) -> float:
        """Return what one evaluation makes this rank's run send, while nothing else is on its way. Collective."""
        before = self._arm.sent_bytes()
        self._arm.evaluated()
        after = self._arm.sent_bytes()
        return 0.0 if before is None or after is None else after - before
