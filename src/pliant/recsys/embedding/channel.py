"""Messages between each two ranks, several tensors in one, and the groups of ranks that a module sends them through."""

import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pliant.comm.agreement import require_same
from pliant.comm.base import Comm, Work, duplicate
from pliant.comm.hierarchical import hierarchical_comm
from pliant.comm.recorded import RecordedComm
from pliant.spec import canonical_hash
from pliant.spec.embedding import EmbeddingPlan

__all__ = ["LookupGroups", "PairwiseChannel", "PendingTransfer"]

Parts = Sequence[Sequence[Tensor]]
"""For each rank the tensors that are one message; contiguous; this rank's own entry is not looked at."""


class PairwiseChannel:
    """Pairwise exchanges over a comm of one's own, counted by phase."""

    def __init__(self, comm: Comm, device: torch.device) -> None:
        self.comm = comm
        self._device = device
        self.sent_bytes: Counter[str] = Counter()
        self.received_bytes: Counter[str] = Counter()
        self.wait_s: defaultdict[str, float] = defaultdict(float)

    def exchange(self, phase: str, sends: Parts, receives: Parts) -> "PendingTransfer":
        """Post one message to and from each rank, none where it would be empty; `receives` are full after wait()."""
        rank = self.comm.rank
        out = [(peer, x) for peer, parts in enumerate(sends) if peer != rank and (x := self._joined(parts)) is not None]
        into: list[tuple[int, Tensor]] = []
        unpack: list[tuple[Tensor, list[Tensor]]] = []
        for peer, parts in enumerate(receives):
            full = [part for part in parts if part.numel()]
            if peer == rank or not full:
                continue
            if len(full) == 1:
                into.append((peer, full[0]))
                continue
            buffer = torch.empty(sum(part.nbytes for part in full), dtype=torch.uint8, device=self._device)
            into.append((peer, buffer))
            unpack.append((buffer, full))
        self.sent_bytes[phase] += sum(x.nbytes for _, x in out)
        self.received_bytes[phase] += sum(x.nbytes for _, x in into)
        return PendingTransfer(
            channel=self, phase=phase, work=self.comm.exchange(out, into), held=[x for _, x in out], unpack=unpack
        )

    def _joined(self, parts: Sequence[Tensor]) -> Tensor | None:
        full = [part for part in parts if part.numel()]
        if len(full) < 2:
            return full[0] if full else None
        return torch.cat([part.view(-1).view(torch.uint8) for part in full])


@dataclass(kw_only=True, eq=False)
class PendingTransfer:
    """An exchange on its way."""

    channel: PairwiseChannel
    phase: str
    work: Work
    held: list[Tensor] = field(repr=False)
    """Tensors being sent: kept until they have gone."""
    unpack: list[tuple[Tensor, list[Tensor]]] = field(repr=False)

    def wait(self) -> None:
        """Wait until all has come and gone. Raises CommError."""
        start_s = time.perf_counter()
        self.work.wait()
        self.channel.wait_s[self.phase] += time.perf_counter() - start_s
        for buffer, parts in self.unpack:
            at = 0
            for part in parts:
                part.view(-1).view(torch.uint8).copy_(buffer[at : at + part.nbytes])
                at += part.nbytes
        self.held, self.unpack = [], []


class LookupGroups:
    """One group for lookups and sums, and one more for what is asked ahead, which another thread talks through.

    Attributes:
        comm: All ranks.
        channel: Pairwise exchanges.
        sums: Counts what sums of replicas' gradients cost.
        sum_over: What these go through: hosts first, if the plan is hierarchical.

    Raises:
        ValueError: The plan is for other ranks, differs between them, or needs hosts that are not named.

    """

    def __init__(
        self, plan: EmbeddingPlan, comm: Comm, hosts: Sequence[Sequence[int]] | None, device: torch.device
    ) -> None:
        if comm.size != plan.num_ranks:
            raise ValueError(f"the plan is for {plan.num_ranks} ranks, but there are {comm.size}; make one for these.")
        if plan.hierarchical and hosts is None:
            raise ValueError("the plan sums gradients inside hosts first; say by `hosts` which ranks share one.")
        self._device = device
        self.comm = duplicate(comm)
        self.channel = PairwiseChannel(self.comm, device)
        require_same(self.comm, "the plan", canonical_hash(plan), device)
        self.sums = RecordedComm(self.comm)
        self._by_hosts = hierarchical_comm(self.sums, hosts) if plan.hierarchical and hosts is not None else None
        self.sum_over: Comm = self._by_hosts or self.sums

    def another(self) -> PairwiseChannel:
        """Return exchanges through a group of their own. Collective."""
        return PairwiseChannel(duplicate(self.comm), self._device)

    def close(self) -> None:
        """Free the groups of the hosts."""
        if self._by_hosts is not None:
            self._by_hosts.close()
        self.comm.close()
