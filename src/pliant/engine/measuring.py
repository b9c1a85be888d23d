"""Costs of a run: counters, logs of its steps, and a sentence for people."""

import functools
import math
import operator
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from pliant.comm.recorded import RecordedComm
from pliant.comm.striping import ConnectionChoice
from pliant.engine.agreement import ReplicaCheck
from pliant.engine.bucket_dispatcher import BucketDispatcher
from pliant.engine.comm_thread import CommThread
from pliant.engine.executor import ExecutorBuilder
from pliant.engine.gradient_exchange import GradientExchange
from pliant.engine.parts import Part
from pliant.engine.relaxed_model import RelaxedModel
from pliant.engine.stats import RunStats
from pliant.engine.step_log import StepLog
from pliant.engine.step_meter import Counts, StepPace, now_s
from pliant.engine.tracer import Tracer
from pliant.metrics import open_target
from pliant.metrics.base import LogTarget
from pliant.spec import SyncPlan

__all__ = ["MeasuresSteps"]

_TOGETHER: Mapping[str, Callable[[float, float], float]] = {
    "consensus_distance": math.hypot,
    "residual_norm": math.hypot,
    "ratio": max,
    "staleness": max,
}
"""How the figures of several parts are one; others are added."""


class MeasuresSteps:
    """Base of a run that says what its steps cost."""

    plan: SyncPlan
    tracer: Tracer
    connections = ConnectionChoice()
    """Connections between each two ranks, over which large messages are divided, and the reason for their number."""
    _agreement: ReplicaCheck
    _comm: RecordedComm
    _comm_thread: CommThread
    _dispatcher: BucketDispatcher
    _executor_builder: ExecutorBuilder
    _gradients: GradientExchange
    _logs: list[StepLog]
    _pace: StepPace
    _parameters: dict[str, Tensor]
    _relaxed: RelaxedModel

    def stats(self) -> RunStats:
        """Return the cost of the run on this rank so far. No communication."""
        of_parts: dict[str, float] = {}
        for part in self._parts:
            for name, value in part.stats().items():
                before = of_parts.get(name, 0.0)
                of_parts[name] = _TOGETHER.get(name, operator.add)(before, value)
        busy_s = self._comm_thread.busy_s + of_parts.get("exchange_s", 0.0)
        return RunStats(
            steps=self._dispatcher.step,
            exchanges=self._dispatcher.num_backwards,
            sent_bytes=self._comm.sent_bytes,
            received_bytes=self._comm.received_bytes,
            sent_messages=self._comm.sent_messages,
            exposed_s=self.tracer.exposed_s,
            exchange_s=busy_s,
            codec_s=max(0.0, busy_s - self._comm.wait_s),
            consensus_distance=of_parts.get("consensus_distance", 0.0),
            residual_norm=math.hypot(self._gradients.store.norm("residual"), of_parts.get("residual_norm", 0.0)),
            last_agreement_step=self._agreement.last_step,
            curvature_s=self._executor_builder.curvature.seconds,
            ratio=of_parts.get("ratio", 0.0),
            connections=self.connections.connections,
            connections_why=self.connections.why,
            exchanges_in_pairs=int(of_parts.get("exchanges_in_pairs", 0)),
            staleness=int(of_parts.get("staleness", 0)),
        )

    def log_to(
        self,
        target: LogTarget | str | Path,
        *,
        every: int = 1,
        residual_every: int = 0,
        all_ranks: bool = False,
    ) -> None:
        """Write what steps cost to a target from now on, such as ``pliant.metrics.TensorBoard("runs/a")``.

        Rows hold, per step: ``step_s`` from the end of one step to the end of the next, ``exposed_s`` of it waiting for
        exchanges, ``sent_bytes`` and ``received_bytes``; then ``bytes_vs_ddp``, the bytes sent under this plan over
        those that DDP would have sent; ``plan_switches``; and ``plan`` by name in the first row and after a switch.
        All are counted anyway. The run closes the target. No communication.

        Args:
            target: Where to; or the path of a file that ends in .csv or .jsonl.
            every: Steps of one row, which then holds means over them.
            residual_every: Steps from one ``residual_norm`` to the next: it reads all residuals; 0 for never.
            all_ranks: Whether every rank writes, each to a target of its own; else only the first.

        Raises:
            ValueError: A number of steps is not possible, or the file is of another kind.

        """
        if every < 1 or residual_every < 0:
            raise ValueError(
                f"log_to() got every={every} and residual_every={residual_every}; a row is of at least 1 step, and "
                "residual_every is at least 0."
            )
        self._logs.append(
            StepLog(
                self,
                open_target(target) if isinstance(target, (str, Path)) else target,
                every=every,
                residual_every=residual_every,
                writes=lambda: all_ranks or self._comm.rank == 0,
            )
        )

    def log(self, values: Mapping[str, Any]) -> None:
        """Add values of your own, such as {"loss": loss}, to the row of this step: call it before the step ends.

        A tensor of one element is read when the row is written.
        """
        for each in self._logs:
            each.add(values)

    def counts(self) -> Counts:
        """Return the counters of this rank now. No communication."""
        comm, at = self._comm, self._dispatcher
        return Counts(now_s(), at.step, at.num_backwards, comm.sent_bytes, comm.received_bytes, self.tracer.exposed_s)

    @property
    def ddp_bytes(self) -> float:
        """Bytes that DDP sends from a rank in one backward pass: 2 (n-1)/n of its gradients; 0 for sharded models."""
        if self._relaxed.sharded is not None:
            return 0.0
        return 2 * (self._comm.size - 1) / self._comm.size * self._gradient_bytes

    @functools.cached_property
    def _gradient_bytes(self) -> int:
        return sum(p.numel() * p.element_size() for p in self._parameters.values())

    def residual_norm(self) -> float:
        """Return the Euclidean norm of this rank's residuals of error feedback. Reads all of them."""
        return self.stats()["residual_norm"]

    def __str__(self) -> str:
        return self._pace.sentence(self.plan, self.ddp_bytes)

    def _measure_step(self, step: int) -> None:
        self._pace.note(self.plan, self.counts())
        for each in list(self._logs):
            self._keep_training(each, lambda log=each: log.after_step(step))

    def _close_logs(self) -> None:
        for each in list(self._logs):
            self._keep_training(each, each.close)
        self._logs.clear()

    def _keep_training(self, log: StepLog, act: Callable[[], None]) -> None:
        """Do something with a log; what it raises, such as for a full disk, ends the log and not the training."""
        try:
            act()
        except Exception as error:  # noqa: BLE001  a logger may raise anything, and the other ranks are training
            self._logs.remove(log)
            told = f"{type(error).__name__}: {error}"
            warnings.warn(f"a log of run.log_to() has failed and ends here; training goes on ({told}).", stacklevel=2)

    @property
    def _parts(self) -> tuple[Part, ...]:
        """Parts of the run, which know their own costs."""
        return ()
