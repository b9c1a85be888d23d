"""Progress of a rank in its groups, so that a wait that times out can name the ranks that did not arrive."""

import threading
from collections.abc import Mapping
from typing import Any

__all__ = ["Progress", "Told", "late_ranks"]

Told = Mapping[str, Mapping[str, Any]]
"""Report of a rank on its groups: name -> `Progress.told`, as JSON has it."""


class Progress:
    """Communications that this rank has begun in one group, and those it awaits.

    Every member begins the same collectives in the same order, and messages between two ranks keep theirs. So a member
    has come to all that this rank waits for exactly when it has begun as much towards this rank as this rank awaits.

    Args:
        members: The group's ranks, by their numbers in the run.
        total: Ranks of the run.

    """

    def __init__(self, members: tuple[int, ...], total: int) -> None:
        self.members, self.total = members, total
        self._lock = threading.Lock()  # two threads may send, under two tags
        self._collectives = 0
        self._sent, self._awaited = [0] * len(members), [0] * len(members)
        self.waits: set[int] = set()
        """Communications that this rank waits for, by any number; a set, since threads add and discard at once."""

    def collective(self) -> None:
        """Count a communication of all members."""
        self._collectives += 1

    def sends(self, peer: int) -> None:
        """Count a message to a member, by its number in the group."""
        with self._lock:
            self._sent[peer] += 1

    def awaits(self, peer: int) -> None:
        """Count a message that a member is to send."""
        with self._lock:
            self._awaited[peer] += 1

    @property
    def told(self) -> dict[str, Any]:
        """Communications begun towards each member, those awaited of each, and whether this rank is waiting for any."""
        return {
            "begun": {str(r): self._collectives + n for r, n in zip(self.members, self._sent, strict=True)},
            "awaited": {str(r): self._collectives + n for r, n in zip(self.members, self._awaited, strict=True)},
            "waits": bool(self.waits),
        }


def late_ranks(rank: int, name: str, told: Mapping[int, Told]) -> dict[int, int]:
    """Return the ranks that delay a rank in a group -> how many communications they are behind.

    A late rank that itself waits, in this group or another, is not the cause: the rank that it waits for is.

    Args:
        rank: The rank that has waited.
        name: The group in which it did.
        told: Report of each rank, as far as there is one.

    """
    return _late(rank, name, told, {rank})


def _late(rank: int, name: str, told: Mapping[int, Told], seen: set[int]) -> dict[int, int]:
    found: dict[int, int] = {}
    for other, due in told.get(rank, {}).get(name, {}).get("awaited", {}).items():
        peer = int(other)
        theirs = told.get(peer, {})
        behind = int(due) - int(theirs.get(name, {}).get("begun", {}).get(str(rank), 0))
        if behind <= 0 or peer in seen or peer not in told:
            continue
        seen.add(peer)
        deeper: dict[int, int] = {}
        for group, each in theirs.items():
            if each["waits"]:
                deeper |= _late(peer, group, told, seen)
        found |= deeper or {peer: behind}
    return found
