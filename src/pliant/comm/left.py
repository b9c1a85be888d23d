"""Errors of an elastic run that cannot go on: who is there, who is not, and the cure."""

from collections.abc import Collection, Sequence

__all__ = ["MembershipError", "incomplete", "too_few"]


class MembershipError(RuntimeError):
    """This rank cannot go on with the others, and the message says why."""


def incomplete(
    rank: int, size: int, here: Sequence[int], awaited: Sequence[int], start_s: float, refused: Collection[str]
) -> MembershipError:
    """Return the error of a start to which not all have come; `refused` are keys of the store that were ignored."""
    return MembershipError(
        f"rank {rank}: an elastic run of {size} ranks begins with all of them, but after {start_s:g}s ranks "
        f"{_listed(awaited)} had not come (here: {_listed(here)}); start them, or give relax() a longer timeout_s."
        f"{_hint(refused)}"
    )


def too_few(
    rank: int, here: Sequence[int], min_ranks: int, regroup_s: float, refused: Collection[str]
) -> MembershipError:
    """Return the error of a run that has lost too many; `refused` are keys of the store that were ignored."""
    return MembershipError(
        f"rank {rank}: of this elastic run {len(here)} are left after {regroup_s:g}s (ranks {_listed(here)}), but "
        f"min_ranks is {min_ranks}; start more, or allow fewer.{_hint(refused)}"
    )


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, sorted(ranks)))


def _hint(refused: Collection[str]) -> str:
    if not refused:
        return ""
    where = ", ".join(repr(key) for key in sorted(refused)[:3])
    return f" What stands at {where} was ignored: if ranks of this run wrote it, give all the same secret_file."
