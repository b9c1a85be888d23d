"""Lines of processes that ran side by side, merged into one file: those of one job, a line a trial.

    python benchmarks/merge_lines.py OUT.jsonl PART.jsonl ... --key benchmarks/local_steps/rates.py [--trials LIST]

The key says which lines are about the same trial: names with commas, or the script whose `KEY` they are. OUT's own
lines count, if it is there. Equal lines of several files become one. Two that differ, though they are about the same
trial, are refused, and nothing is written; of lines in one file the first counts, as in every job. With --trials a line
stands where the trial of that list stands with which it agrees most; else lines are in the order of the files.
"""

import argparse
import ast
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent))

from tasc.accuracy_book import Book, read_records

from pliant.spec.files import write_atomically

Record = dict[str, Any]


def key_of(text: str) -> tuple[str, ...]:
    """Return the names of a key: those between commas, or the `KEY` of a script.

    Raises:
        ValueError: The script has no `KEY`, or not one.

    """
    if not text.endswith(".py"):
        return tuple(text.split(","))
    made = [node for node in ast.walk(ast.parse(Path(text).read_text())) if isinstance(node, ast.Assign)]
    keys = [
        node.value for node in made if any(isinstance(name, ast.Name) and name.id == "KEY" for name in node.targets)
    ]
    found = {ast.literal_eval(value) for value in keys if isinstance(value, ast.Tuple)}
    if len(found) != 1:
        raise ValueError(f"{text} has {len(found)} keys, but one is needed; give its names, with commas.")
    return found.pop()


def merged(paths: Sequence[Path], key: Sequence[str], trials: Sequence[Record] = ()) -> list[Record]:
    """Return the lines of files, each trial once, in the order of the trials.

    Raises:
        ValueError: Two files have different lines of one trial, or a line has nothing of the key.

    """

    class Lines(Book):
        KEY = tuple(key)

    found: dict[tuple[Any, ...], tuple[Path, Record]] = {}
    for path in paths:
        for about, line in Lines(path).records.items():
            if about == (None,) * len(about):
                raise ValueError(f"{path} has a line without {', '.join(key)}; give the key of its job.")
            other, before = found.setdefault(about, (path, line))
            if before != line:
                raise ValueError(f"{other} and {path} have different lines of {about}; delete one of the two.")
    lines = [line for _, line in found.values()]
    return sorted(lines, key=lambda line: _place(line, key, trials))


def _place(line: Record, key: Sequence[str], trials: Sequence[Record]) -> int:
    """Return the place of the first trial that agrees with a line in the most names; 0 without trials."""
    agree = [sum(name in trial and trial[name] == line.get(name) for name in key) for trial in trials]
    return agree.index(max(agree)) if agree else 0


def main(argv: Sequence[str] | None = None) -> None:
    """Merge files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="file to write; its own lines count, if it is there")
    parser.add_argument("parts", type=Path, nargs="+", help="files of lines")
    parser.add_argument("--key", required=True, help="names with commas, or the script whose KEY they are")
    parser.add_argument("--trials", type=Path, help="list of trials, in whose order lines are to be")
    given = parser.parse_args(argv)
    if missing := [str(path) for path in given.parts if not path.exists()]:
        parser.error(f"there is no {', '.join(missing)}; give files that a job has written.")
    paths = list(dict.fromkeys([given.out, *given.parts]))
    try:
        lines = merged(paths, key_of(given.key), read_records(given.trials) if given.trials else ())
    except ValueError as error:
        parser.error(str(error))
    write_atomically(given.out, "".join(json.dumps(line) + "\n" for line in lines))
    print(f"{given.out} has {len(lines)} lines.")


if __name__ == "__main__":
    main()
