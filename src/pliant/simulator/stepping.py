"""Training steps on the simulated clock: backward beside exchanges of gradients and of weights."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pliant.simulator.prepared import PreparedPlan, TimedWeightExchange
from pliant.simulator.rank_clock import QueuedExchange, RankClock
from pliant.simulator.timed_exchange import TimedExchange

__all__ = ["Stepper"]

_GRADIENTS, _WEIGHTS, _GATHERS, _STATES = range(4)


@dataclass(kw_only=True, eq=False)
class _Turn:
    """State of a bucket of weights."""

    exchange: TimedWeightExchange
    last: int
    """Step of the last exchange."""
    round: int = 0
    ticket: QueuedExchange | None = None


@dataclass(kw_only=True, eq=False)
class _Gathers:
    """Gathers of one group's weights before a pass."""

    each: tuple[TimedExchange, ...]
    tickets: list[QueuedExchange] | None = None
    """Their places in the queue; None before they are asked for."""

    @property
    def block(self) -> bool:
        return any(exchanged.blocks for exchanged in self.each)


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
        self.clock = RankClock(4, overheads.compute_overlap, overheads.exchange_overlap, self.prepared.context.cores)
        self._turns = [_Turn(exchange=m, last=m.part.first_due - m.part.timing.period) for m in self.prepared.weights]
        self._served: QueuedExchange | None = None
        self._handed_over: QueuedExchange | None = None

    def step(self) -> None:
        """Make one step of all ranks."""
        context, clock, step = self.prepared.context, self.clock, len(self.ends_s)
        workload, slow = context.workload, context.slowest
        self._forward(step, workload.forward_s * slow)
        self._backward(step, workload.backward_s * slow)
        if self._handed_over is not None:
            clock.wait(self._handed_over, step)
        if self.prepared.shards.findings is not None:
            clock.wait(self._submit(_GRADIENTS, self.prepared.shards.findings, step), step)
        self._serve(step)
        clock.compute(workload.step_s * slow * self.prepared.step_share, "optimize", step)
        if self.prepared.share is not None:
            clock.wait(self._submit(_GRADIENTS, self.prepared.share, step), step)
        if self._turns:
            self._after_step(step + 1)
        self.ends_s.append(clock.now_s)

    def _forward(self, step: int, seconds: float) -> None:
        """Compute group by group, each when its weights are there, while those of the next are gathered."""
        groups, left_s = self.prepared.shards.in_forward, seconds
        gathers = [_Gathers(each=group.before_forward) for group in groups]
        for k, group in enumerate(groups):
            self._await(gathers[k], step)
            if k + 1 < len(groups) and not gathers[k + 1].block:
                self._issue(gathers[k + 1], step)
            share_s = group.share * seconds if k + 1 < len(groups) else left_s
            self.clock.compute(share_s, "forward", step)
            left_s -= share_s
        if not groups:
            self.clock.compute(seconds, "forward", step)

    def _backward(self, step: int, seconds: float) -> None:
        """Compute, and queue exchanges of gradients as they are complete; of a sharded model group by group."""
        arrivals = self._arrivals(step, seconds)
        groups, from_s = self.prepared.shards.groups, 0.0
        coming = [_Gathers(each=group.before_backward) for group in groups if group.before_backward]
        for group in groups:
            if group.before_backward:
                self._await(coming.pop(0), step)
                if coming:
                    self._issue(coming[0], step)
            until_s = min(group.ready_s * self.prepared.context.slowest, seconds)
            due = [each for each in arrivals if each[0] <= until_s]
            arrivals = arrivals[len(due) :]
            self._compute_backward(from_s, until_s, due, step)
            from_s = until_s
        self._compute_backward(from_s, seconds, arrivals, step)

    def _arrivals(self, step: int, seconds: float) -> list[tuple[float, int, QueuedExchange]]:
        """Return the exchanges of this step's gradients, with the times in backward at which they are queued."""
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
        return arrivals

    def _compute_backward(
        self, from_s: float, until_s: float, arrivals: Sequence[tuple[float, int, QueuedExchange]], step: int
    ) -> None:
        """Compute a part of backward; what blocks is waited for where it is queued."""
        due: list[tuple[float, int, QueuedExchange]] = []
        for ready_s, queue_name, item in arrivals:
            due.append((ready_s - from_s, queue_name, item))
            if self.exchanged[item.row].blocks:
                self.clock.compute(ready_s - from_s, "backward", step, due)
                self.clock.wait(item, step)
                from_s, due = ready_s, []
        self.clock.compute(until_s - from_s, "backward", step, due)

    def _issue(self, gathers: _Gathers, step: int) -> None:
        """Queue the gathers of a group; torch's own are over when they return."""
        gathers.tickets = [self._submit(_GATHERS, each, step) for each in gathers.each]
        if gathers.block:
            self._await(gathers, step)

    def _await(self, gathers: _Gathers, step: int) -> None:
        if gathers.tickets is None:
            self._issue(gathers, step)
        for ticket in gathers.tickets or ():
            self.clock.wait(ticket, step)

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
            queue_name = _STATES if turn.exchange.part.beside_weights else _WEIGHTS
            turn.ticket = self._submit(queue_name, turn.exchange.tasks[which], step - 1)
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
            wire_share=exchanged.wire_share,
        )

    def _submit(self, queue_name: int, exchanged: TimedExchange, step: int) -> QueuedExchange:
        return self.clock.submit(queue_name, self._item(exchanged, step))


def _due(turn: _Turn, step: int) -> bool:
    return step - turn.last >= turn.exchange.part.timing.period
