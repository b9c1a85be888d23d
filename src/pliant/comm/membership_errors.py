"""Errors of an elastic run that cannot go on: who is there, who is not, and the cure."""

from collections.abc import Collection, Mapping, Sequence

__all__ = ["MembershipError", "incomplete_start_error", "too_few_ranks_error"]


class MembershipError(RuntimeError):
    """This rank cannot go on with the others, and the message says why."""


def incomplete_start_error(
    rank: int,
    size: int,
    here: Sequence[int],
    awaited: Sequence[int],
    came: Mapping[int, bool],
    start_s: float,
    refused: Collection[str],
) -> MembershipError:
    """Return the error of a start to which not all have come, or not all have stayed.

    Args:
        rank: Who gives up.
        size: Ranks that were to begin.
        here: Those that still are.
        awaited: The others.
        came: Those of them that have been there, and whether they have said good-bye: that is, given up waiting too.
        start_s: How long this rank has waited.
        refused: Keys of the store that were ignored.

    """
    absent = [r for r in awaited if r not in came]
    silent, gone = ([r for r in awaited if came.get(r) is bye] for bye in (False, True))
    missing = [f"{_name_ranks(absent)} had not come"] if absent else []
    missing += [f"{_name_ranks(silent)} gave no sign of life any more"] if silent else []
    ended = f"{_name_ranks(gone)} had come and ended again" if gone else ""
    aside = f"; {ended}" if missing and ended else ""
    return MembershipError(
        f"rank {rank}: an elastic run of {size} ranks begins with all of them, but after {start_s:g}s "
        f"{' and '.join(missing) or ended} (here: {_list_ranks(here)}{aside}); start them, or give relax() a longer "
        f"start_timeout_s. A rank that has ended with this error may call relax() again.{_hint(refused)}"
    )


def too_few_ranks_error(
    rank: int, here: Sequence[int], min_ranks: int, regroup_s: float, refused: Collection[str]
) -> MembershipError:
    """Return the error of a run that has lost too many; `refused` are keys of the store that were ignored."""
    return MembershipError(
        f"rank {rank}: of this elastic run {len(here)} are left after {regroup_s:g}s (ranks {_list_ranks(here)}), but "
        f"min_ranks is {min_ranks}; start more, or allow fewer.{_hint(refused)}"
    )


def _list_ranks(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, sorted(ranks)))


def _name_ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {_list_ranks(ranks)}"


def _hint(refused: Collection[str]) -> str:
    if not refused:
        return ""
    where = ", ".join(repr(key) for key in sorted(refused)[:3])
    return f" What stands at {where} was ignored: if ranks of this run wrote it, give all the same secret_file."
