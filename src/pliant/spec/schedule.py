"""Schedules: rounds of moves of a collective's blocks."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

__all__ = ["Move", "Schedule"]

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

    def __post_init__(self) -> None:
        if not (1 <= self.num_ranks <= _MOST and 0 <= self.num_blocks <= _MOST):
            raise ValueError(
                f"schedule {self.name!r} is for {self.num_ranks} ranks and {self.num_blocks} blocks, but ranks are 1 "
                f"to {_MOST}, blocks 0 to {_MOST}."
            )

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
