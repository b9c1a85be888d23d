"""Wrong changes of the code that the tests should notice.

``~/.cache/pliant/mutants/bin/python benchmarks/mutants/mutants.py draw``          125 of Python and 25 of C, once
``.venv/bin/python benchmarks/mutants/mutants.py run --mutants benchmarks/mutants/listed.jsonl --out OUT.jsonl``
``.venv/bin/python benchmarks/mutants/mutants.py run --out OUT.jsonl --part 1/2``  one of two processes
``.venv/bin/python benchmarks/mutants/mutants.py run --out OUT.jsonl --by-test NOTES``  by tests that run the change
``.venv/bin/python benchmarks/mutants/mutants.py run --out OUT.jsonl --whole``     survivors, by the whole fast suite
``.venv/bin/python benchmarks/mutants/mutants.py table --out OUT.jsonl``

Each mutant is tried in a copy of the tree in a temporary folder, against the tests that cover its file, or those that
the plugin by_test.py has seen run the very statement, until the first fails. Each gets a line
in the file; the same command goes on where it stopped. The last line of a mutant counts.
"""

import argparse
import fnmatch
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from by_line import ByLine
from drawing import draw_c, draw_python
from mutant import CannotApplyError, Mutant, read, write
from trying import Copy

sys.path.append(str(Path(__file__).parents[1]))

from tasc.accuracy_book import append_record, read_records, say_left

ROOT = Path(__file__).parents[2]
DRAWN = Path(__file__).with_name("drawn_seed1.jsonl")


def results(path: Path) -> dict[str, dict[str, Any]]:
    """Return the last line of each mutant: id -> line. What was cut off is left out."""
    return {record["id"]: record for record in read_records(path)} if path.exists() else {}


def due(mutants: Sequence[Mutant], done: dict[str, dict[str, Any]], *, whole: bool, again: bool) -> list[Mutant]:
    """Return the mutants to try: those without a line; if whole, survivors of covering tests; if again, all."""

    def is_due(m: Mutant) -> bool:
        if (record := done.get(m.id)) is None:
            return not whole
        open_still = record["verdict"] != "killed"
        return open_still and (again or (whole and record["tests"] != "whole"))

    return [m for m in mutants if is_due(m)]


def table(mutants: Sequence[Mutant], done: dict[str, dict[str, Any]]) -> str:
    """Return counts for each folder, and the mutants that are not killed."""
    lines = ["| folder | mutants | tried | killed | survived | other |", "|---|---|---|---|---|---|"]
    folders = sorted({_folder(m) for m in mutants})
    for folder in [*folders, "all"]:
        here = [m for m in mutants if folder in ("all", _folder(m))]
        verdicts = [done[m.id]["verdict"] for m in here if m.id in done]
        counts = [verdicts.count("killed"), verdicts.count("survived")]
        cells = [folder, len(here), len(verdicts), *counts, len(verdicts) - sum(counts)]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    for m in mutants:
        if m.id in done and done[m.id]["verdict"] != "killed":
            record = done[m.id]
            lines += ["", f"{m.id}: {record['verdict']} ({record['tests']} tests), {m.file}:{m.line}, {m.operator}"]
            lines += [f"    - {line}" for line in m.old.splitlines()] + [f"    + {line}" for line in m.new.splitlines()]
    return "\n".join(lines)


def _folder(m: Mutant) -> str:
    return "kernels (C)" if m.file.endswith(".c") else Path(m.file).parts[2]


def draw(arguments: argparse.Namespace) -> None:
    """Write the sample; refuse to draw another one over it."""
    if arguments.mutants.exists():
        raise SystemExit(f"{arguments.mutants} is there: a sample is drawn once, before any is tried.")
    drawn = draw_python(ROOT, 125, arguments.seed) + draw_c(ROOT, 25, arguments.seed)
    write(arguments.mutants, drawn)


def run(arguments: argparse.Namespace) -> None:
    """Try what is due, one line for each."""
    part, of = map(int, arguments.part.split("/"))
    chosen = [m for m in read(arguments.mutants) if fnmatch.fnmatch(m.id, arguments.only)][part - 1 :: of]
    left = due(chosen, results(arguments.out), whole=arguments.whole, again=arguments.again)
    if arguments.list:
        say_left([f"{m.id} {m.file}:{m.line}" for m in left], len(chosen))
        return
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    by_line = ByLine(arguments.by_test) if arguments.by_test else None
    with tempfile.TemporaryDirectory() as folder:
        copy = Copy(ROOT, Path(folder), sanitized=arguments.sanitized)
        for m in left[: arguments.limit]:
            start_s = time.monotonic()
            record: dict[str, Any] = {"id": m.id, "tests": "sanitized" if arguments.sanitized else "covering"}
            tests: Sequence[str] = m.tests
            limit_s = arguments.limit_s
            try:
                if arguments.whole:
                    tests, record["tests"] = ["tests"], "whole"
                elif by_line is not None and m.file.endswith(".py"):
                    tests, record["tests"] = by_line.tests(m, (ROOT / m.file).read_text()), "statement"
                    limit_s += 3 * by_line.seconds(tests)
                outcome = copy.try_out(m, tests, limit_s)
                record |= {"verdict": outcome.verdict, "by": outcome.by}
            except CannotApplyError as error:
                record |= {"verdict": "gone", "by": str(error)}
            record |= {"seconds": round(time.monotonic() - start_s), "commit": commit.strip()}
            append_record(arguments.out, record)
            print(m.id, record["verdict"], record["by"], flush=True)


def main() -> None:
    """Draw, run or print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["draw", "run", "table"])
    parser.add_argument("--mutants", type=Path, default=DRAWN, help="the sample")
    parser.add_argument("--out", type=Path, default=Path("results/mutants.jsonl"), help="one line for each tried")
    parser.add_argument("--seed", type=int, default=1, help="of a draw")
    parser.add_argument("--only", default="*", help="ids, as a pattern")
    parser.add_argument("--limit", type=int, help="how many to try at most")
    parser.add_argument("--list", action="store_true", help="with run: say what is left, and try none")
    parser.add_argument(
        "--limit-s", type=float, default=900.0, help="seconds for a mutant; one that takes longer is killed"
    )
    parser.add_argument("--part", default="1/1", help="K/N: the K-th of N equal parts, for processes side by side")
    parser.add_argument("--by-test", type=Path, help="folder of by_test.py's notes: try the tests that run the change")
    parser.add_argument("--whole", action="store_true", help="try survivors with the whole fast suite")
    parser.add_argument(
        "--sanitized", action="store_true", help="check the addresses of kernels, as scripts/test --all"
    )
    parser.add_argument("--again", action="store_true", help="try survivors again, with tests that are new")
    arguments = parser.parse_args()
    if arguments.what == "draw":
        draw(arguments)
    elif arguments.what == "run":
        run(arguments)
    else:
        print(table(read(arguments.mutants), results(arguments.out)))


if __name__ == "__main__":
    os.chdir(ROOT)
    main()
