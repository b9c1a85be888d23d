"""Schedules: rounds of moves of a collective's blocks."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, Literal

from pliant.spec.exchange import Exchange
from pliant.spec.inside import with_children
from pliant.spec.plain import LATER
from pliant.spec.topology import Topology

__all__ = ["Move", "OwnerScheduling", "Schedule", "Scheduling", "with_schedule"]

_MOST = 1 << 20


@dataclass(frozen=True, kw_only=True, order=True, slots=True)
class Move:
    """One block on its way from a rank to another.

    `reduce`: the source hands over its partial sum and keeps nothing; the target adds it to what it has. `copy`: the
    source has the complete sum, keeps it, and the target has it from then on as well.
    """

    source: int
    target: int
    block: int
    kind: Literal["reduce", "copy"]


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Rounds of moves. A round sends what its senders had when the round began; rounds follow one another.

    Since a partial sum is moved, never copied, every contribution is in one place exactly once, and the only rank with
    a partial sum has the sum.
    """

    name: str
    num_ranks: int
    num_blocks: int
    rounds: tuple[tuple[Move, ...], ...]
    shares: tuple[float, ...] = field(default=(), metadata=LATER)
    """Share of a dense vector that each block is; empty if all are alike."""

    def __post_init__(self) -> None:
        if not (1 <= self.num_ranks <= _MOST and 0 <= self.num_blocks <= _MOST):
            raise ValueError(
                f"schedule {self.name!r} is for {self.num_ranks} ranks and {self.num_blocks} blocks, but ranks are 1 "
                f"to {_MOST}, blocks 0 to {_MOST}."
            )
        if self.shares and not (
            len(self.shares) == self.num_blocks and min(self.shares) >= 0 and abs(sum(self.shares) - 1) < 1e-6
        ):
            raise ValueError(
                f"schedule {self.name!r} has {self.num_blocks} blocks and {len(self.shares)} shares of a vector, whose "
                f"sum is {sum(self.shares):g}; give one of at least 0 for each block, which are 1 together."
            )

    @property
    def parts(self) -> tuple[float, ...]:
        """Share of each block in a dense vector."""
        return self.shares or (1 / max(self.num_blocks, 1),) * self.num_blocks

    def cuts(self, numel: int, granularity: int = 1) -> tuple[int, ...]:
        """Return where the blocks of a dense vector of so many elements begin, and where the last one ends.

        They begin at multiples of `granularity`.
        """
        num_units = -(-numel // granularity)
        inner = [min(numel, granularity * round(num_units * part)) for part in accumulate(self.parts)]
        return (0, *inner[:-1], numel) if inner else (0,)

    @property
    def brief(self) -> str:
        """Name, and number of rounds."""
        return f"{self.name}, {len(self.rounds)} rounds"

    @property
    def num_moves(self) -> int:
        """Moves of all rounds."""
        return sum(len(moves) for moves in self.rounds)

    def messages(self, index: int) -> Mapping[tuple[int, int], tuple[tuple[int, ...], tuple[int, ...]]]:
        """Return the messages of a round: (source, target) -> (blocks to reduce, blocks to copy), both ascending.

        Between two ranks there is at most one message per round and direction; pairs are in ascending order.
        """
        found: dict[tuple[int, int], tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
        for move in self.rounds[index]:
            found[move.source, move.target][move.kind == "copy"].append(move.block)
        return {pair: (tuple(sorted(found[pair][0])), tuple(sorted(found[pair][1]))) for pair in sorted(found)}


Scheduling = Literal["ring", "auto"] | Topology | Schedule
"""How a sum goes over the network: by the backend's own all-reduce (of Gloo a ring), and in codes by owners of equal
parts; by the fastest schedule for the links that are measured when training starts, or for those of a topology; or by a
given schedule."""

OwnerScheduling = Literal["direct", "auto"] | Topology | Schedule
"""How sums go to the owners of parts, and what they make of them back to all: straight from every rank to each owner,
and from there to each rank; by the fastest schedule, as in `Scheduling`; or by a given schedule, whose partial sums end
on the owners."""


def with_schedule(
    node: Exchange,
    schedule: Scheduling | OwnerScheduling | Callable[[Exchange], Scheduling | OwnerScheduling],
) -> Exchange:
    """Return the node with a schedule in the place of each that is "auto", in all nodes inside it as well.

    Args:
        node: Node whose schedules are to be known.
        schedule: The schedule, or what returns that of a node.

    """
    known = with_children(node, lambda inner: with_schedule(inner, schedule))
    if getattr(node, "schedule", "") != "auto":
        return known
    changed: dict[str, Any] = {"schedule": schedule(node) if callable(schedule) else schedule}
    return replace(known, **changed)
