"""Parameters with owners, which step them and send the new weights to all ranks."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from pliant.accelerator import finish_copies
from pliant.buckets import as_real
from pliant.comm.base import Comm, CommError
from pliant.engine.algorithm_state import AlgorithmState
from pliant.engine.initial_sync import broadcast_data

__all__ = ["OwnerStep", "pack", "unpack"]


class OwnerStep:
    """Parameters with one owner each, and the optimizer's state, which only owners hold.

    The optimizer's state of others' parameters is dropped here; `give_all` brings it back.

    Args:
        store: Nodes and state of all parameters; the slot "owner" holds the rank of each.
        comm: Comm of the run.
        optimizer: Optimizer whose state is divided.

    """

    def __init__(self, store: AlgorithmState, comm: Comm, optimizer: Optimizer) -> None:
        self._comm, self._optimizer = comm, optimizer
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        ours = [n for n, node in store.nodes.items() if node.has_owners and id(store.parameters[n]) in held]
        self._owners = {name: int(store.tensors[name]["owner"]) for name in ours}
        self.parameters = {name: store.parameters[name] for name in self._owners}
        lockstep = [name for name in self._owners if store.nodes[name].staleness_bound is None]
        # Per owner and dtype: the parameters that travel in one message.
        self._packets: dict[tuple[int, torch.dtype], tuple[Tensor, list[Tensor]]] = {}
        for rank in range(comm.size):
            for dtype in dict.fromkeys(self.parameters[n].dtype.to_real() for n in lockstep):
                held = [self.parameters[n] for n in lockstep if self._owners[n] == rank]
                held = [p for p in held if p.dtype.to_real() == dtype]
                if held and comm.size > 1:
                    flat = torch.empty(sum(as_real(p).numel() for p in held), dtype=dtype, device=held[0].device)
                    self._packets[rank, dtype] = flat, held
        self.drop_others()

    @property
    def names(self) -> set[str]:
        """All parameters that have an owner."""
        return set(self._owners)

    def names_of(self, rank: int) -> list[str]:
        """Return the parameters that a rank owns, in the model's order."""
        return [name for name, own in self._owners.items() if own == rank]

    def before_step(self) -> None:
        """Drop gradients of others' parameters, so that the optimizer leaves those alone."""
        for name, own in self._owners.items():
            if own != self._comm.rank:
                self.parameters[name].grad = None

    @torch.no_grad()
    def share(self, step: int) -> None:
        """Send new weights to all, and receive theirs. Collective; runs in the communication thread, after a step."""
        me, size = self._comm.rank, self._comm.size
        sends: list[tuple[int, Tensor]] = []
        receives: list[tuple[int, Tensor]] = []
        for (rank, _), (flat, held) in self._packets.items():
            if rank == me:
                pack(flat, held)
                sends += [((me + k) % size, flat) for k in range(1, size)]  # rotated: nobody's first is another's
            else:
                receives.append((rank, flat))
        try:
            self._comm.exchange(sends, receives).wait()
        except CommError as error:
            text = f"while sending new weights to all after step {step}: {error}"
            raise CommError(text, rank=error.rank, op=error.op, lost=error.lost) from error
        for (rank, _), (flat, held) in self._packets.items():
            if rank != me:
                unpack(flat, held)

    def give_all(self) -> None:
        """Give every rank the whole optimizer state. Collective."""
        for rank in range(self._comm.size) if self._comm.size > 1 else ():
            names = self.names_of(rank)
            device = next(iter(self.parameters.values())).device
            theirs = broadcast_data([dict(self._state_of(name)) for name in names], rank, self._comm, device)
            if rank != self._comm.rank:
                for name, state in zip(names, theirs, strict=True):
                    if state:
                        self._optimizer.state[self.parameters[name]] = state

    def _state_of(self, name: str) -> Mapping[str, Any]:
        return self._optimizer.state.get(self.parameters[name], {})

    def drop_others(self) -> None:
        """Drop the optimizer's state of others' parameters."""
        for name, own in self._owners.items():
            if own != self._comm.rank:
                self._optimizer.state.pop(self.parameters[name], None)


def pack(flat: Tensor, tensors: list[Tensor]) -> None:
    """Copy tensors, one after another, to flat, (sum of their elements,); complex ones as pairs of real numbers."""
    reals = [as_real(tensor) for tensor in tensors]
    for part, tensor in zip(flat.split([t.numel() for t in reals]), reals, strict=True):
        part.view(tensor.shape).copy_(tensor, non_blocking=True)
    if reals and flat.device != reals[0].device:
        finish_copies(reals[0].device)


@torch.no_grad()
def unpack(flat: Tensor, tensors: list[Tensor]) -> None:
    """Copy flat, (sum of their elements,), to tensors; pairs of it to those that are complex.

    What is in host memory is not to be overwritten before the next `pack` on the same stream, which waits for copies.
    """
    reals = [as_real(tensor) for tensor in tensors]
    for part, tensor in zip(flat.split([t.numel() for t in reals]), reals, strict=True):
        tensor.copy_(part.view(tensor.shape), non_blocking=True)
