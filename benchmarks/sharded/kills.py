"""A hundred random strikes at sharded trainings of four ranks: nobody hangs, and each survivor names the lost rank.

    python benchmarks/sharded/kills.py list --seed 1 --trials benchmarks/sharded/kills_seed1.jsonl
    python benchmarks/sharded/kills.py run --trials benchmarks/sharded/kills_seed1.jsonl --jsonl out.jsonl --md out.md
    python benchmarks/sharded/kills.py table --jsonl out.jsonl --md out.md

One line a trial; what has one is not run again. A line with "mended_in" was found before the commit that mends it: it
is kept, and its trial is run again. Ranks are processes on loopback. A trial is right if all survivors end, in time,
with an error that names the victim and nobody else, and neither a thread, a process nor a file is left.
"""

import argparse
import multiprocessing
import os
import re
import shlex
import signal
import statistics
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from journal import Lines, named_in, place, say_left, show
from kills_drawn import Trial, draw, read_trials, write_trials
from kills_rank import LEFT, Start, be

from pliant.network.store_host import reserve_port
from pliant_bench.faults.processes import Processes

RANKS, NUM, TIMEOUT_S, LIMIT_S, POLL_S = 4, 100, 20.0, 90.0, 0.002
OUTCOMES = ("ended right", "hang", "wrong name", "no name", "error", "left behind", "not struck")

os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # a store that is gone is not to fill the screen
_ROOT = f"{Path(__file__).parents[2]}/"
"""Left out of tracebacks: lines are kept where nobody has this folder."""
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["torch", "torch._dynamo", "torch.distributed.fsdp", "pliant.engine.run", "subjects"])


def carry_out(trial: Trial, slack: float) -> dict[str, Any]:
    """Carry a trial out; return its line."""
    start_s = time.monotonic()
    with Processes(_context.Process) as world:
        (world.folder / LEFT).mkdir()
        port = int(world.held.enter_context(reserve_port()).getsockname()[1])
        for rank in range(RANKS):
            told = Start(trial=trial, rank=rank, port=port, folder=str(world.folder), timeout_s=TIMEOUT_S * slack)
            world.launch(rank, be, told)
        struck_s = _strike(world, trial, slack)
        exits = world.wait(range(RANKS), LIMIT_S * slack)
        answered_s = time.monotonic()
        stacks = world.stacks([rank for rank, code in exits.items() if code is None])
        said = {rank: world.diary(rank) for rank in range(RANKS)}
        left = left_by(world.folder, said)
    outcome, why = judge(trial, said, exits, struck=struck_s is not None, left=left)
    failed = {rank: line for rank, lines in said.items() for line in lines if line["kind"] == "failed"}
    return {
        **asdict(trial),
        "outcome": outcome,
        "why": why,
        "answer_s": None if struck_s is None else round(answered_s - struck_s, 2),
        "traces": {str(k): _short(line["where"]) for k, line in failed.items() if line["error"] != "CommError"},
        "sentences": {str(k): _short(f"{line['error']}: {line['text']}") for k, line in failed.items()},
        "stacks": stacks,
        "slack": slack,
        "trial_s": round(time.monotonic() - start_s, 1),
    }


def _short(text: str) -> str:
    return text.replace(_ROOT, "")


def _strike(world: Processes, trial: Trial, slack: float) -> float | None:
    """Wait for the moment, strike if that is from outside, and return when it was."""
    deadline_s = time.monotonic() + LIMIT_S * slack
    kind = "step" if trial.how == "SIGKILL from outside" else "struck"
    while time.monotonic() < deadline_s:
        over = any(line["kind"] == "failed" for rank in range(RANKS) for line in world.diary(rank))
        lines = [line for line in world.diary(trial.victim) if line["kind"] == kind]
        if kind == "struck" and lines:
            return time.monotonic()
        if kind == "step" and any(line["step"] == trial.step for line in lines):
            time.sleep(trial.late_s * slack)
            world.signal(trial.victim, signal.SIGKILL)
            return time.monotonic()
        if over:
            return None
        time.sleep(POLL_S)
    return None


def judge(
    trial: Trial, said: Mapping[int, Any], exits: Mapping[int, int | None], *, struck: bool, left: Sequence[str]
) -> tuple[str, str]:
    """Return the outcome and why it is that, the worst first."""
    survivors = [rank for rank in range(RANKS) if rank != trial.victim]
    hangs = [rank for rank in survivors if exits[rank] is None]
    if hangs:
        return "hang", f"ranks {hangs} have not ended"
    if not struck:
        return "not struck", "somebody had failed before, or the moment did not come"
    for rank in survivors:
        failed = next((line for line in said[rank] if line["kind"] == "failed"), None)
        if failed is None:
            return "error", f"rank {rank} ended with {exits[rank]}, without an error"
        named = {*failed["lost"], *named_in(failed["text"])}
        if named - {trial.victim}:
            return "wrong name", f"rank {rank} names {sorted(named)}"
        if not named:
            return "no name", f"rank {rank}: {failed['error']}"
        threads = next((line["threads"] for line in said[rank] if line["kind"] == "over"), None)
        if threads is None or threads:
            return "left behind", f"rank {rank} has the threads {threads}"
    return ("left behind", f"files {left}") if left else ("ended right", "")


def left_by(folder: Path, said: Mapping[int, Any], shared_memory: Path = Path("/dev/shm")) -> list[str]:
    """Return temporary files of the ranks that are still there, and shared memory with a rank's number in its name."""
    numbers = {str(line["pid"]) for lines in said.values() for line in lines if line["kind"] == "begun"}
    shared = [path.name for path in shared_memory.iterdir() if numbers & set(re.split("[^0-9a-zA-Z]+", path.name))]
    return sorted(path.name for path in (folder / LEFT).iterdir()) + sorted(shared)


def table(records: Sequence[Mapping[str, Any]], command: str) -> str:
    """Return the results as Markdown."""
    mended, records = [r for r in records if "mended_in" in r], [r for r in records if "mended_in" not in r]
    last = records[-1]
    head = [
        "# Random strikes at sharded trainings",
        "",
        f"`{command}`",
        "",
        f"Commits {', '.join(sorted({r['commit'] for r in records}))}; {last['software']}; {last['cpu']}; load "
        f"{last['load']} at the end, {last['at']}. {RANKS} ranks; the list of trials is that of seed {last['seed']}.",
        "",
        "| mesh | trials | " + " | ".join(OUTCOMES) + " | seconds to the last answer, median (largest) |",
        "|---|" + "--:|" * (len(OUTCOMES) + 2),
    ]
    kinds = {mesh: [r for r in records if r["mesh"] == mesh] for mesh in dict.fromkeys(r["mesh"] for r in records)}
    body = [_row(mesh, mine) for mesh, mine in {**kinds, "all": list(records)}.items()]
    body += ["", "| how | trials | ended right |", "|---|--:|--:|"]
    for how, num in sorted(Counter(r["how"] for r in records).items()):
        right = sum(r["how"] == how and r["outcome"] == "ended right" for r in records)
        body.append(f"| {how} | {num} | {right} |")
    wrong = [r for r in records if r["outcome"] != "ended right"]
    told = ["", "Not as it should be:", "", *map(_wrong, wrong)] if wrong else []
    before = [f"{_wrong(r)}; mended in {r['mended_in']}" for r in mended]
    told += ["", "Found before it was mended, and run again:", "", *before] if before else []
    return "\n".join([*head, *body, *told, ""])


def _wrong(r: Mapping[str, Any]) -> str:
    words = "; ".join(f"rank {rank}: {text[:200]}" for rank, text in r["sentences"].items())
    trial = (
        f"{r['number']}: {r['mesh']}, `{r['what']}`, rank {r['victim']}, {r['how']}, {r['where']} of step {r['step']}"
    )
    return f"- {trial}: {r['outcome']}; {r['why']}; {words}"


def _row(mesh: str, mine: Sequence[Mapping[str, Any]]) -> str:
    counts = [str(sum(r["outcome"] == outcome for r in mine)) for outcome in OUTCOMES]
    seconds = [r["answer_s"] for r in mine if r["answer_s"] is not None]
    took = f"{statistics.median(seconds):.1f} ({max(seconds):.1f})" if seconds else "-"
    return f"| {mesh} | {len(mine)} | {' | '.join(counts)} | {took} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("act", choices=("list", "run", "table"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--trials", type=Path, default=Path(__file__).with_name("kills_seed1.jsonl"))
    parser.add_argument("--jsonl", type=Path)
    parser.add_argument("--md", type=Path)
    parser.add_argument("--limit", type=int, default=0, help="at most so many trials now; 0: all")
    parser.add_argument("--list", action="store_true", help="with run: say what is left, and carry out none")
    parser.add_argument("--slack", type=float, default=1.0, help="what all times are multiplied by, on a busy machine")
    parser.add_argument("--pause-while", default="", help="no trial begins while this file exists")
    given = parser.parse_args()
    if given.act == "list":
        write_trials(draw(given.seed, NUM), given.trials)
        return
    if given.jsonl is None:
        parser.error("--jsonl says where the results are")
    lines = Lines(given.jsonl, ("seed", "number", "mended_in"))
    if given.act == "run":
        asked = read_trials(given.trials)
        left = [trial for trial in asked if not lines.has(trial.seed, trial.number, None)]
        if given.list:
            say_left([f"{trial.number} {trial.mesh} {trial.what}" for trial in left], len(asked))
            return
        for trial in left[: given.limit or None]:
            while given.pause_while and Path(given.pause_while).exists():
                time.sleep(2)
            record = lines.add({**carry_out(trial, given.slack), **place()})
            told = f"{trial.number}, {trial.mesh}, {trial.what}, {trial.how}: {record['outcome']} {record['why']}"
            print(f"{told} after {record['trial_s']:.0f} s", flush=True)
    show(table(list(lines.records.values()), shlex.join(["python", *sys.argv])), given.md)


if __name__ == "__main__":
    main()
