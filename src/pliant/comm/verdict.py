"""Verdict on a communication that failed, in the words of each rank."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Verdict"]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Record that the rank that finds out first writes down, and all others read."""

    gone: tuple[int, ...] = ()
    """Ranks without a heartbeat."""
    late: Mapping[int, int] = field(default_factory=dict[int, int])
    """Ranks that are alive, but have not come -> how many communications they are behind."""
    by: int = -1
    """Rank that has found it out; -1 if none did."""

    @property
    def text(self) -> str:
        """The verdict as JSON; `read` reads it."""
        return json.dumps({"gone": self.gone, "late": self.late, "by": self.by})

    @classmethod
    def read(cls, text: bytes) -> "Verdict":
        """Return what a rank has written down."""
        told: dict[str, Any] = json.loads(text)
        late = {int(rank): int(behind) for rank, behind in told["late"].items()}
        return cls(gone=tuple(told["gone"]), late=late, by=told["by"])

    def sentence(self, me: int, timeout_s: float) -> str:
        """Return the causing ranks, and the cure, as one rank sees it."""
        gone = [rank for rank in self.gone if rank != me]
        late = {rank: behind for rank, behind in self.late.items() if rank != me}
        cure = f"raise timeout_s ({timeout_s:g}s), or let all ranks take the same steps"
        if gone:
            return f"rank {', '.join(map(str, gone))} is gone (no sign of life)"
        if late:
            behind = ", ".join(f"rank {rank} is alive, but {_exchanges(n)} behind" for rank, n in late.items())
            return f"{behind}; it may be evaluating or saving; {cure}"
        if self.gone and self.by == me:  # by a rank that would host the store
            return "the store in which ranks give signs of life does not answer; its host is lost, or out of reach"
        if self.gone:
            return f"rank {self.by} saw no sign of life from this rank and has given up; was this process stopped?"
        if self.late:
            behind = _exchanges(self.late[me])
            return f"rank {self.by} has waited for this rank, which was {behind} behind, and has given up; {cure}"
        return f"all ranks live and have come to this exchange; the network may be cut or slow; {cure}"


def _exchanges(num: int) -> str:
    return f"{num} exchange{'' if num == 1 else 's'}"
