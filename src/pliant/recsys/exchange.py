"""Messages between each two ranks: several tensors in one, posted before anybody needs them."""

import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pliant.comm.base import Comm, Work

__all__ = ["Swap", "Talk"]

Parts = Sequence[Sequence[Tensor]]
"""For each rank the tensors that are one message; contiguous; this rank's own entry is not looked at."""


class Talk:
    """Pairwise exchanges over a comm of one's own, counted by phase."""

    def __init__(self, comm: Comm, device: torch.device) -> None:
        self.comm = comm
        self._device = device
        self.sent_bytes: Counter[str] = Counter()
        self.received_bytes: Counter[str] = Counter()
        self.wait_s: defaultdict[str, float] = defaultdict(float)

    def swap(self, phase: str, sends: Parts, receives: Parts) -> "Swap":
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
        return Swap(talk=self, phase=phase, work=self.comm.exchange(out, into), held=[x for _, x in out], unpack=unpack)

    def _joined(self, parts: Sequence[Tensor]) -> Tensor | None:
        full = [part for part in parts if part.numel()]
        if len(full) < 2:
            return full[0] if full else None
        return torch.cat([part.view(-1).view(torch.uint8) for part in full])


@dataclass(kw_only=True, eq=False)
class Swap:
    """An exchange on its way."""

    talk: Talk
    phase: str
    work: Work
    held: list[Tensor] = field(repr=False)
    """What is being sent: kept until it has gone."""
    unpack: list[tuple[Tensor, list[Tensor]]] = field(repr=False)

    def wait(self) -> None:
        """Wait until all has come and gone. Raises CommError."""
        start_s = time.perf_counter()
        self.work.wait()
        self.talk.wait_s[self.phase] += time.perf_counter() - start_s
        for buffer, parts in self.unpack:
            at = 0
            for part in parts:
                part.view(-1).view(torch.uint8).copy_(buffer[at : at + part.nbytes])
                at += part.nbytes
        self.held, self.unpack = [], []
