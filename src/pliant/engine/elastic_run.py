"""Elastic runs: they continue without lost ranks, and accept new ones."""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from pliant.comm.base import CommError
from pliant.comm.elastic import ElasticGroup, NotSignedError
from pliant.comm.recorded import RecordedComm
from pliant.comm.records import Epoch
from pliant.comm.transport import by_host, comm_alone
from pliant.engine.epoch_sync import average_members, send_first_state
from pliant.engine.gradient_exchange import NonFinite
from pliant.engine.plan_resolution import PlanLike
from pliant.engine.relaxed_model import RelaxedModel
from pliant.engine.run import Run
from pliant.engine.weight_parts import BetweenSteps
from pliant.spec import SyncPlan

__all__ = ["ElasticRun"]

T = TypeVar("T")

_MOST_ATTEMPTS = 20
_MOST_REFUSALS = 3
_log = logging.getLogger("pliant")


class ElasticRun(Run):
    """A run whose ranks may leave and join at any moment.

    When an exchange fails, or a rank joins or leaves, the ranks that are there agree on the members of the next epoch
    and make a new group. Weights, and floating-point buffers, become their mean over members with a state. A new member
    gets that mean, and optimizer state, step and outer state from the first member. What was in flight is dropped:
    steps since the last exchange are in the mean, so only those of a lost rank are lost. A rank is lost when it says
    so, or sends no heartbeat for 5 s.
    """

    def __init__(self, held: RelaxedModel, plan: SyncPlan, *, party: ElasticGroup, nonfinite: NonFinite) -> None:
        self._party = party
        self._sound = False
        device = next(iter(held.parameters.values())).device
        comm = RecordedComm(comm_alone(device))  # a rank is alone until it has met the others
        super().__init__(held, plan, comm=comm, hosts=None, agreement_every=0, nonfinite=nonfinite)
        self.tracer.shutdown.add(party)
        try:
            self._regroup()
        except BaseException:
            self._release()
            raise

    @property
    def members(self) -> tuple[int, ...]:
        """Ranks that train now, by their numbers in the world for which they were started."""
        return tuple(member.rank for member in self._party.epoch.members)

    def consolidate(self, *, whole: bool = True) -> dict[str, Tensor]:
        """Return the model to evaluate or export, from the current members. Collective, after the same step."""
        consolidate = super().consolidate
        return self._enduring(lambda: consolidate(whole=whole))

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's state; ``rank<i>`` counts among the members. At a free pace the call is collective."""
        return self._enduring(super().state_dict)

    def save(self, path: str | Path, *, scheduler: Any = None, scaler: Any = None) -> None:
        """Write a checkpoint of the members; after a loss, of the remaining ones. Collective, after the same step."""
        save = super().save
        self._enduring(lambda: save(path, scheduler=scheduler, scaler=scaler))

    def load_state_dict(self, state: Mapping[str, Any], *, scaler: Any = None) -> None:
        """Continue from a state_dict, before a rank is lost or joins. Collective.

        Raises:
            ValueError: As for any run; or the run has continued with other ranks, and a joining rank loads nothing,
                since it gets its state from those that train.

        """
        if self._party.epoch.number > 0:
            raise ValueError(
                f"the ranks of this elastic run have changed {self._party.epoch.number} times, and a state is loaded "
                "by all that saved it, before any is lost or comes; a rank that joins gets its state from the others."
            )
        super().load_state_dict(state, scaler=scaler)

    def switch(self, what: PlanLike, *, pay: bool = True) -> None:
        """Refuse to change the plan, since ranks that join later would not know of it.

        Raises:
            ValueError: Always.

        """
        raise ValueError(
            "an elastic run keeps its plan, because a rank that joins later brings the one it was started with; "
            "close() it and relax() anew."
        )

    def close(self) -> None:
        """Average with the others once more, and leave; the others continue without this rank.

        At a free pace it waits for all that train, and averages with them, until they close as well.
        """
        if not self._open or self.tracer.shutdown.over:
            return
        try:
            self.catch_up()
            self._enduring(lambda: self._executor.hand_back(self._dispatcher.step))
            self._regroup(closing=True)
            if all(member.closing for member in self._party.epoch.members):
                self._party.finalize()
        finally:
            self._release()

    def _release(self, *, broken: bool = False) -> None:
        super()._release(broken=broken)
        self._party.leave()

    def _after_step(self) -> None:
        if self._party.is_over:
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

    def _enduring(self, act: Callable[[], T]) -> T:
        """Call a collective function, again after each loss."""
        while True:
            try:
                return act()
            except CommError:
                pass
            self._regroup()

    def _regroup(self, *, closing: bool = False) -> None:
        """Agree on the members that continue, and form their group. Raises CommError if too few are left."""
        failure, num_refused = "", 0
        for _ in range(_MOST_ATTEMPTS):
            self._comm.hang_up()  # so that nobody waits for this rank, whatever still holds its connections
            self._executor.close()
            self._comm.close()
            before = self._party.epoch
            epoch = self._party.agree(step=self._dispatcher.step, sound=self._sound, closing=closing)
            try:
                self._comm.go_on_with(by_host(self._party.connect(), self._device))
                self._meet(epoch)
                # Note: who leaves hangs up. If it did so when it is done itself, a member that is not would fail, and
                # go on with other weights than those that have left; so all wait for all, or try again together.
                if any(member.closing for member in epoch.members):
                    self._party.meet()
            except NotSignedError as error:
                num_refused += 1
                if num_refused == _MOST_REFUSALS:
                    raise
                failure = str(error)
                continue
            except CommError as error:
                failure = str(error)
                continue  # one more is lost, or has come
            _tell(self._party.rank, before, epoch, self._dispatcher.step)
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
        average_members(self._module, self.optimizer, self._comm, self._party, self._device)
        lockstep = any(node.timing.pace == "lockstep" for node in self._gradients.store.nodes.values())
        if lockstep or not self._sound:
            self._dispatcher.step = max(member.step for member in epoch.members[: num_sound or 1])
        self._executor = made = self._executor_builder.rebuild(self._executor, self._dispatcher.step)
        self._gradients = made.gradients
        between = made.of(BetweenSteps)
        rounds = torch.tensor([count for part in between for count in part.rounds], dtype=torch.int64)
        for part in between:
            part.reset_reference()
        send_first_state([*made.gradients.store.shared(), rounds], self._comm, self._party)
        counts = iter(rounds.tolist())
        for part in between:
            part.rounds = [next(counts) for _ in part.rounds]
        self._sound = True


def _tell(rank: int, before: Epoch, now: Epoch, step: int) -> None:
    ranks, here = ", ".join(str(m.rank) for m in now.members), {m.rank for m in now.members}
    lost = [str(m.rank) for m in before.members if not m.closing and m.rank not in here]
    if lost:
        _log.warning("rank %d: lost rank %s; ranks %s go on after step %d", rank, ", ".join(lost), ranks, step)
    else:
        _log.info("rank %d: ranks %s go on after step %d", rank, ranks, step)
