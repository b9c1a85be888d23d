"""Averages of all ranks' weights at a free pace: a thread of each rank takes part while the rank computes."""

import contextlib
import threading
import time
import zlib
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from pliant.accelerator import new_stream
from pliant.algorithms.base import Deferred, StepContext
from pliant.comm.base import duplicate
from pliant.engine.attendance import Attendance, Readiness, gather_attendance, seconds_left, share_of
from pliant.engine.comms import Comms
from pliant.engine.messages import comes_in_time
from pliant.engine.posted_weights import AveragedWeights
from pliant.engine.rank_checks import describe_failure
from pliant.engine.round_calls import RoundCalls
from pliant.engine.tracer import Tracer
from pliant.engine.weight_parts import AmongAll, WeightPart, change_norm

__all__ = ["BackgroundAverage"]

_LOOK_S = 0.5
"""Time between two looks whether the run is over, which `stop` tells nobody, since it may take no lock."""
_PAUSE_S = 0.05
"""Time between two rounds that a rank calls for while it waits for others to come to an end."""
_HANG_UP_S = 5.0
"""Time that the thread may take to notice that its connections are closed."""


class BackgroundAverage(AmongAll):
    """Averages weights in rounds that any rank may call, by a thread of each (Note [posted weights]).

    A rank whose period is over calls a round, and goes on. The call goes around a ring: each rank passes it on once, or
    has called itself. Each thread then takes part with the weights that its rank has posted last. So a rank that
    computes for long takes part as often as the others, with little or no work of its own since the round before. One
    that is stopped holds up the round, but no step; if it is stopped for the timeout, the others end and name it.

    With a quorum a call asks who is ready, and weights are averaged once the periods of so many ranks are over
    (Decoupled DiLoCo, arXiv:2604.21428). The others take the new common point, and what they have done since they last
    counted stays in their weights: the first round after their period takes it. So every change counts once.

    Where all ranks must be between the same two rounds, each calls rounds until one finds that all have come.

    Args:
        parts: Buckets at a free pace.
        comms: Comms for these averages alone.
        optimizer: Optimizer whose learning rate stretches periods.
        step: Steps made so far.
        tracer: Tracer of the run.

    """

    key = "averages"

    def __init__(
        self, parts: Sequence[WeightPart], comms: Comms, optimizer: Optimizer, step: int, tracer: Tracer
    ) -> None:
        super().__init__(parts, comms, optimizer, step)
        self._tracer = tracer
        self._averaged = [AveragedWeights(part) for part in parts]
        self._until = max(part.timing.until_step for part in parts)
        self._changed = threading.Condition()
        """Guards what follows, and tells of every change."""
        self._round = 0
        self._is_open = False
        """Whether the thread may take part in rounds; not between an end to which all have come and the next step."""
        self._leaving = False
        """Whether the training thread waits until all have come to an end."""
        self._error: BaseException | None = None
        self._steps, self._weighed = step, 0.0
        self._readiness = Readiness()
        self._busy_s = 0.0
        self._over = False
        self._calls = RoundCalls(duplicate(comms.all))
        self._thread: threading.Thread | None = None
        if comms.all.size > 1:
            self._thread = threading.Thread(target=self._run, name="pliant-averages", daemon=True)
            self._thread.start()
        tracer.shutdown.add(self)

    # - The training thread

    def after_step(self, step: int) -> None:
        """Add what has come, post the new weights, and call a round if one is due."""
        self._raise_error()
        if step < self._until:
            self._steps = step
            return
        if step == self._until:
            self.reset_reference()
            self._weighed = self._counted or step - self._begun  # what a warm-up has done counts in no average
            for part in self._parts:
                part.last = step
        self._post(step)
        with self._changed:
            self._is_open = True
            self._changed.notify_all()
            calls = self._readiness.after_step(is_over=step > self._until and bool(self._due(step)))
            in_flight = self._calls.last > self._round
        if calls and not in_flight:
            self._call(self._round + 1)

    def settle(self, step: int) -> None:
        """Average until all ranks have come here, and add all that has come. Collective."""
        if self._thread is not None:
            self._raise_error()
            self._post(step)
            with self._changed:
                self._is_open = self._leaving = True
                self._changed.notify_all()
            while self._leaving:
                self._next_round()
        self._post(step)

    def hand_back(self, step: int) -> None:
        """Average until all ranks have come here, and end the thread. Collective."""
        self.settle(step)
        if self._thread is not None:
            self._calls.say_goodbye()
            self.join(self._comms.all.timeout_s)
        self._over = True

    def abandon(self) -> None:
        """Close the connections; nothing after `hand_back`."""
        if not self._over:
            self.stop()
            self.join(_HANG_UP_S)

    def close(self) -> None:
        """Free the comms, once the threads have ended."""
        self._error = None  # it holds the frames that have raised it, and with them every connection
        self._calls.close()
        self._comms.all.close()

    def stop(self) -> None:
        """Close the connections, which ends the thread. Takes no lock and waits for nobody."""
        self._over = True
        self._calls.hang_up()
        self._comms.all.hang_up()

    def join(self, timeout_s: float) -> None:
        """Wait for the thread to end."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def stats(self) -> dict[str, float]:
        """Return the time of the averages, and the norm of what the last ones have changed."""
        return {"exchange_s": self._busy_s, "consensus_distance": change_norm(self._parts)}

    @property
    def state(self) -> dict[str, Tensor]:
        """Step before the last round and rounds of each bucket, and the work that shares are weighted by."""
        rows = [[part.last, part.round] for part in self._parts]
        return {
            "counters": torch.tensor(rows, dtype=torch.int64),
            "work": torch.tensor([self._begun, self._counted, self._weighed], dtype=torch.float64),
        }

    @state.setter
    def state(self, saved: Mapping[str, Tensor]) -> None:
        for part, (last, round_) in zip(self._parts, saved["counters"].tolist(), strict=True):
            part.last, part.round = last, round_
        begun, self._counted, self._weighed = saved["work"].tolist()
        self._begun = int(begun)

    def check_state(self, saved: Mapping[str, Tensor], step: int) -> None:
        """Raise ValueError for counters that no run can have come to."""
        rows, work = saved["counters"].tolist(), saved["work"]
        if any(last > step or round_ < 0 for last, round_ in rows) or not bool(work.isfinite().all()):
            raise ValueError(
                f"the state is damaged: averages are counted {rows}, and work {work.tolist()}, in step {step}."
            )

    def _post(self, step: int) -> None:
        for each in self._averaged:
            each.posted.post()
        self._steps = step

    def _next_round(self) -> None:
        """Call a round, unless one was called, and wait for its end."""
        limit_s, wanted = self._comms.all.timeout_s, self._round + 1
        self._call(wanted)

        def done() -> bool:
            return self._round >= wanted or self._error is not None

        with self._changed:  # a round may have many buckets, each of which has the limit
            if not comes_in_time(self._changed, done, 1.25 * limit_s, lambda: sum(self.rounds)):
                raise self._calls.silence(limit_s)
        self._raise_error()
        with self._changed:
            self._changed.wait_for(lambda: self._calls.last > self._round or not self._leaving, _PAUSE_S)

    def _raise_error(self) -> None:
        """Raise what has ended the thread, each time: no average comes any more."""
        if self._error is not None:
            raise self._error.with_traceback(None)

    def _call(self, number: int) -> None:
        if self._thread is None:  # alone
            self._average(number)
        else:
            self._calls.call(number)

    # - The thread that averages

    def _run(self) -> None:
        stream = new_stream(self._device)
        try:
            with stream or contextlib.nullcontext():
                while (number := self._calls.hear()) is not None:
                    self._calls.call(number)
                    with self._changed:
                        while not (self._is_open or self._over):
                            self._changed.wait(_LOOK_S)
                    self._average(number)
        except BaseException as error:  # noqa: BLE001  whatever it is, the training thread raises it
            with self._changed:
                self._error = None if self._over else error.with_traceback(None)
                self._changed.notify_all()
        self._calls.drain()

    def _average(self, number: int) -> None:
        """Carry out a round, or find that too few ranks are ready for it. Collective."""
        began_s, comm, timing = time.perf_counter(), self._comms.all, self._parts[0].timing
        steps, done = self._steps, self._counted or self._steps - self._begun
        mine = self._attendance(steps, done - self._weighed)
        for each in self._averaged if mine.counts else ():
            each.read()
            each.part.require_finite(steps, each.bucket.flat)
        rows = gather_attendance(mine, comm)
        left_s = seconds_left(rows, timing.quorum_among(comm.size), timing.grace_s)
        deferred = [self._exchange(each, rows) for each in self._averaged] if left_s == 0 else []
        for rest in deferred:
            if rest is not None:
                rest()
        with self._changed:
            self._round = number
            if mine.counts and left_s == 0:
                self._weighed = done
                for part in self._parts:
                    part.last = steps  # whoever has called
            self._readiness.answered(mine, left_s)
            if all(row.leaving for row in rows):  # no round before this rank's next step, which others may make sooner
                self._leaving = self._is_open = False
            self._busy_s += time.perf_counter() - began_s
            self._changed.notify_all()

    def _attendance(self, steps: int, work: float) -> Attendance:
        """Return what this rank tells, with its work since it last counted."""
        waited_s, weight = 0.0, work
        if self._parts[0].timing.quorum is not None:
            waited_s = self._readiness.waited_s
            weight *= work / max(steps - max(part.last for part in self._parts), 1)
        return Attendance(weight=weight, leaving=self._leaving, exchanges=sum(self.rounds), waited_s=waited_s)

    def _exchange(self, each: AveragedWeights, rows: Sequence[Attendance]) -> Deferred | None:
        part, names = each.part, [span.name for span in each.bucket.spans]
        rank, step = self._comms.all.rank, max(self._steps, self._until + 1)
        if not rows[rank].counts:
            each.follow()
        seed = part.round << 32 | zlib.crc32(each.bucket.name.encode())
        share = share_of(rank, rows, weighted=part.timing.weighted)
        is_due = not any(row.leaving for row in rows)
        context = StepContext(step=step, seed=seed, round=part.round, share=share, is_due=is_due)
        part.round += 1
        with (
            self._tracer.task(each.bucket.name, self._steps - 1),
            describe_failure(f"averaging {each.bucket.name} ({names[0]} .. {names[-1]})"),
        ):
            alone = part.comm.size == 1 and not part.acts_alone
            rest = None if alone else part.algorithm.exchange_weights(each.bucket, part.state, part.comm, context)
        each.write()
        return rest
