"""Who goes on: ranks that have lost each other agree, over a key-value store, on one list of members per epoch.

No torch and no clock in here, so that a test can be every rank's scheduler.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Protocol

__all__ = ["Agreement", "Board", "Epoch", "Member", "MembershipError"]


class MembershipError(RuntimeError):
    """This rank cannot go on with the others, and the message says why."""


class Board(Protocol):
    """What is used of a torch store; every call is atomic."""

    def set(self, key: str, value: str) -> None:
        """Write."""
        ...

    def get(self, key: str) -> bytes:
        """Read a key that is there."""
        ...

    def check(self, keys: list[str]) -> bool:
        """Say whether all keys are there."""
        ...

    def add(self, key: str, value: int) -> int:
        """Add to a counter, 0 at first, and return it."""
        ...

    def compare_set(self, key: str, expected_value: str, desired_value: str) -> bytes:
        """Write if the key is not there and '' is expected; return what is there then."""
        ...


@dataclass(frozen=True, kw_only=True)
class Member:
    """What one rank has announced for an epoch."""

    life: int
    """Which start of which process this is: no two are alike, and a later start has a higher number."""
    rank: int
    """Its number in the world it was started for; a restarted process keeps it."""
    step: int
    """Steps that it has made."""
    sound: bool
    """Whether it holds a state of the run, and not only the one it was started with."""
    closing: bool
    """Whether it leaves once it has met the others."""


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """A list of members, the same on all that read it: sound ones first, and by rank."""

    number: int
    members: tuple[Member, ...]


class Agreement:
    """One rank's part in agreeing. `poll` does one round and waits for nobody.

    Epoch e + 1 begins when anybody calls epoch e over: because a communication failed, because it wants to join, or
    because it leaves. Each rank then announces itself. Whoever sees that all members of epoch e have announced
    themselves, are gone or have been silent for long, or that its own time is up, writes the list of those that have;
    the first to write decides, by one compare-and-set, and everybody reads what stands there. Who is not on the list
    calls that epoch over in turn, to join the next. Epoch 0 waits for all ranks of the world.

    Args:
        board: The store, under a prefix of this run.
        rank: This rank's number in the world.
        size: Ranks of the world that begin together.
        min_ranks: Fewest that may go on.
        regroup_s: How long to wait for members that show signs of life but do not come.
        start_s: How long to wait for all at the beginning.
        silent_s: How long without a sign of life until a rank counts as lost.

    """

    def __init__(
        self,
        board: Board,
        *,
        rank: int,
        size: int,
        min_ranks: int = 1,
        regroup_s: float = 30.0,
        start_s: float = 300.0,
        silent_s: float = 5.0,
    ) -> None:
        self._board = board
        self._size, self._min_ranks = size, min_ranks
        self._regroup_s, self._start_s, self._silent_s = regroup_s, start_s, silent_s
        self.rank = rank
        self.life = board.add("lives", 1)
        board.set(f"rank of {self.life}", str(rank))
        self.beat()
        self._heard: dict[int, tuple[int, float]] = {}
        """Life -> its counter, and when that last changed."""
        self.number = -1
        """The epoch that this rank is in or heads for."""
        self._mine: Member | None = None
        self._deadline_s = 0.0

    def beat(self) -> None:
        """Give a sign of life."""
        self._board.add(f"beats of {self.life}", 1)

    def agree_on(self, fingerprint: str) -> str:
        """Return the fingerprint of whoever came first."""
        return self._board.compare_set("fingerprint", "", fingerprint).decode()

    def is_over(self) -> bool:
        """Say whether somebody has called this rank's epoch over."""
        return self._board.check([f"over {self.number}"])

    def leave(self) -> None:
        """Tell the others not to wait for this rank, now or ever."""
        self._board.set(f"gone {self.life}", "yes")

    def conclude(self) -> None:
        """Tell those who come too late that the run has ended."""
        self._board.set("concluded", "yes")

    def announce(self, *, step: int, sound: bool, closing: bool, now_s: float) -> None:
        """Call the latest epoch over, and ask to be in the next.

        Raises:
            MembershipError: This rank brings no state, and the run has ended.

        """
        if not sound and self._board.check(["concluded"]):
            raise MembershipError(f"rank {self.rank} has come too late: the elastic run has ended.")
        self._mine = Member(life=self.life, rank=self.rank, step=step, sound=sound, closing=closing)
        self._heard.clear()
        while self._board.check([f"members {max(self.number, 0)}"]):
            self._call_over(max(self.number, 0))
        self.number = max(self.number, 0)
        self._ask(now_s)

    def poll(self, now_s: float) -> Epoch | None:
        """Return the epoch that this rank is a member of, if it is decided.

        Raises:
            MembershipError: Too few ranks are left, or not all have come to the start, and the time is up.

        """
        if self._board.check([f"members {self.number}"]):
            return self._read(now_s)
        candidates, awaited = self._roll(now_s)
        late = now_s >= self._deadline_s
        enough = len(candidates) >= self._min_ranks or (bool(candidates) and all(m.closing for m in candidates))
        if self.number == 0:
            enough = not awaited
        if late and not enough:
            self._give_up(candidates, awaited)
        if enough and (late or not awaited):
            ordered = sorted(candidates, key=lambda m: (not m.sound, m.rank))
            self._board.compare_set(f"members {self.number}", "", json.dumps([asdict(m) for m in ordered]))
            return self._read(now_s)
        return None

    def _read(self, now_s: float) -> Epoch | None:
        members = self._members_of(self.number)
        if any(member.life == self.life for member in members):
            return Epoch(number=self.number, members=members)
        self._call_over(self.number)  # decided without this rank: ask for the next
        self._ask(now_s)
        return None

    def _ask(self, now_s: float) -> None:
        if self._mine is not None:
            self._board.set(f"here {self.number} {self.life}", json.dumps(asdict(self._mine)))
        self._deadline_s = now_s + (self._regroup_s if self.number else self._start_s)

    def _call_over(self, number: int) -> None:
        self._board.set(f"over {number}", "yes")
        self.number = number + 1

    def _roll(self, now_s: float) -> tuple[list[Member], list[int]]:
        """Return who has announced itself and is alive, and the ranks that are still waited for."""
        lives = range(1, self._board.add("lives", 0) + 1)
        ranks = {life: int(self._board.get(f"rank of {life}")) for life in lives if self._named(life)}
        latest = {rank: life for life, rank in ranks.items()}  # a process that was started again has ended before
        alive = [life for life in latest.values() if not self._is_lost(life, now_s)]
        here = [life for life in alive if self._board.check([f"here {self.number} {life}"])]
        candidates = [Member(**json.loads(self._board.get(f"here {self.number} {life}"))) for life in here]
        if self.number == 0:
            return candidates, sorted(set(range(self._size)) - {m.rank for m in candidates})
        before = {m.life for m in self._members_of(self.number - 1) if not m.closing}
        return candidates, sorted(ranks[life] for life in alive if life in before and life not in here)

    def _named(self, life: int) -> bool:
        return self._board.check([f"rank of {life}"])

    def _is_lost(self, life: int, now_s: float) -> bool:
        if life == self.life:
            return False
        if self._board.check([f"gone {life}"]):
            return True
        count = self._board.add(f"beats of {life}", 0)
        before, since_s = self._heard.get(life, (-1, now_s))
        if count != before:
            since_s = now_s
        self._heard[life] = count, since_s
        return now_s - since_s >= self._silent_s

    def _members_of(self, number: int) -> tuple[Member, ...]:
        return tuple(Member(**fields) for fields in json.loads(self._board.get(f"members {number}")))

    def _give_up(self, candidates: Sequence[Member], awaited: Sequence[int]) -> None:
        here = ", ".join(str(rank) for rank in sorted(m.rank for m in candidates))
        if self.number == 0:
            raise MembershipError(
                f"rank {self.rank}: an elastic run of {self._size} ranks begins with all of them, but after "
                f"{self._start_s:g}s ranks {', '.join(map(str, awaited))} had not come (here: {here}); start them, or "
                "give relax() a longer timeout_s."
            )
        raise MembershipError(
            f"rank {self.rank}: of this elastic run {len(candidates)} are left after {self._regroup_s:g}s (ranks "
            f"{here}), but min_ranks is {self._min_ranks}; start more, or allow fewer."
        )
