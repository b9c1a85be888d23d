"""The groups of ranks that a module talks through: its own, so that nothing comes between."""

from collections.abc import Sequence

import torch

from pliant.comm.base import Comm, duplicate
from pliant.comm.hierarchical import hierarchical_comm
from pliant.comm.recorded import RecordedComm
from pliant.recsys.exchange import Talk
from pliant.spec.embedding import EmbeddingPlan

__all__ = ["Ranks", "require_ranks"]


def require_ranks(plan: EmbeddingPlan, comm: Comm, hosts: Sequence[Sequence[int]] | None) -> None:
    """Raise ValueError unless a plan is for these ranks, and hosts are named where it needs them."""
    if comm.size != plan.num_ranks:
        raise ValueError(f"the plan is for {plan.num_ranks} ranks, but there are {comm.size}; make one for these.")
    if plan.hierarchical and hosts is None:
        raise ValueError("the plan sums gradients inside hosts first; say by `hosts` which ranks share one.")


class Ranks:
    """One group for lookups and sums, and one more for what is asked ahead, which another thread talks through.

    Attributes:
        comm: All ranks.
        talk: Pairwise exchanges.
        sums: Counts what sums of replicas' gradients cost.
        sum_over: What these go through: hosts first, if they are given.

    """

    def __init__(self, comm: Comm, hosts: Sequence[Sequence[int]] | None, device: torch.device) -> None:
        self._device = device
        self.comm = duplicate(comm)
        self.talk = Talk(self.comm, device)
        self.sums = RecordedComm(self.comm)
        self._by_hosts = None if hosts is None else hierarchical_comm(self.sums, hosts)
        self.sum_over: Comm = self._by_hosts or self.sums

    @property
    def rank(self) -> int:
        """Number of this rank."""
        return self.comm.rank

    @property
    def size(self) -> int:
        """Number of ranks in all."""
        return self.comm.size

    def another(self) -> Talk:
        """Return exchanges through a group of their own. Collective."""
        return Talk(duplicate(self.comm), self._device)

    def close(self) -> None:
        """Free the groups of the hosts."""
        if self._by_hosts is not None:
            self._by_hosts.close()
        self.comm.close()
