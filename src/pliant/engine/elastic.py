"""Runs that go on without a lost rank, and take in one that comes."""

import logging
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from pliant.comm.base import CommError
from pliant.comm.elastic import ElasticGroup, NotSignedError
from pliant.comm.private_comm import self_comm
from pliant.comm.recorded import RecordedComm
from pliant.comm.records import Epoch
from pliant.comm.secret import read_secret
from pliant.engine.epoch_sync import average_members, send_first_state
from pliant.engine.gradient_exchange import NonFinite
from pliant.engine.launcher_env import run_from_torchrun
from pliant.engine.plan_resolution import PlanLike
from pliant.engine.relaxed_model import RelaxedModel
from pliant.engine.run import Run
from pliant.engine.weight_exchange import WeightExchange
from pliant.spec import CodedGossip, Gossip, SyncPlan

__all__ = ["Elastic", "ElasticRun", "start_elastic"]

T = TypeVar("T")

_MOST_ATTEMPTS = 20
_MOST_REFUSALS = 3
_log = logging.getLogger("pliant")


@dataclass(frozen=True, kw_only=True)
class Elastic:
    """Options of a run that goes on without ranks that are lost, and takes in ranks that come."""

    min_ranks: int = 1
    """Fewest that go on; with fewer, all end with a CommError."""
    regroup_s: float = 30.0
    """Longest wait for a rank that shows signs of life but does not come; make it longer than the longest step."""
    secret_file: str | Path | None = None
    """A file with at least 16 bytes that all ranks have and nobody else may read. With it, what ranks say to each other
    in their store, and who is sent weights, is signed. Without it the run must stay on loopback."""

    def __post_init__(self) -> None:
        if self.min_ranks < 1 or self.regroup_s <= 0:
            raise ValueError(
                f"an elastic run of at least {self.min_ranks} ranks that waits {self.regroup_s:g}s cannot be; "
                "min_ranks must be 1 or more, and regroup_s more than 0."
            )


class ElasticRun(Run):
    """A run whose ranks may be lost and come, at any moment.

    When an exchange fails, when a rank comes or when one leaves, all that are there agree on who goes on and make a
    new group. Weights, and floating-point buffers, become their mean over those that hold a state; a newcomer gets
    that mean, and optimizer state, step and outer state from the first of them. What was in flight is dropped: the
    steps that ranks have made since the last exchange are in the mean, so none is lost but those of a lost rank.
    A rank counts as lost when it says so, or gives no sign of life for 5 s.
    """

    def __init__(self, relaxed: RelaxedModel, plan: SyncPlan, *, party: ElasticGroup, nonfinite: NonFinite) -> None:
        self._group = party
        self._sound = False
        comm = RecordedComm(self_comm())  # a rank is alone until it has met the others
        super().__init__(relaxed, plan, comm=comm, hosts=None, agreement_every=0, nonfinite=nonfinite)
        self.tracer.shutdown.add(party)
        try:
            self._regroup()
        except BaseException:
            self._release()
            raise

    @property
    def members(self) -> tuple[int, ...]:
        """The ranks that train now, by their numbers in the world they were started for."""
        return tuple(member.rank for member in self._group.epoch.members)

    def consolidate(self) -> dict[str, Tensor]:
        """Return the model to evaluate or export, of those that are there. Collective, after the same step."""
        return self._with_regroup(super().consolidate)

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's state; ``rank<i>`` counts among the members. At a free pace the call is collective."""
        return self._with_regroup(super().state_dict)

    def save(self, path: str | Path, *, scheduler: Any = None, scaler: Any = None) -> None:
        """Write a checkpoint of the members; after a loss, of those that go on. Collective, after the same step."""
        save = super().save
        self._with_regroup(lambda: save(path, scheduler=scheduler, scaler=scaler))

    def load_state_dict(self, state: Mapping[str, Any], *, scaler: Any = None) -> None:
        """Continue from a state_dict, before a rank is lost or comes. Collective.

        Raises:
            ValueError: As for any run; or the run has gone on with other ranks, and a rank that joins loads nothing,
                since it gets its state from those that train.

        """
        if self._group.epoch.number > 0:
            raise ValueError(
                f"the ranks of this elastic run have changed {self._group.epoch.number} times, and a state is loaded "
                "by all that saved it, before any is lost or comes; a rank that joins gets its state from the others."
            )
        super().load_state_dict(state, scaler=scaler)

    def switch(self, what: PlanLike, *, pay: bool = True) -> None:
        """Refuse: ranks that come later would not know of the new plan.

        Raises:
            ValueError: Always.

        """
        raise ValueError(
            "an elastic run keeps its plan, because a rank that joins later brings the one it was started with; "
            "close() it and relax() anew."
        )

    def close(self) -> None:
        """Meet the others once more, take the mean, and leave; who still trains goes on without this rank.

        At a free pace it waits for all that train, and averages with them, until they close as well.
        """
        if not self._open or self.tracer.shutdown.over:
            return
        try:
            self._with_regroup(self._finish)
            self._regroup(closing=True)
            if all(member.closing for member in self._group.epoch.members):
                self._group.finalize()
        finally:
            self._release()

    def _finish(self) -> None:
        self._executor.hand_back(self._dispatcher.step)

    def _release(self, *, broken: bool = False) -> None:
        super()._release(broken=broken)
        self._group.leave()

    def _after_step(self) -> None:
        if self._group.is_over:
            self._dispatcher.step += 1
            self._regroup()
            return
        lost = False
        try:
            super()._after_step()
        except CommError:
            lost = True  # the error is let go first: it holds on to the connections that are to be hung up
        if lost:
            self._regroup()

    def _with_regroup(self, act: Callable[[], T]) -> T:
        """Do something collective, again after each loss."""
        while True:
            try:
                return act()
            except CommError:
                pass
            self._regroup()

    def _regroup(self, *, closing: bool = False) -> None:
        """Agree on who goes on, and go on with them. Raises CommError if that cannot be."""
        failure, num_refused = "", 0
        for _ in range(_MOST_ATTEMPTS):
            self._comm.hang_up()  # so that nobody waits for this rank, whatever still holds its connections
            self._executor.close()
            self._comm.close()
            before = self._group.epoch
            epoch = self._group.agree(step=self._dispatcher.step, sound=self._sound, closing=closing)
            try:
                self._comm.go_on_with(self._group.connect())
                self._meet(epoch)
                # Note: who leaves hangs up. If it did so when it is done itself, a member that is not would fail, and
                # go on with other weights than those that have left; so all wait for all, or try again together.
                if any(member.closing for member in epoch.members):
                    self._group.meet()
            except NotSignedError as error:
                num_refused += 1
                if num_refused == _MOST_REFUSALS:
                    raise
                failure = str(error)
                continue
            except CommError as error:
                failure = str(error)
                continue  # one more is lost, or has come
            _log_change(self._group.rank, before, epoch, self._dispatcher.step)
            if closing or not any(member.closing for member in epoch.members):
                return
        raise CommError(
            f"rank {self._group.rank}: {_MOST_ATTEMPTS} groups in a row came to nothing, though the store answers: "
            f"ranks can reach it and not each other. Check the network between them. The last failure: {failure}",
            rank=self._group.rank,
            op="regroup",
        )

    @torch.no_grad()
    def _meet(self, epoch: Epoch) -> None:
        """Make the members of a new epoch alike."""
        num_sound = sum(member.sound for member in epoch.members)
        average_members(self._module, self.optimizer, self._comm, self._group, self._device)
        lockstep = any(node.timing.pace == "lockstep" for node in self._gradients.store.nodes.values())
        if lockstep or not self._sound:
            self._dispatcher.step = max(member.step for member in epoch.members[: num_sound or 1])
        self._executor = executor = self._executor_builder.rebuild(self._executor, self._dispatcher.step)
        self._gradients = executor.gradients
        for weights in executor.of(WeightExchange):
            weights.reset_reference()
            counters = weights.counters
            rounds = counters[:, 1].contiguous()
            send_first_state([*executor.gradients.store.shared(), rounds], self._comm, self._group)
            counters[:, 1] = rounds
            weights.counters = counters
        self._sound = True


def start_elastic(
    relaxed: RelaxedModel,
    plan: SyncPlan,
    elastic: Elastic,
    *,
    group: ProcessGroup | None,
    timeout_s: float,
    start_timeout_s: float,
    nonfinite: NonFinite,
) -> ElasticRun:
    """Begin an elastic run, or join one."""
    _require_possible(relaxed, plan)
    party = ElasticGroup(
        group,
        min_ranks=elastic.min_ranks,
        regroup_s=elastic.regroup_s,
        timeout_s=timeout_s,
        start_timeout_s=start_timeout_s,
        secret=None if elastic.secret_file is None else read_secret(elastic.secret_file),
        run=run_from_torchrun(),
    )
    try:
        party.require_same(_fingerprint(relaxed.module, plan))
        return ElasticRun(relaxed, plan, party=party, nonfinite=nonfinite)
    except BaseException:
        party.leave()
        raise


def _require_possible(relaxed: RelaxedModel, plan: SyncPlan) -> None:
    if relaxed.ddp is not None:
        raise ValueError(
            "an elastic run needs a plain module, but got a DistributedDataParallel: DDP talks to all ranks of its "
            "group by itself (about its buckets, about unused parameters), and would wait for a lost rank; pass "
            "model.module, and call run.model."
        )
    if not all(rule.exchange.exchanges_weights and rule.exchange.leaves_gradients(0) for rule in plan.rules):
        raise ValueError(
            f"an elastic run needs a plan whose ranks exchange weights between steps, but {plan.name or plan.hash!r} "
            "exchanges gradients, whose mean is not known without the lost rank; use gossip, local_sgd, diloco or "
            "async_average, without a warm-up, or leave `elastic` out and resume from a checkpoint."
        )
    for node in (node for rule in plan.rules for node in rule.exchange.walk()):
        if isinstance(node, (Gossip, CodedGossip)) and node.graph.kind == "matrix":
            raise ValueError(
                f"the mixing matrix is for {len(node.graph.rows)} ranks, but the number of ranks of an elastic "
                "run changes; use a graph that has a rule, such as 'ring'."
            )
    device = next(p.device for p in relaxed.module.parameters() if p.requires_grad)
    if device.type != "cpu":
        raise ValueError(
            f"an elastic run talks through Gloo, on CPU tensors, but the model is on {device}: a group of another "
            "backend cannot be left when a rank is lost."
        )


def _fingerprint(model: nn.Module, plan: SyncPlan) -> str:
    tensors = {n: v for n, v in model.state_dict().items() if isinstance(v, Tensor)}
    shapes = " ".join(f"{name} {tuple(value.shape)} {value.dtype}" for name, value in tensors.items())
    return f"plan {plan.hash}, model {zlib.crc32(shapes.encode()):08x}"


def _log_change(rank: int, before: Epoch, now: Epoch, step: int) -> None:
    ranks, here = ", ".join(str(m.rank) for m in now.members), {m.rank for m in now.members}
    lost = [str(m.rank) for m in before.members if not m.closing and m.rank not in here]
    if lost:
        _log.warning("rank %d: lost rank %s; ranks %s go on after step %d", rank, ", ".join(lost), ranks, step)
    else:
        _log.info("rank %d: ranks %s go on after step %d", rank, ranks, step)
