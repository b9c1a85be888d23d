"""Protocol of a comm: a rank, a size, and the calls by which ranks communicate."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

__all__ = [
    "Comm",
    "CommError",
    "Limit",
    "PeerSlots",
    "PeerTensors",
    "ReduceOp",
    "Work",
    "duplicate",
    "require_contiguous",
    "require_numel",
]

ReduceOp = Literal["sum", "min", "max"]

PeerTensors = Sequence[tuple[int, Tensor]]
"""Tensors, each with the rank that it goes to or comes from."""


class PeerSlots(list[tuple[int, Tensor]]):
    """Tensors of peers that lie in one, so that a comm may copy all of them at once.

    Args:
        whole: Tensor in which they lie, (numel,); what lies between them is of no use to anybody.
        ranges: Rank, start and stop of each.

    """

    def __init__(self, whole: Tensor, ranges: Sequence[tuple[int, int, int]]) -> None:
        super().__init__((peer, whole[start:stop]) for peer, start, stop in ranges)
        self.whole, self._ranges = whole, ranges

    def on(self, other: Tensor) -> "PeerSlots":
        """Return the same slots of another tensor."""
        return PeerSlots(other, self._ranges)


class CommError(RuntimeError):
    """A collective failed; the message says on which rank, in which operation and why, and the engine adds the bucket.

    Attributes: `rank` (that noticed), `op` (the collective), `lost` (ranks that are gone, if known).
    """

    def __init__(self, message: str, *, rank: int, op: str, lost: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.rank = rank
        self.op = op
        self.lost = lost


@dataclass(kw_only=True)
class Limit:
    """The longest wait for one communication, which a comm shares with all that is split from it."""

    timeout_s: float


class Work(Protocol):
    """A communication in flight."""

    def wait(self) -> None:
        """Block until it is done (on CUDA: until the current stream may use the result). Raises CommError.

        Once it has returned, waiting again returns at once; once it has raised, waiting again raises.
        """
        ...


class Comm(Protocol):
    """Protocol of a group of ranks that communicate. It is never torch's default group: comms are always arguments.

    Every tensor must be contiguous: Gloo sums non-contiguous ones wrongly without an error. Every rank of the group
    makes the same calls in the same order, from one thread (Note [one order of collectives]). Each implementation has a
    timeout on every call.
    """

    @property
    def rank(self) -> int:
        """This rank, 0..size-1, within the group."""
        ...

    @property
    def size(self) -> int:
        """Ranks in the group."""
        ...

    @property
    def timeout_s(self) -> float:
        """Longest wait for one communication."""
        ...

    def all_reduce(self, x: Tensor, op: ReduceOp = "sum") -> Work:
        """Replace x on every rank by the sum, minimum or maximum over ranks."""
        ...

    def all_gather(self, out: Tensor, x: Tensor) -> Work:
        """Fill out, (size * numel,), with every rank's x, (numel,), in the order of ranks."""
        ...

    def reduce_scatter(self, out: Tensor, x: Tensor, op: ReduceOp = "sum") -> Work:
        """Fill out, (numel,), with this rank's part of the reduced x, (size * numel,)."""
        ...

    def all_to_all(self, out: Tensor, x: Tensor) -> Work:
        """Send part j of x, (size * numel,), to rank j; part j of out comes from rank j."""
        ...

    def exchange(
        self, sends: PeerTensors, receives: PeerTensors, *, turn: int = 0, tag: int = 0, patience_s: float | None = None
    ) -> Work:
        """Post all receives, then all sends, each with its peer; messages of a tag between two ranks keep their order.

        Sizes and turns must agree on both sides: a receive buffer that is too small ends the process inside Gloo.

        Args:
            sends: Tensors, each with the rank to which it goes.
            receives: Likewise, each with the rank from which it comes.
            turn: Number of these messages in a pipeline, whose messages are under way at once: it spreads them over the
                connections, if there are several.
            tag: Number of an order of its own, in which another thread may send at the same time; where `is_in_order`,
                all tags are one (Note [one order of collectives]).
            patience_s: Longest wait in the place of `timeout_s`, for servers that may be idle.

        """
        ...

    def expect(self, receives: PeerTensors, *, turn: int = 0, tag: int = 0) -> Work:
        """Post receives of a later exchange, so that over Gloo its messages leave without waiting for a word.

        They are due, and may fail, once somebody waits for them; see `comm.StandingReceives`. Not for comms that
        are in order, where a receive before its time would wait for ever.

        Args:
            receives: Tensors, each with the rank from which it comes.
            turn: As in the `exchange` that sends them.
            tag: Likewise; one of `new_tag`, so that no other message meets these receives.

        """
        ...

    def new_tag(self) -> int:
        """Return a tag that no message of this group has had. All ranks call it in the same order; no communication."""
        ...

    def broadcast(self, x: Tensor, root: int) -> Work:
        """Replace x on every rank by root's."""
        ...

    def reduce(self, x: Tensor, root: int) -> Work:
        """Replace x on root by the sum over ranks; elsewhere x is left in an undefined state."""
        ...

    def barrier(self) -> None:
        """Return when every rank has called it."""
        ...

    def split(self, groups: Sequence[Sequence[int]], connections: int = 0) -> "Comm | None":
        """Return the comm of the one of these disjoint groups that holds this rank, or None. Collective.

        It has so many connections between each two ranks over Gloo, or, with 0, as many as this comm has. All messages
        of a comm with one connection go over it; others go in slices over several, if they are large.
        """
        ...

    @property
    def connections(self) -> int:
        """Connections between each two ranks, over which large messages are divided."""
        ...

    @property
    def prefers_collectives(self) -> bool:
        """Whether one collective of all ranks costs less than a message for each pair of them, as on NCCL."""
        ...

    @property
    def is_in_order(self) -> bool:
        """Whether calls of a rank run one after another, as on NCCL; none may need a later one of another rank."""
        ...

    @property
    def is_destroyed(self) -> bool:
        """Whether torch's process groups were destroyed under this comm."""
        ...

    def hang_up(self) -> None:
        """Close this rank's connections, also those of what was split from it: waits on them fail at once.

        Takes no lock and waits for nobody, so that a finalizer may call it in any thread.
        """
        ...

    def close(self) -> None:
        """Free what was opened; a second call does nothing."""
        ...


def duplicate(comm: Comm, connections: int = 0) -> Comm:
    """Return a comm over a new group of the same ranks, with an order of its own. Collective.

    It has so many connections between each two ranks, or, with 0, as many as the comm has.
    """
    own = comm.split([list(range(comm.size))], connections)
    if own is None:
        raise RuntimeError("a group of all ranks was made without this one.")
    return own


def require_contiguous(*tensors: Tensor) -> None:
    """Raise ValueError for a non-contiguous tensor, before Gloo gives a wrong sum."""
    for tensor in tensors:
        if not tensor.is_contiguous():
            raise ValueError(
                f"a tensor of shape {tuple(tensor.shape)} and strides {tensor.stride()} is not contiguous, "
                "and communicating it would give wrong results; pass tensor.contiguous()."
            )


def require_numel(op: str, x: Tensor, wanted: int) -> None:
    """Raise ValueError for a tensor that has not as many elements as this collective needs."""
    if x.numel() != wanted:
        raise ValueError(f"{op} needs a tensor of {wanted} elements here, but got {x.numel()}.")
