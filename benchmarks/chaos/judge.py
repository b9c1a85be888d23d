"""From what ranks have said to one line: whether it went right, and if not, how. Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import combinations, pairwise
from typing import Any

from chaos.trials import Trial, survives

__all__ = ["OUTCOMES", "Record", "judge", "named_in"]

Record = dict[str, Any]
Lines = Sequence[Mapping[str, Any]]

OUTCOMES = (
    "ended right",
    "went on right",
    "hang",
    "wrong name",
    "no name",
    "silent difference",
    "lost or half-written checkpoint",
    "error",
    "not struck",
)
"""The first two are right. not struck: the training had ended, or had not begun, when its moment came."""

_BLAMED = (
    r"ranks? ([\d, ]+?)(?: (?:is|are) gone| no longer takes? part| (?:has|have|had) not come| gave no sign)",
    r"lost ranks? ([\d, ]+?);",
    r"rank (\d+) is alive, but \d+ exchanges? behind",
)
_STORE = "Its host is lost: rank 0"
_TORCHS = ("RuntimeError", "DistBackendError", "CheckpointException")
"""Errors of torch's own checkpoints, which name nobody."""


def named_in(text: str, *, rank_hosts_store: bool = False) -> set[int]:
    """Return the ranks that a sentence calls lost, late or behind."""
    found = {int(rank) for blamed in _BLAMED for ranks in re.findall(blamed, text) for rank in ranks.split(",")}
    return found | ({0} if rank_hosts_store and _STORE in text else set())


def judge(trial: Trial, found: Mapping[str, Any]) -> Record:
    """Return the line of a trial.

    Args:
        trial: What was to be done.
        found: `said`, the diaries of all ranks; `exits`, exit codes of those that were to end, None for one that had
            not; `struck_s`, when it was struck, on the ranks' clock, or None; `stacks` of who hangs; `reference`, the
            hash of an undisturbed training, if there is one; `checkpoint`, what a new world has loaded.

    """
    said: Mapping[int, Lines] = found["said"]
    exits: Mapping[int, int | None] = found["exits"]
    failed = {rank: lines[-1] for rank, lines in said.items() if lines and lines[-1]["kind"] == "failed"}
    survivors = _survivors(trial, exits, failed)
    sentences = {rank: f"{line['error']}: {line['text']}" for rank, line in failed.items()}
    lost = {rank: _losses(said[rank]) for rank in survivors}
    outcome, why = _outcome(trial, found, survivors, failed, lost)
    hangs = [rank for rank, code in exits.items() if code is None]
    return {
        **asdict(trial),
        "outcome": outcome,
        "why": why,
        "answer_s": _answer_s(trial, said, survivors, found["struck_s"]),
        "sentences": {str(rank): text for rank, text in sorted(sentences.items())},
        "regrouped": {str(rank): texts for rank, texts in lost.items() if texts},
        "checkpoint_not_saved": _not_saved(said),
        "stacks": found["stacks"] if hangs else {},
        "slack": found.get("slack", 1.0),
    }


def _survivors(trial: Trial, exits: Mapping[int, int | None], failed: Mapping[int, Mapping[str, Any]]) -> Sequence[int]:
    """Return who is to name the victims, or to go on; the victims are among them where nobody has given them up."""
    attacked = () if trial.attack in ("cut_link", "flap") else trial.victims
    others = [rank for rank in range(trial.ranks) if rank not in attacked]
    if trial.elastic or any(rank in failed for rank in others):
        return others
    return sorted({*others, *exits})


def _blameable(trial: Trial, rank: int, failed: Mapping[int, Mapping[str, Any]]) -> set[int]:
    """Return whom a rank may name: also those that a checkpoint of torch's own has ended, since they are gone too."""
    if trial.attack == "flap" and rank in trial.victims:
        return set(range(trial.ranks)) - {rank}
    ended = {other for other, line in failed.items() if trial.how == "dcp" and line["error"] in _TORCHS}
    return (set(trial.victims) | ended) - {rank}


def _outcome(
    trial: Trial,
    found: Mapping[str, Any],
    survivors: Sequence[int],
    failed: Mapping[int, Mapping[str, Any]],
    lost: Mapping[int, Sequence[str]],
) -> tuple[str, str]:
    """Return the outcome and why it is that; the worst first."""
    said, exits = found["said"], found["exits"]
    hangs = [rank for rank, code in exits.items() if code is None]
    if found["struck_s"] is None:
        return "not struck", f"ranks {hangs} had not ended" if hangs else "it had ended, or not begun"
    if hangs:
        return "hang", f"ranks {hangs} have not ended"
    if wrong := _checkpoint_wrong(trial, said, found.get("checkpoint")):
        return "lost or half-written checkpoint", wrong
    crashed = {rank: code for rank, code in exits.items() if code and rank not in failed and rank in survivors}
    if crashed:
        return "error", f"exit codes {crashed} without a sentence"
    for rank in survivors:
        if wrong := _wrongly_named(trial, rank, failed, lost.get(rank, ())):
            return "wrong name", wrong
    for rank in survivors:
        if rank in failed and (wrong := _no_sentence(trial, failed[rank])):
            return wrong[0], f"rank {rank}: {wrong[1]}"
    return _together(trial, found, survivors, failed)


def _together(
    trial: Trial, found: Mapping[str, Any], survivors: Sequence[int], failed: Mapping[int, Mapping[str, Any]]
) -> tuple[str, str]:
    """Return the outcome of ranks that all ended in one of the ways that are allowed."""
    ends = {rank: found["said"][rank][-1] for rank in survivors if rank not in failed}
    expected = survives(trial)
    if ends and failed.keys() & set(survivors):
        return "error", f"ranks {sorted(ends)} came to the end of the training, ranks {sorted(failed)} did not"
    if not ends:
        return ("ended right", "") if expected != "go on" else ("error", "they were to go on, and ended")
    if expected == "end":
        return "silent difference", "they came to the end of the training without the lost rank"
    if any(end["kind"] != "ended" for end in ends.values()):
        return "error", f"last words: {[end['kind'] for end in ends.values()]}"
    return _equal(ends, found.get("reference", ""))


def _equal(ends: Mapping[int, Mapping[str, Any]], reference: str) -> tuple[str, str]:
    hashes = {end["hash"] for end in ends.values()}
    # Who comes to the end a step later meets those that close, and is then alone: but they have known of it.
    met = {rank: end["members"] for rank, end in ends.items()}
    apart = [(a, b) for a, b in combinations(sorted(met), 2) if a not in met[b] and b not in met[a]]
    if not all(end["finite"] for end in ends.values()):
        return "silent difference", "weights are not finite"
    if apart:
        return "silent difference", f"two groups went on: {sorted({tuple(members) for members in met.values()})}"
    if len(hashes) > 1:
        return "silent difference", f"ranks {sorted(ends)} ended with different weights"
    if reference and hashes != {reference}:
        return "silent difference", "the weights are not those of a training without the attack"
    return "went on right", ""


def _wrongly_named(trial: Trial, rank: int, failed: Mapping[int, Mapping[str, Any]], lost: Sequence[str]) -> str:
    may = _blameable(trial, rank, failed)
    for text in [*((failed[rank]["text"],) if rank in failed else ()), *lost]:
        if wrong := named_in(text, rank_hosts_store=trial.rank_hosts_store) - may:
            return f"rank {rank} names {sorted(wrong)}, but {sorted(may)} were attacked"
    return ""


def _no_sentence(trial: Trial, failed: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return what is wrong with the words a survivor ends with, if anything is."""
    if failed["error"] != "CommError":
        if trial.how == "dcp" and failed["error"] in _TORCHS:
            return None
        return "error", f"{failed['error']}, and no CommError"
    for_good = not trial.lasting_s and trial.attack not in ("cut_link", "packet_loss", "switch", "disk_full")
    if for_good and not named_in(failed["text"], rank_hosts_store=trial.rank_hosts_store):
        return "no name", "its sentence names nobody"
    return None


def _losses(lines: Lines) -> list[str]:
    """Return what an elastic run has said of lost ranks."""
    return [line["text"] for line in lines if line["kind"] == "regrouped" and "lost rank" in line["text"]]


def _not_saved(said: Mapping[int, Lines]) -> list[str]:
    """Return how savings failed, each kind of sentence once."""
    texts = {
        f"{line['error']}: {line['text']}"[:400]
        for lines in said.values()
        for line in lines
        if line["kind"] == "not saved"
    }
    return sorted(texts)


def _checkpoint_wrong(trial: Trial, said: Mapping[int, Lines], checkpoint: Mapping[str, Any] | None) -> str:
    """Return what is wrong with the last checkpoint: it is not there, not whole, or not what was saved."""
    if checkpoint is None:
        return ""
    codes = checkpoint["exits"]
    if any(codes.values()) or None in codes.values():
        words = [line.get("text", "") for lines in checkpoint["said"].values() for line in lines[-1:]]
        return f"a new world cannot load it: exit codes {list(codes.values())}, {[w[:200] for w in words if w]}"
    saved = min(max((n["number"] for n in lines if n["kind"] == "saved"), default=0) for lines in said.values())
    told = {rank: {n["step"]: n for n in lines if n["kind"] == "saving"} for rank, lines in said.items()}
    loaded = {rank: checkpoint["said"][rank][-1] for rank in range(trial.ranks)}
    steps = {line["step"] for line in loaded.values()}
    if len(steps) > 1:
        return f"ranks load different steps: {sorted(steps)}"
    for rank, line in loaded.items():
        meant = told[rank].get(line["step"])
        if meant is None or meant["hash"] != line["hash"]:
            return f"rank {rank} loads step {line['step']} with weights that it never had there"
        if meant["number"] < saved:
            return f"rank {rank} loads checkpoint {meant['number']}, but {saved} was complete"
    return ""


def _answer_s(
    trial: Trial, said: Mapping[int, Lines], survivors: Sequence[int], struck_s: float | None
) -> float | None:
    """Return seconds from the attack until the last survivor ended, or for which the slowest stood still."""
    if struck_s is None:
        return None
    found: list[float] = []
    for rank in survivors:
        lines = said[rank]
        if lines and lines[-1]["kind"] == "failed":
            found.append(lines[-1]["at_s"] - struck_s)
            continue
        steps_s = [line["at_s"] for line in lines if line["kind"] in ("begun", "step", "ended")]
        found += [b - a for a, b in pairwise(steps_s) if b > struck_s]
    return round(max(found), 2) if found else None
