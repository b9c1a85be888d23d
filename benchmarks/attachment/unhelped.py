"""Cost of `pliant run` for a script that it cannot help: its search, and the steps after its decision.

``python benchmarks/attachment/unhelped.py --jsonl out.jsonl --md out.md``

Two ranks on loopback train a small model on large batches, so that nearly all of a step is computing. A round starts
the script twice, plain and under `pliant run`. Each trains its first 200 steps alone, in even rounds the plain one
first, in odd ones the other; then both take turns of 50 steps, plain, attached, attached, plain; who has no turn waits
on a pipe. One line a round. A round's figures are the ratio of the first 200 steps (at most 1.10 wanted) and the ratio
of the medians of the turns (at most 1.02 wanted).
"""

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from house.versions import commit_of, machine
from tasc.accuracy_book import append_record, read_records

from pliant.spec.files import write_atomically

RANKS, FIRST, TURN, TURNS = 2, 200, 50, 12
SEARCH_LIMIT, STEP_LIMIT = 1.10, 1.02


class World:
    """Ranks of the script, which train when they are told to.

    Args:
        before: Words before the command that starts the ranks.
        stack: Ends them at its own end.

    """

    def __init__(self, before: list[str], stack: ExitStack) -> None:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for name in (*(f"go-{rank}" for rank in range(RANKS)), "done"):
            os.mkfifo(folder / name)
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
        script = str(Path(__file__).with_name("unhelped_rank.py"))
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        self._process = subprocess.Popen([*before, *launcher, script, str(folder)], env=environment)
        self._go = [stack.enter_context((folder / f"go-{rank}").open("w")) for rank in range(RANKS)]
        self._done = stack.enter_context((folder / "done").open())

    def steps(self, number: int) -> float:
        """Let the ranks train this many steps, and return how many seconds one took."""
        self._tell(str(number))
        return float(self._done.readline()) / number

    def close(self) -> None:
        """End the ranks, and wait for them.

        Raises:
            RuntimeError: They failed.

        """
        self._tell("")
        if status := self._process.wait(120):
            raise RuntimeError(f"the script ended with exit status {status}.")

    def _tell(self, line: str) -> None:
        for go in self._go:
            print(line, file=go, flush=True)


def measured(number: int) -> dict:
    """Return what a round says."""
    with ExitStack() as stack:
        verdict_file = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "verdict.json"
        attach = [sys.executable, "-m", "pliant", "run", "--json", str(verdict_file), "--"]
        worlds = {"plain": World([], stack), "attached": World(attach, stack)}
        order = ["plain", "attached"] if number % 2 == 0 else ["attached", "plain"]
        first_s = {name: worlds[name].steps(FIRST) for name in order}
        turns_s: dict[str, list[float]] = {"plain": [], "attached": []}
        for turn in range(TURNS):
            for name in order if turn % 2 == 0 else order[::-1]:
                turns_s[name].append(worlds[name].steps(TURN))
        for world in worlds.values():
            world.close()
        verdict = json.loads(verdict_file.read_text())
    kept = ("decided", "plan_text", "reason", "search_s", "search_steps", "num_steps")
    return {
        "round": number,
        "first_s": first_s,
        "turns_s": turns_s,
        "verdict": {name: verdict[name] for name in kept},
        "commit": commit_of("HEAD"),
        **machine(),
    }


def table(records: list[dict]) -> str:
    """Return the table of all rounds, with the command and the machine above it."""
    rows = []
    for record in records:
        first = record["first_s"]["attached"] / record["first_s"]["plain"]
        plain, attached = (statistics.median(record["turns_s"][name]) for name in ("plain", "attached"))
        rows.append((record["round"], 1e3 * plain, first, attached / plain, record["verdict"]["reason"]))
    searches, steps = ([row[column] for row in rows] for column in (2, 3))
    last = records[-1]
    lines = [
        "# `pliant run` where it cannot help",
        "",
        f"`python {' '.join(shlex.quote(word) for word in sys.argv)}` at {last['commit']}, {last['at']}, on "
        f"{last['cpu']}, {last['software']}, load {last['load']}. Ratios are attached over plain.",
        "",
        f"- First {FIRST} steps, the search among them: median {statistics.median(searches):.3f} "
        f"({min(searches):.3f} to {max(searches):.3f}); at most {SEARCH_LIMIT:.2f} wanted.",
        f"- Steps after the decision: median {statistics.median(steps):.3f} "
        f"({min(steps):.3f} to {max(steps):.3f}); at most {STEP_LIMIT:.2f} wanted.",
        "",
        f"| round | plain step, ms | first {FIRST} steps | steps after | what it said |",
        "|---|---|---|---|---|",
        *(f"| {row[0]} | {row[1]:.1f} | {row[2]:.3f} | {row[3]:.3f} | {row[4]} |" for row in rows),
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    """Measure the rounds that have no line yet, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jsonl", type=Path, required=True)
    parser.add_argument("--md", type=Path, required=True)
    given = parser.parse_args()
    records = read_records(given.jsonl) if given.jsonl.exists() else []
    for number in range(len(records), given.rounds):
        records.append(measured(number))
        append_record(given.jsonl, records[-1])
    text = table(records)
    print(text)
    write_atomically(given.md, text)


if __name__ == "__main__":
    main()
