"""Which tests run the statement that a mutant changes, the quickest first: what the plugin by_test.py has noted."""

import ast
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from mutant import Mutant

PROCESSES = "tests/processes"
"""What runs in processes that tests start is not noted; survivors are tried with these as well."""


class ByLine:
    """What ran in which test.

    Args:
        folder: Of the plugin's files.

    """

    def __init__(self, folder: Path) -> None:
        self._seconds: dict[str, float] = {}
        self._tests: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        for path in folder.glob("*.jsonl"):
            for line in path.read_text().splitlines():
                noted = json.loads(line)
                if noted["test"]:
                    self._seconds[noted["test"]] = noted["seconds"]
                    for file, numbers in noted["lines"].items():
                        for number in numbers:
                            self._tests[file][number].add(noted["test"])
        if not self._seconds:
            raise ValueError(f"{folder} holds no notes of tests; make them with the plugin by_test (docs/mutants.md).")

    def tests(self, mutant: Mutant, text: str) -> list[str]:
        """Return the tests to try; text is the file without the change.

        What runs at import, in whichever test that is, has those that run any line of the file.

        Raises:
            CannotApplyError: If the old text is not there exactly once.

        """
        mutant.apply(text)
        lines = self._tests[mutant.file]
        numbers = statements(text, mutant) or lines.keys()
        found = {test for number in numbers for test in lines.get(number, ())}
        return [*sorted(found, key=lambda test: (self._seconds[test], test)), PROCESSES]

    def seconds(self, tests: Iterable[str]) -> float:
        """Return how long tests took."""
        return sum(self._seconds.get(test, 0.0) for test in tests)


def statements(text: str, mutant: Mutant) -> set[int]:
    """Return the lines of the statements in functions that a mutant changes; of those with a body, those before it."""
    before = _alike(mutant.old, mutant.new)
    after = _alike(mutant.old[before:][::-1], mutant.new[before:][::-1])
    start = text.index(mutant.old)
    first, last = (text.count("\n", 0, start + at) + 1 for at in (before, max(before, len(mutant.old) - after - 1)))
    return {
        number
        for begin, end in _spans(ast.parse(text), inside=False)
        if begin <= last and end >= first
        for number in range(begin, end + 1)
    }


def _alike(one: str, other: str) -> int:
    """Return how many characters at the beginning are the same."""
    return next((k for k, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _spans(node: ast.AST, *, inside: bool) -> Iterator[tuple[int, int]]:
    for child in ast.iter_child_nodes(node):
        defines = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef))
        if inside and not defines and isinstance(child, (ast.stmt, ast.excepthandler, ast.match_case)):
            body = getattr(child, "body", None) or getattr(child, "cases", None)
            begin = _begin(child)
            yield begin, max(begin, _begin(body[0]) - 1) if body else child.end_lineno or begin
        yield from _spans(child, inside=inside or defines)


def _begin(node: ast.AST) -> int:
    return node.pattern.lineno if isinstance(node, ast.match_case) else node.lineno
