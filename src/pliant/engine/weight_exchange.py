"""Exchange of weights between optimizer steps, in buckets of our own, whatever DDP's are."""

import functools
import zlib
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from pliant.algorithms.base import Deferred, StepContext
from pliant.engine.agreement import ReplicaCheck
from pliant.engine.algorithm_state import CORRECTION
from pliant.engine.comm_thread import CommThread
from pliant.engine.comms import Comms
from pliant.engine.rank_checks import describe_failure
from pliant.engine.step_counts import StepCounts
from pliant.engine.tracer import Tracer
from pliant.engine.weight_parts import AmongAll, WeightPart

__all__ = ["WeightExchange"]


class WeightExchange(AmongAll):
    """Exchanges weights after the same steps of all ranks (Note [who waits for whom], Note [deferred work]).

    Args:
        parts: Buckets whose nodes keep step.
        comms: Comms of weights alone, for nodes that need hosts and for those that do not.
        optimizer: Optimizer whose learning rate stretches periods.
        step: Steps made so far.
        tracer: Tracer of the run.

    """

    key = "weights"

    def __init__(
        self, parts: Sequence[WeightPart], comms: Comms, optimizer: Optimizer, step: int, tracer: Tracer
    ) -> None:
        super().__init__(parts, comms, optimizer, step)
        self.comm_thread = CommThread(self._device, "pliant-weights", tracer)
        self._agreement: tuple[ReplicaCheck, int] | None = None

    def agree(self, agreement: ReplicaCheck, plan: int) -> None:
        """Let ranks compare their counts now and then, after an exchange, under a plan with this hash."""
        self._agreement = agreement, plan

    def after_step(self, step: int) -> None:
        """Store results that are due, and start exchanges that are due."""
        self.comm_thread.raise_error()
        for part in self._parts:
            if part.handle is not None and step >= part.last + part.timing.delay_steps:
                self._take(part)
        due = self._due(step)
        self._start(due, step)
        for part in due:
            if not part.late:
                self._take(part)

    def hand_back(self, step: int) -> None:
        """Store all results in flight. Collective, between two steps."""
        for part in self._parts:
            self._take(part)
        self.comm_thread.drain()

    def settle(self, step: int) -> None:
        """Bring exchanges in flight to a state that can be saved."""
        self.comm_thread.drain()

    def abandon(self) -> None:
        """Drop exchanges in flight, which may fail since other ranks may be lost."""
        for part in self._parts:
            part.handle = None

    def close(self) -> None:
        """End the communication thread, and close the comm."""
        self.comm_thread.close()
        self._comms.all.close()

    def stats(self) -> dict[str, float]:
        """Return the time of exchanges of weights, and the norm of their last change on this rank."""
        return {"exchange_s": self.comm_thread.busy_s, "consensus_distance": self.distance}

    @property
    def state(self) -> dict[str, Tensor]:
        """Counters of each bucket, and the work that shares are weighted by."""
        return {"counters": self.counters, "work": self.work}

    @state.setter
    def state(self, saved: Mapping[str, Tensor]) -> None:
        self.counters, self.work = saved["counters"], saved["work"]

    def check_state(self, saved: Mapping[str, Tensor], step: int) -> None:
        """Raise ValueError for counters that no run can have come to."""
        rows, work = saved["counters"].tolist(), saved["work"]
        if any(last > step or round_ < 0 or in_flight not in (0, 1) for last, round_, in_flight in rows):
            raise ValueError(f"the state is damaged: exchanges of weights are counted {rows} in step {step}.")
        if not bool(work.isfinite().all()):
            raise ValueError(f"the state is damaged: work is counted {work.tolist()}.")

    @property
    def counters(self) -> Tensor:
        """Counters of each bucket, int64 (num_buckets, 3): step of the last exchange, exchanges, one in flight."""
        rows = [[part.last, part.round, part.handle is not None] for part in self._parts]
        return torch.tensor(rows, dtype=torch.int64)

    @counters.setter
    def counters(self, rows: Tensor) -> None:
        for part, (last, round_, in_flight) in zip(self._parts, rows.tolist(), strict=True):
            part.last, part.round = last, round_
            part.handle = self.comm_thread.submit(lambda: None) if in_flight else None

    @property
    def exchanges(self) -> int:
        """Exchanges so far, of all buckets."""
        return sum(part.round for part in self._parts)

    @property
    def work(self) -> Tensor:
        """Weights of the shares, float64 (num_buckets + 2,): work done by each exchange, begun at, counted."""
        return torch.tensor([*(part.work for part in self._parts), self._begun, self._counted], dtype=torch.float64)

    @work.setter
    def work(self, numbers: Tensor) -> None:
        *of_parts, begun, self._counted = numbers.tolist()
        self._begun = int(begun)
        for part, work in zip(self._parts, of_parts, strict=True):
            part.work = work

    @property
    def distance(self) -> float:
        """Euclidean norm of the last exchanges' change of this rank's weights; waits for nobody."""
        for part in self._parts:
            if part.changed:
                part.distance = float(torch.stack(part.changed).norm())
            elif part.late and (part.handle is None or part.handle.done):
                part.distance = float(part.state.flat[CORRECTION].norm())
        return sum(part.distance**2 for part in self._parts) ** 0.5

    def _start(self, parts: Sequence[WeightPart], step: int) -> None:
        if not parts:
            return
        share, sends = [1.0], any(step >= part.timing.until_step for part in parts)
        if sends and any(part.timing.weighted for part in parts) and self._comms.all.size > 1:
            work = (self._counted or step - self._begun) - parts[0].work
            self.comm_thread.submit(lambda: self._meet(work, share), name="meet", step=step - 1)
        deferred: list[tuple[str, Deferred]] = []
        for part in parts:
            part.load()
            if part.late:
                torch.neg(part.bucket.flat, out=part.state.flat[CORRECTION])
            mix = functools.partial(self._mix, part, step, share, deferred)
            part.handle = self.comm_thread.submit(mix, name=part.bucket.name, step=step - 1)
            part.work = self._counted or step - self._begun
            part.last = step + part.offset if step == part.timing.until_step else step
        self.comm_thread.submit_all(deferred, step=step - 1)
        if sends and self._agreement is not None:
            agreement, plan = self._agreement
            agreement.after_exchange(
                lambda: StepCounts(step=step, exchanges=self.exchanges, plan=plan),
                step,
                self.comm_thread,
                self._comms.all,
                self._device,
            )

    def _meet(self, work: float, share: list[float]) -> None:
        """Compute this rank's share of all work. Collective."""
        comm = self._comms.all
        total = torch.tensor([work], dtype=torch.float64)
        comm.all_reduce(total).wait()
        share[0] = work * comm.size / float(total) if total > 0 else 1.0

    def _mix(self, part: WeightPart, step: int, share: list[float], deferred: list[tuple[str, Deferred]]) -> None:
        bucket, names = part.bucket, [span.name for span in part.bucket.spans]
        part.require_finite(step)
        seed = part.round << 32 | zlib.crc32(bucket.name.encode())
        context = StepContext(step=step, seed=seed, round=part.round, share=share[0] if part.timing.weighted else 1.0)
        part.round += 1
        alone = part.comm.size == 1 and not part.acts_alone
        with describe_failure(f"exchanging {bucket.name} ({names[0]} .. {names[-1]}) after step {step}"):
            rest = None if alone else part.algorithm.exchange_weights(bucket, part.state, part.comm, context)
        deferred += [(bucket.name, rest)] if rest is not None else []
        if part.late:
            part.state.flat[CORRECTION].add_(bucket.flat)

    def _take(self, part: WeightPart) -> None:
        if part.handle is not None:
            part.handle.wait()
            part.handle = None
            part.store()
