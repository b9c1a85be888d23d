"""Records that the ranks of an elastic run write into their store."""

from dataclasses import dataclass

__all__ = ["Decision", "Epoch", "EpochState", "Here", "Life", "MemberRecord", "Over", "Text"]


@dataclass(frozen=True, kw_only=True)
class MemberRecord:
    """Announcement of one rank for an epoch."""

    life: str
    """Which start of which process this is: drawn at random, so that nothing from before can speak of it."""
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
    members: tuple[MemberRecord, ...]
    id: str = ""
    """Digest of the decision. It follows from all decisions before, and so from random lives of this run."""


@dataclass(frozen=True, kw_only=True)
class Life:
    """A heartbeat of a rank: each is newer than the one before, by `start` and then by `count`."""

    rank: int
    life: str
    start: int
    count: int
    gone: bool
    epoch: int
    """The epoch that it was in last; -1 for none."""
    id: str


@dataclass(frozen=True, kw_only=True)
class Here:
    """Request of a rank to be in an epoch."""

    epoch: int
    after: str
    """Id of the epoch before; nothing for the first."""
    member: MemberRecord


@dataclass(frozen=True, kw_only=True)
class Over:
    """End of an epoch."""

    epoch: int
    id: str
    rank: int


@dataclass(frozen=True, kw_only=True)
class Decision:
    """List of the members of an epoch."""

    epoch: int
    after: str
    """Id of the epoch before; nothing for the first."""
    rank: int
    """Rank that has written it."""
    members: tuple[MemberRecord, ...]


@dataclass(frozen=True, kw_only=True)
class EpochState:
    """State that the first member of an epoch hands to those that come."""

    epoch: int
    id: str
    rank: int
    part: str
    digest: str
    """SHA-256 of tensors and plain data."""


@dataclass(frozen=True, kw_only=True)
class Text:
    """A word without fields of its own."""

    text: str
