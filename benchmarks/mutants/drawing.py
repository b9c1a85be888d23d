"""Which mutants are tried: as many of each file as it has of all lines, then a place in it, then a change there."""

import random
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import c_mutants
import python_mutants
from covering import covering
from mutant import Mutant, difference

FOLDERS = ("codecs", "collectives", "comm", "algorithms", "engine", "schedules")


def shares(sizes: Mapping[str, int], num: int, rng: random.Random) -> list[str]:
    """Return `num` files, larger ones more often: by one random start and equal steps through all lines.

    Args:
        sizes: File -> lines.
        num: How many to return; a file comes as often as its share of the lines says, rounded up or down.
        rng: Where the start comes from.

    """
    step = sum(sizes.values()) / num
    at, found, before = rng.uniform(0, step), [], 0.0
    for file, size in sorted(sizes.items()):
        while at < before + size and len(found) < num:
            found.append(file)
            at += step
        before += size
    return found


def draw_python(root: Path, num: int, seed: int) -> list[Mutant]:
    """Draw mutants of the Python files of FOLDERS."""
    rng = random.Random(seed)
    texts = {
        str(path.relative_to(root)): path.read_text()
        for folder in FOLDERS
        for path in sorted((root / "src" / "pliant" / folder).rglob("*.py"))
    }
    files = shares({file: text.count("\n") for file, text in texts.items()}, num, rng)
    while empty := {file for file in files if not python_mutants.places(texts[file])}:
        texts = {file: text for file, text in texts.items() if file not in empty}
        files = shares({file: text.count("\n") for file, text in texts.items()}, num, rng)
    found: list[Mutant] = []
    for file in files:
        by_place = list(python_mutants.places(texts[file]).values())
        found.append(
            _one(
                file,
                texts[file],
                f"P{len(found) + 1:03}",
                {m.new for m in found},
                lambda by_place=by_place: rng.choice(rng.choice(by_place)),
                lambda text, change: python_mutants.changed(text, change),
            )
        )
    return found


def draw_c(root: Path, num: int, seed: int) -> list[Mutant]:
    """Draw mutants of the C kernels, such as `cc` takes without a warning."""
    rng = random.Random(seed)
    folder = root / "src" / "pliant" / "codecs" / "kernels"
    paths = sorted(folder.glob("*.c"))
    texts = {str(path.relative_to(root)): path.read_text() for path in paths}
    found: list[Mutant] = []
    for file in shares({file: text.count("\n") for file, text in texts.items()}, num, rng):
        possible: Sequence[tuple[str, str]] = list(c_mutants.mutants(texts[file]))
        found.append(
            _one(
                file,
                texts[file],
                f"C{len(found) + 1:03}",
                {m.new for m in found},
                lambda possible=possible: rng.choice(possible),
                lambda _, change: change[1] if _compiles(change[1], folder) else None,
            )
        )
    return found


def _compiles(text: str, folder: Path) -> bool:
    command = ["cc", "-std=gnu11", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-I", folder, "-x", "c", "-"]
    return subprocess.run(command, input=text, text=True, capture_output=True).returncode == 0


def _one(
    file: str, text: str, name: str, taken: set[str], pick: Callable[[], Any], change: Callable[[str, Any], str | None]
) -> Mutant:
    """Pick changes until one is code, and new."""
    for _ in range(1000):
        picked = pick()
        if (after := change(text, picked)) is None:
            continue
        line, old, new = difference(text, after)
        if new not in taken:
            operator = str(picked[0]).removeprefix("core/")
            return Mutant(id=name, file=file, line=line, operator=operator, old=old, new=new, tests=covering(file))
    raise ValueError(f"no change of {file} was found that is code and new.")
