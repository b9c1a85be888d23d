"""Coded blocks in each round of a schedule: who encodes, sends, adds up and decodes which."""

from collections.abc import Sequence
from dataclasses import dataclass

from pliant.spec import Schedule

__all__ = ["CodedMessage", "CodedRound", "coded_rounds", "room"]

_ALIGNED_BYTES = 16
"""Multiples at which payloads begin in a message, so that codecs may read and write so many bytes at once."""


@dataclass(frozen=True, kw_only=True)
class CodedMessage:
    """Payloads of blocks from one rank to another, in this order, which is that of the fields."""

    source: int
    target: int
    added: tuple[int, ...]
    """Blocks whose partial sums the source encodes, and the target adds to its own."""
    taken: tuple[int, ...]
    """Blocks whose partial sums the source encodes, where the target has none."""
    copied: tuple[int, ...]
    """Blocks whose sum is complete: the payload is that of the root, and passed on as it is."""

    @property
    def encoded(self) -> tuple[int, ...]:
        """Blocks that the source encodes for it."""
        return (*self.added, *self.taken)

    @property
    def blocks(self) -> tuple[int, ...]:
        """All blocks, in the order of their payloads."""
        return (*self.encoded, *self.copied)


@dataclass(frozen=True, kw_only=True)
class CodedRound:
    """Messages of a round, and what is encoded before any of them is sent."""

    means: tuple[tuple[int, int], ...]
    """(Rank, block): this rank is the root of the block, whose sum is complete, and encodes it once for all."""
    messages: tuple[CodedMessage, ...]
    """In ascending order of sources and targets."""


def coded_rounds(
    schedule: Schedule, numels: Sequence[int], holders: Sequence[Sequence[int]] | None = None
) -> tuple[CodedRound, ...]:
    """Return what happens in each round of a verified schedule of sums; empty blocks are left out.

    A block's moves are a tree: each rank hands its partial sum over once, and the last one that has one is the root.
    So each rank encodes each block once, and nothing is encoded on the way down.

    Args:
        schedule: Of dense sums, or of partial sums on their way to roots alone.
        numels: Elements of each block.
        holders: Ranks that hold each block; all if not given.

    """
    has = [set(ranks) for ranks in holders or [range(schedule.num_ranks)] * schedule.num_blocks]
    """Block -> ranks with a partial sum."""
    known = set[int]()
    """Blocks whose root has encoded the sum."""
    rounds: list[CodedRound] = []
    for index in range(len(schedule.rounds)):
        messages: list[CodedMessage] = []
        means: dict[tuple[int, int], None] = {}
        sent = schedule.messages(index)
        for (source, _), (reduced, _) in sent.items():
            for b in reduced:
                has[b].discard(source)
        for (source, target), (reduced, copied) in sent.items():
            reduced, copied = ([b for b in blocks if numels[b]] for blocks in (reduced, copied))
            means |= dict.fromkeys((source, b) for b in copied if b not in known)
            known |= set(copied)
            added = tuple(b for b in reduced if target in has[b])
            taken = tuple(b for b in reduced if target not in has[b])
            if reduced or copied:
                messages.append(
                    CodedMessage(source=source, target=target, added=added, taken=taken, copied=tuple(copied))
                )
            for b in reduced:
                has[b].add(target)
        rounds.append(CodedRound(means=tuple(means), messages=tuple(messages)))
    return tuple(rounds)


def room(payload_bytes: int) -> int:
    """Return the bytes that a payload takes in a message."""
    return -(-payload_bytes // _ALIGNED_BYTES) * _ALIGNED_BYTES
