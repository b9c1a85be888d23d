"""Training steps on the simulated clock: backward beside exchanges of gradients and of weights."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pliant.simulator.prepared import PreparedPlan, TimedExchange, TimedWeightExchange
from pliant.simulator.rank_clock import QueuedExchange, RankClock

__all__ = ["Stepper"]

_GRADIENTS, _WEIGHTS = 0, 1


@dataclass(kw_only=True, eq=False)
class _Turn:
    """State of a bucket of weights."""

    exchange: TimedWeightExchange
    last: int
    """Step of the last exchange."""
    round: int = 0
    ticket: QueuedExchange | None = None


@dataclass(kw_only=True, eq=False)
class Stepper:
    """Makes steps of the slowest rank, for whom all others wait wherever the plan lets ranks wait."""

    prepared: PreparedPlan
    clock: RankClock = field(init=False)
    exchanged: list[TimedExchange] = field(default_factory=list[TimedExchange])
    """Exchange of each item of the clock, by its row."""
    ends_s: list[float] = field(default_factory=list[float])
    """When each step has ended."""

    def __post_init__(self) -> None:
        overheads = self.prepared.context.overheads
        self.clock = RankClock(2, overheads.compute_overlap, overheads.exchange_overlap, self.prepared.context.cores)
        self._turns = [_Turn(exchange=m, last=m.part.first_due - m.part.timing.period) for m in self.prepared.weights]
        self._served: QueuedExchange | None = None
        self._handed_over: QueuedExchange | None = None

    def step(self) -> None:
        """Make one step of all ranks."""
        context, clock, step = self.prepared.context, self.clock, len(self.ends_s)
        workload, slow = context.workload, context.slowest
        clock.compute(workload.forward_s * slow, "forward", step)
        self._backward(step, workload.backward_s * slow)
        if self._handed_over is not None:
            clock.wait(self._handed_over, step)
        self._serve(step)
        clock.compute(workload.step_s * slow * self.prepared.step_share, "optimize", step)
        if self.prepared.share is not None:
            clock.wait(self._submit(_GRADIENTS, self.prepared.share, step), step)
        if self._turns:
            self._after_step(step + 1)
        self.ends_s.append(clock.now_s)

    def _backward(self, step: int, seconds: float) -> None:
        slow = self.prepared.context.slowest
        arrivals: list[tuple[float, int, QueuedExchange]] = []
        last_s = 0.0
        for ready_s, every, exchanged in self.prepared.gradients:
            if (step + 1) % every == 0:
                last_s = min(ready_s * slow, seconds)
                arrivals.append((last_s, _GRADIENTS, self._item(exchanged, step)))
        if arrivals:
            self._handed_over = arrivals[-1][2]
        for every, exchanged in self.prepared.follow_ups:
            if (step + 1) % every == 0:
                arrivals.append((last_s, _GRADIENTS, self._item(exchanged, step)))
        self.clock.compute(seconds, "backward", step, arrivals)

    def _serve(self, step: int) -> None:
        """Send gradients to owners at a free pace; their answers are awaited now, or after the next backward."""
        if self.prepared.served is None:
            return
        if self._served is not None:
            self.clock.wait(self._served, step)
        self._served = self._submit(_GRADIENTS, self.prepared.served, step)
        if self.prepared.staleness == 0:
            self.clock.wait(self._served, step)

    def _after_step(self, step: int) -> None:
        """Store results that are due, and start exchanges that are due, as `engine.WeightExchange` does."""
        lockstep = [turn for turn in self._turns if not turn.exchange.free]
        for turn in lockstep:
            if turn.ticket is not None and step >= turn.last + turn.exchange.part.timing.delay_steps:
                self._take(turn, step)
        free = [turn for turn in self._turns if turn.exchange.free]
        if all(turn.ticket is None or turn.ticket.done for turn in free):
            for turn in free:
                turn.ticket = None
            if any(_due(turn, step) for turn in free):
                self._start(free, step)
        due = [turn for turn in lockstep if _due(turn, step)]
        self._start(due, step)
        for turn in due:
            if not turn.exchange.late:
                self._take(turn, step)

    def _start(self, turns: Sequence[_Turn], step: int) -> None:
        if not turns:
            return
        if self.prepared.meet is not None and any(t.exchange.free or t.exchange.part.timing.weighted for t in turns):
            self._submit(_WEIGHTS, self.prepared.meet, step - 1)
        follow_ups: list[TimedExchange] = []
        for turn in turns:
            which = turn.round % len(turn.exchange.tasks)
            turn.ticket = self._submit(_WEIGHTS, turn.exchange.tasks[which], step - 1)
            turn.round, turn.last = turn.round + 1, step
            rest = turn.exchange.follow_ups[which]
            follow_ups += [rest] if rest is not None else []
        for rest in follow_ups:
            self._submit(_WEIGHTS, rest, step - 1)

    def _take(self, turn: _Turn, step: int) -> None:
        if turn.ticket is not None:
            self.clock.wait(turn.ticket, step - 1)
            turn.ticket = None

    def _item(self, exchanged: TimedExchange, step: int) -> QueuedExchange:
        self.exchanged.append(exchanged)
        return QueuedExchange(
            label=exchanged.label,
            seconds=exchanged.seconds,
            row=len(self.exchanged) - 1,
            step=step,
            cpu_share=exchanged.cpu_share,
        )

    def _submit(self, queue_name: int, exchanged: TimedExchange, step: int) -> QueuedExchange:
        return self.clock.submit(queue_name, self._item(exchanged, step))


def _due(turn: _Turn, step: int) -> bool:
    return step - turn.last >= turn.exchange.part.timing.period
