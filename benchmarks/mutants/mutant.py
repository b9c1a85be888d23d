"""One wrong change of one file: made from two texts, applied to a third that may have moved since."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path


class CannotApplyError(ValueError):
    """The text that a mutant replaces is not there exactly once."""


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A text that is in a file once, and the one that takes its place."""

    id: str
    file: str
    """From the root of the repository."""
    line: int
    """Where it was when the mutant was drawn, from 1."""
    operator: str
    old: str
    new: str
    tests: tuple[str, ...]
    """What covers the file: files and folders of tests, the likeliest first."""

    def apply(self, text: str) -> str:
        """Return the file's text with the change.

        Raises:
            CannotApplyError: If the old text is not there exactly once.

        """
        if (times := text.count(self.old)) != 1:
            raise CannotApplyError(
                f"{self.id}: {self.file} holds {self.old.strip()!r} {times} times, not once; "
                "the code has changed: write the mutant anew."
            )
        return text.replace(self.old, self.new)


def difference(before: str, after: str) -> tuple[int, str, str]:
    """Return (line, old, new): the whole lines that differ, and as many above and below as make the old text unique.

    Args:
        before: A file's text.
        after: The same, changed somewhere.

    """
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    shorter = min(len(old), len(new))
    head = next((k for k in range(shorter) if old[k] != new[k]), shorter)
    tail = next((k for k in range(shorter - head) if old[-1 - k] != new[-1 - k]), shorter - head)
    line = head + 1
    while before.count("".join(old[head : len(old) - tail])) != 1 or head == len(old) - tail:
        if head == 0 and tail == 0:
            raise ValueError("the two texts do not differ, or the first is empty")
        head, tail = max(head - 1, 0), max(tail - 1, 0)
    return line, "".join(old[head : len(old) - tail]), "".join(new[head : len(new) - tail])


def read(path: Path) -> list[Mutant]:
    """Return the mutants of a JSON-lines file."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [Mutant(**{**line, "tests": tuple(line["tests"])}) for line in lines]


def write(path: Path, mutants: Iterable[Mutant]) -> None:
    """Write one line for each."""
    path.write_text("".join(json.dumps(asdict(m), ensure_ascii=False) + "\n" for m in mutants))
