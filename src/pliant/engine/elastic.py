"""Runs that go on without a lost rank, and take in one that comes."""

import logging
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from pliant.comm.base import Comm, CommError
from pliant.comm.elastic import Party
from pliant.comm.membership import Epoch
from pliant.comm.process_group import alone
from pliant.comm.recorded import RecordedComm
from pliant.engine.choose import What
from pliant.engine.exchange import NonFinite
from pliant.engine.run import Run
from pliant.engine.start import broadcast_optimizer, broadcast_tensors
from pliant.spec import SyncPlan

__all__ = ["Elastic", "ElasticRun", "begin"]

T = TypeVar("T")

_MOST_ATTEMPTS = 20
_log = logging.getLogger("pliant")


@dataclass(frozen=True, kw_only=True)
class Elastic:
    """That a run shall go on without ranks that are lost, and take in ranks that come."""

    min_ranks: int = 1
    """Fewest that go on; with fewer, all end with a CommError."""
    regroup_s: float = 30.0
    """Longest wait for a rank that shows signs of life but does not come; make it longer than the longest step."""

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

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, plan: SyncPlan, *, party: Party, nonfinite: NonFinite
    ) -> None:
        self._party = party
        self._sound = False
        comm = RecordedComm(alone())  # a rank is alone until it has met the others
        super().__init__(model, optimizer, plan, comm=comm, hosts=None, agreement_every=0, nonfinite=nonfinite)
        try:
            self._regroup()
        except BaseException:
            self._let_go()
            raise

    @property
    def members(self) -> tuple[int, ...]:
        """The ranks that train now, by their numbers in the world they were started for."""
        return tuple(member.rank for member in self._party.epoch.members)

    def consolidate(self) -> dict[str, Tensor]:
        """Return the model to evaluate or export, of those that are there. Collective, after the same step."""
        return self._enduring(super().consolidate)

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's state; ``rank<i>`` counts among the members. At a free pace the call is collective."""
        return self._enduring(super().state_dict)

    def switch(self, what: What, *, pay: bool = True) -> None:
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
        if not self._open:
            return
        try:
            self._enduring(self._finish)
            self._regroup(closing=True)
            if all(member.closing for member in self._party.epoch.members):
                self._party.conclude()
        finally:
            self._let_go()

    def _finish(self) -> None:
        if self._weights is not None:
            self._weights.finish(self._step)

    def _let_go(self) -> None:
        super()._let_go()
        self._party.leave()

    def _after_step(self) -> None:
        if self._party.is_over:
            self._step += 1
            self._regroup()
            return
        lost = False
        try:
            super()._after_step()
        except CommError:
            lost = True  # the error is let go first: it holds on to the connections that are to be hung up
        if lost:
            self._regroup()

    def _enduring(self, act: Callable[[], T]) -> T:
        """Do something collective, again after each loss."""
        while True:
            try:
                return act()
            except CommError:
                pass
            self._regroup()

    def _regroup(self, *, closing: bool = False) -> None:
        """Agree on who goes on, and go on with them. Raises CommError if that cannot be."""
        failure = ""
        for _ in range(_MOST_ATTEMPTS):
            if self._weights is not None:
                self._weights.abandon()
            self._comm.close()
            before = self._party.epoch
            epoch = self._party.agree(step=self._step, sound=self._sound, closing=closing)
            try:
                self._comm.go_on_with(self._party.connect())
                self._meet(epoch)
            except CommError as error:
                failure = str(error)
                continue  # one more is lost, or has come
            _tell(self._party.rank, before, epoch, self._step)
            if closing or not any(member.closing for member in epoch.members):
                return
        raise CommError(
            f"rank {self._party.rank}: {_MOST_ATTEMPTS} groups in a row came to nothing, though the store answers: "
            f"ranks can reach it and not each other. Check the network between them. The last failure: {failure}",
            rank=self._party.rank,
            op="regroup",
        )

    @torch.no_grad()
    def _meet(self, epoch: Epoch) -> None:
        """Make the members of a new epoch alike."""
        num_sound = sum(member.sound for member in epoch.members)
        newcomers = num_sound < len(epoch.members)
        averaged, alike = _tensors_to_meet(self._module)
        if num_sound:
            _mean_of_sound(averaged, self._comm, num_sound, sound=self._sound)
        if newcomers:
            broadcast_tensors(alike if num_sound else [*averaged, *alike], self._comm)
            broadcast_optimizer(self.optimizer, self._comm, self._device, keep=self._sound)
        lockstep = any(choice.pace == "lockstep" for choice in self._exchanger.store.choices.values())
        if lockstep or not self._sound:
            self._step = max(member.step for member in epoch.members[: num_sound or 1])
        self._made = made = self._maker.remake(self._made, self._step)
        self._exchanger, self._weights = made.exchanger, made.weights
        if made.weights is not None:
            made.weights.follow()
            counters = made.weights.counters
            rounds = counters[:, 1].contiguous()
            broadcast_tensors([*made.exchanger.store.shared(), rounds], self._comm)
            counters[:, 1] = rounds
            made.weights.counters = counters
        self._sound = True


def begin(
    model: nn.Module,
    optimizer: Optimizer,
    plan: SyncPlan,
    elastic: Elastic,
    *,
    group: ProcessGroup | None,
    timeout_s: float,
    nonfinite: NonFinite,
) -> ElasticRun:
    """Begin an elastic run, or join one."""
    _require_possible(model, plan)
    party = Party(group, min_ranks=elastic.min_ranks, regroup_s=elastic.regroup_s, timeout_s=timeout_s)
    try:
        party.require_same(_fingerprint(model, plan))
        return ElasticRun(model, optimizer, plan, party=party, nonfinite=nonfinite)
    except BaseException:
        party.leave()
        raise


def _require_possible(model: nn.Module, plan: SyncPlan) -> None:
    if isinstance(model, DistributedDataParallel):
        raise ValueError(
            "an elastic run needs a plain module, but got a DistributedDataParallel: DDP talks to all ranks of its "
            "group by itself (about its buckets, about unused parameters), and would wait for a lost rank; pass "
            "model.module, and call run.model."
        )
    if not plan.between_steps or any(rule.choice.served for rule in plan.rules):
        raise ValueError(
            f"an elastic run needs a plan whose ranks exchange weights between steps, but {plan.name or plan.hash!r} "
            "exchanges gradients, whose mean is not known without the lost rank; use gossip, local_sgd, diloco or "
            "async_average, without a warm-up, or leave `elastic` out and resume from a checkpoint."
        )
    for rule in plan.rules:
        if rule.choice.graph is not None and rule.choice.graph.kind == "matrix":
            raise ValueError(
                f"the mixing matrix is for {len(rule.choice.graph.rows)} ranks, but the number of ranks of an elastic "
                "run changes; use a graph that has a rule, such as 'ring'."
            )
    device = next(p.device for p in model.parameters() if p.requires_grad)
    if device.type != "cpu":
        raise ValueError(
            f"an elastic run talks through Gloo, on CPU tensors, but the model is on {device}: a group of another "
            "backend cannot be left when a rank is lost."
        )


def _fingerprint(model: nn.Module, plan: SyncPlan) -> str:
    tensors = {n: v for n, v in model.state_dict().items() if isinstance(v, Tensor)}
    shapes = " ".join(f"{name} {tuple(value.shape)} {value.dtype}" for name, value in tensors.items())
    return f"plan {plan.hash}, model {zlib.crc32(shapes.encode()):08x}"


def _tensors_to_meet(module: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """Return what ranks have apart, and becomes a mean, and what they have alike: frozen, or not of floating point."""
    everything = [*module.parameters(), *module.buffers()]
    apart = [t for t in everything if t.is_floating_point() and (t.requires_grad or not isinstance(t, nn.Parameter))]
    ids = {id(tensor) for tensor in apart}
    return apart, [tensor for tensor in everything if id(tensor) not in ids]


def _mean_of_sound(tensors: list[Tensor], comm: Comm, num_sound: int, *, sound: bool) -> None:
    """Replace each tensor by its mean over the ranks that hold a state."""
    for tensor in tensors:
        mean = tensor.detach().to(torch.float32, memory_format=torch.contiguous_format, copy=True)
        if not sound:
            mean.zero_()
        comm.all_reduce(mean).wait()
        tensor.detach().copy_(mean.mul_(1 / num_sound))


def _tell(rank: int, before: Epoch, now: Epoch, step: int) -> None:
    ranks, here = ", ".join(str(m.rank) for m in now.members), {m.rank for m in now.members}
    lost = [str(m.rank) for m in before.members if not m.closing and m.rank not in here]
    if lost:
        _log.warning("rank %d: lost rank %s; ranks %s go on after step %d", rank, ", ".join(lost), ranks, step)
    else:
        _log.info("rank %d: ranks %s go on after step %d", rank, ranks, step)
