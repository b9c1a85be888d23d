"""From what ranks have said to one record: who went on or ended, after how long, and how fast since. Pure."""

import json
import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

__all__ = ["Diary", "describe", "read_diary"]

Diary = list[dict[str, Any]]
"""What one rank has said, in order; a process that is started again goes on in the same diary."""

_WARM_STEPS = 5


def read_diary(path: Path) -> Diary:
    """Return the lines that are complete; a killed process may have left half of one."""
    if not path.exists():
        return []
    whole, _, _ = path.read_text(encoding="utf-8").rpartition("\n")
    return [json.loads(line) for line in whole.splitlines()]


def describe(
    diaries: Mapping[int, Diary],
    exits: Mapping[int, int | None],
    victim: int,
    struck_s: float,
    back_s: float | None,
) -> dict[str, Any]:
    """Return what became of the others, and of the victim if it came back.

    Args:
        diaries: Of all ranks.
        exits: Exit codes of those that were to end; None for one that had not when the time was up.
        victim: Who was struck.
        struck_s: When, on the ranks' clock.
        back_s: When it was let back, or None.

    """
    others = {rank: diary for rank, diary in diaries.items() if rank != victim}
    codes = [exits[rank] for rank in others]
    outcome = "mixed"
    if None in exits.values():
        outcome = "hung"
    elif not any(codes):
        outcome = "went on"
    elif all(codes):
        outcome = "ended"
    judged = [(line["at_s"], line["accuracy"]) for d in diaries.values() for line in d if line["kind"] == "judged"]
    return {
        "outcome": outcome,
        **_endings(others, victim, struck_s),
        **_pace(list(others.values()), struck_s),
        **_return(diaries.get(victim, []), back_s),
        "accuracy": max(judged)[1] if judged else None,
    }


def _endings(others: Mapping[int, Diary], victim: int, struck_s: float) -> dict[str, Any]:
    """Return how the others ended, if it was by an error: seconds until the last did, and how many named the victim."""
    last = {rank: diary[-1] for rank, diary in others.items() if diary}
    failed = {rank: line for rank, line in last.items() if line["kind"] == "failed"}
    return {
        "ended_s": max((line["at_s"] - struck_s for line in failed.values()), default=None),
        "named_by": sum(_names(line["text"], victim) for line in failed.values()),
        "failed": {str(rank): f"{line['error']}: {line['text']}" for rank, line in sorted(failed.items())},
    }


def _names(text: str, victim: int) -> bool:
    """Say whether a sentence names a rank as lost: 'rank 1, 2 is gone', 'rank 2 no longer takes part'."""
    for end in (" is gone", " no longer takes part"):
        before, found, _ = text.partition(end)
        if found and str(victim) in before.rpartition("rank ")[2].split(", "):
            return True
    return False


def _pace(others: Sequence[Diary], struck_s: float) -> dict[str, Any]:
    """Return when the slowest of the others took its next step in a new group, and the times of steps on both sides.

    Also the longest time in which one of them took no step, which is all there is where nobody had to regroup.
    """
    next_s: list[float] = []
    stills_s: list[float] = []
    before_s: list[float] = []
    after_s: list[float] = []
    for diary in others:
        steps_s = [line["at_s"] for line in diary if line["kind"] == "step"]
        before_s += _times([at for at in steps_s if at < struck_s][_WARM_STEPS:])
        stills_s += [b - a for a, b in pairwise(steps_s) if b > struck_s]
        regrouped_s = [line["at_s"] for line in diary if line["kind"] == "regrouped" and line["at_s"] > struck_s]
        since = [at for at in steps_s if regrouped_s and at > regrouped_s[0]]
        if since:
            next_s.append(since[0] - struck_s)
            after_s += _times(since)
    return {
        "next_step_s": max(next_s, default=None),
        "standstill_s": max(stills_s, default=None),
        "step_before_s": statistics.median(before_s) if before_s else None,
        "step_after_s": statistics.median(after_s) if after_s else None,
    }


def _times(at_s: Sequence[float]) -> list[float]:
    return [b - a for a, b in pairwise(at_s)]


def _return(diary: Diary, back_s: float | None) -> dict[str, Any]:
    """Return whether the victim was taken in again, how long after it was let back, or why not.

    Who comes when the others have made their last step has none to make, and only meets them.
    """
    if back_s is None:
        return {"back": None, "joined_s": None, "back_failed": ""}
    since = [line for line in diary if line["at_s"] > back_s]
    there_s = [line["at_s"] - back_s for line in since if line["kind"] in ("begun", "step", "ended")]
    failed = "".join(f"{line['error']}: {line['text']}" for line in since if line["kind"] == "failed")
    back = "failed" if failed or not there_s else "joined"
    if "too late" in failed:
        back = "too late"
    return {"back": back, "joined_s": next(iter(there_s), None), "back_failed": failed}
