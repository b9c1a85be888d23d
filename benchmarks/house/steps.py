"""Step times, results and import time of a commit beside those of another, in one run.

``python benchmarks/house/steps.py --before b03dab7 --json out.json --md out.md``

Both commits are unpacked and built in a temporary folder. In each round both start two ranks, real processes over Gloo
on loopback. They train the same models with the same algorithms in turns of some steps, before, after, after, before,
and in every other round the other way round; who has no turn waits on a pipe. At the end of a round the weights must
be equal to the bit. A round's figure is the ratio of the medians of its turns.
"""

import argparse
import itertools
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path

from steps_rank import MARK
from versions import built, commit_of, environment, machine

from pliant.network.store_host import reserve_port
from pliant.spec.files import write_atomically

ALGORITHMS = ("allreduce", "bytegrad", "onebit", "powersgd", "diloco")
MODELS = ("cnn", "chars")
RANKS = 2
LIMIT = 1.02
STARTS = {"import pliant": "import pliant", "import pliant, and relax": "import pliant; pliant.relax"}


class World:
    """Two ranks of one version, which do what they are told by a line."""

    def __init__(self, src: Path, stack: ExitStack) -> None:
        held = stack.enter_context(reserve_port())
        store = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(held.getsockname()[1]), "WORLD_SIZE": str(RANKS)}
        self.src = src
        self._ranks = [
            subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("steps_rank.py"))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**environment(src), **store, "RANK": str(rank), "LOCAL_RANK": "0", "GLOO_SOCKET_IFNAME": "lo"},
            )
            for rank in range(RANKS)
        ]
        stack.callback(self.close)

    def ask(self, line: str) -> dict:
        """Tell all ranks, and return what rank 0 says next."""
        for rank in self._ranks:
            print(line, file=rank.stdin, flush=True)
        for said in self._ranks[0].stdout:
            if said.startswith(MARK):
                return json.loads(said.removeprefix(MARK))
        raise RuntimeError(f"the ranks of {self.src} ended at {line!r}; their errors are above.")

    def close(self) -> None:
        """Let the ranks end; who does not is killed."""
        for rank in self._ranks:
            rank.stdin.close()
        for rank in self._ranks:
            try:
                rank.wait(30)
            except subprocess.TimeoutExpired:
                rank.kill()
            rank.stdout.close()


def play(number: int, sources: dict[str, Path], given: argparse.Namespace) -> list[dict]:
    """Return one round's rows, one for each model and algorithm."""
    rows = []
    order = list(sources) if number % 2 == 0 else list(sources)[::-1]
    with ExitStack() as stack:
        worlds = {side: World(sources[side], stack) for side in order}
        for model, algorithm in itertools.product(given.models, given.algorithms):
            begun = {side: worlds[side].ask(f"{model} {algorithm}") for side in order}
            for side in order:
                if not begun[side]["version"].startswith(f"{sources[side]}{os.sep}"):
                    raise RuntimeError(f"the ranks {side} have {begun[side]['version']}, not {sources[side]}.")
                worlds[side].ask(str(given.warmup))
            step_s = defaultdict(list)
            for turn in range(given.turns):
                for side in order if turn % 2 == 0 else order[::-1]:
                    step_s[side].append(worlds[side].ask(str(given.steps))["step_s"])
            weights = {side: worlds[side].ask("0")["weights"] for side in order}
            middle = {side: statistics.median(step_s[side]) for side in sources}
            row = {"round": number, "model": model, "algorithm": algorithm, "ratio": middle["after"] / middle["before"]}
            row |= {"step_s": step_s, "weights": weights, "plans": {side: begun[side]["plan"] for side in order}}
            rows.append(row)
            print(f"round {number + 1}, {model}, {algorithm}: {row['ratio']:.3f}", flush=True)
    return rows


def starts(sources: dict[str, Path], num: int) -> dict[str, dict[str, list[float]]]:
    """Return times of whole processes that import pliant, alternating; the first of each is not counted."""
    found = {what: {side: [] for side in sources} for what in STARTS}
    for what, k in itertools.product(STARTS, range(num + 1)):
        for side in list(sources) if k % 2 == 0 else list(sources)[::-1]:
            start_s = time.perf_counter()
            subprocess.run([sys.executable, "-c", STARTS[what]], env=environment(sources[side]), check=True)
            found[what][side].append(time.perf_counter() - start_s)
    return {what: {side: times[1:] for side, times in sides.items()} for what, sides in found.items()}


def table(found: dict) -> str:
    """Return the results as Markdown."""
    lines = [
        f"# Step times of {found['after']} beside {found['before']}",
        "",
        f"`{found['command']}`",
        "",
        f"{RANKS} ranks over Gloo on loopback; rounds: {len({row['round'] for row in found['rows']})}, each with "
        f"{found['turns']} turns of {found['steps']} steps after {found['warmup']} that do not count; "
        f"`diloco` with a period of 8. {found['machine']['cpu']}; {found['machine']['software']}; "
        f"load {found['machine']['load']} at the start, {found['machine_after']['load']} at the end "
        f"({found['machine']['at']} to {found['machine_after']['at']}).",
        "",
        f"A ratio is the step after over the step before: of the rounds the median (least to most); at most {LIMIT} is "
        "wanted. Weights: whether those of all rounds, before and after, are the same bits.",
        "",
        "| model | algorithm | before | after | ratio | at most 1.02 | weights |",
        "|---|---|--:|--:|--:|---|---|",
    ]
    keys = dict.fromkeys((row["model"], row["algorithm"]) for row in found["rows"])
    for model, algorithm in keys:
        rows = [row for row in found["rows"] if (row["model"], row["algorithm"]) == (model, algorithm)]
        times = [1e3 * statistics.median(s for row in rows for s in row["step_s"][k]) for k in ("before", "after")]
        ratios = [row["ratio"] for row in rows]
        middle = statistics.median(ratios)
        same = len({hashed for row in rows for hashed in row["weights"].values()}) == 1
        lines.append(
            f"| {model} | `{algorithm}` | {times[0]:.2f} ms | {times[1]:.2f} ms | {middle:.3f} ({min(ratios):.3f} to "
            f"{max(ratios):.3f}) | {'yes' if middle <= LIMIT else 'NO'} | {'equal' if same else 'DIFFERENT'} |"
        )
    lines += ["", "| a process that does | before | after | ratio |", "|---|--:|--:|--:|"]
    for what, sides in found["starts"].items():
        before_ms, after_ms = (1e3 * statistics.median(sides[side]) for side in ("before", "after"))
        num = len(sides["before"])
        lines.append(f"| {what} ({num} starts) | {before_ms:.1f} ms | {after_ms:.1f} ms | {after_ms / before_ms:.3f} |")
    return "\n".join([*lines, ""])


def measure(given: argparse.Namespace) -> dict:
    """Build both versions, play all rounds, and return everything that was found."""
    commits = {"before": commit_of(given.before), "after": commit_of(given.after)}
    found = {**commits, "command": shlex.join(["python", *sys.argv]), "machine": machine()}
    found |= {"steps": given.steps, "turns": given.turns, "warmup": given.warmup}
    with tempfile.TemporaryDirectory(prefix="pliant-") as folder:
        sources = {}
        for side, commit in commits.items():
            (Path(folder) / side).mkdir()
            sources[side] = built(commit, Path(folder) / side)
        found["rows"] = [row for number in range(given.rounds) for row in play(number, sources, given)]
        found["starts"] = starts(sources, given.starts)
    return {**found, "machine_after": machine()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", default="b03dab7")
    parser.add_argument("--after", default="HEAD")
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--algorithms", nargs="+", default=ALGORITHMS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--warmup", type=int, default=8)
    parser.add_argument("--starts", type=int, default=20)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--md", type=Path)
    given = parser.parse_args()
    found = measure(given)
    print(table(found))
    if given.json is not None:
        write_atomically(given.json, json.dumps(found) + "\n")
    if given.md is not None:
        write_atomically(given.md, table(found))


if __name__ == "__main__":
    main()
