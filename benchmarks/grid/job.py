"""One job of the grid: its trials, its file with one line a trial, and the time that it may take. No torch."""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))

from grid.trials import LIST, read
from house.versions import commit_of
from sharded.journal import Lines

Record = dict[str, Any]
KEY = ("kind", "cell", "arm", "number", "seed", "lr")


class Job:
    """Trials of some kinds, in the order of the list; what has a line, of a failure too, is not run again.

    Args:
        results: File of the lines.
        kinds: Kind of trial -> seconds that one takes, as long as no line says so.
        seconds: No trial begins later; 0: no limit.
        most: No trial begins after so many; 0: no limit.
        trials: The list.

    """

    def __init__(
        self, results: Path, kinds: dict[str, float], seconds: float = 0.0, most: int = 0, trials: Path = LIST
    ) -> None:
        self.lines = Lines(results, KEY)
        self.kinds = kinds
        self.until_s = time.time() + seconds if seconds else float("inf")
        self.may = float(most or "inf")
        self._trials = [trial for kind in kinds for trial in read(kind, trials)]
        self._commit = commit_of("HEAD")
        self._since_s = time.monotonic()

    def left(
        self, kind: str, cells: Sequence[str] = (), arms: Sequence[str] = (), seeds: Sequence[int] = ()
    ) -> list[Record]:
        """Return the trials of a kind without a line; of some cells, arms and seeds alone, if any are named."""
        wanted = {name: among for name, among in (("cell", cells), ("arm", arms), ("seed", seeds)) if among}
        mine = [t for t in self._trials if t["kind"] == kind and all(t[name] in wanted[name] for name in wanted)]
        return [trial for trial in mine if self.lines.find(**trial) is None]

    def has_time(self) -> bool:
        """Say whether a further trial may begin."""
        return self.may > 0 and time.time() < self.until_s

    def begin(self) -> None:
        """Let the time of the next line count from now."""
        self._since_s = time.monotonic()

    def add(self, trial: Record, found: Record) -> None:
        """Write the line of a trial: what was found, or its `error`."""
        made = {"took_s": round(time.monotonic() - self._since_s, 2), "commit": self._commit}
        made |= {"load": round(os.getloadavg()[0], 2), "at": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())}
        self.lines.add({**trial, **found, **made})
        self.begin()
        self.may -= 1
        print(", ".join(map(str, trial.values())), "-", found.get("error", f"{made['took_s']:.0f} s"), flush=True)

    def text(self) -> str:
        """Return what is left of each kind, and about how long it takes."""
        return "\n".join(self._text_of(kind) for kind in self.kinds)

    def _text_of(self, kind: str) -> str:
        done, left = self.lines.of_kind(kind), self.left(kind)
        took_s = [record["took_s"] for record in done]
        each_s = sum(took_s) / len(took_s) if took_s else self.kinds[kind]
        failed = sum("error" in record for record in done)
        cells = list(dict.fromkeys(trial["cell"] for trial in left if "cell" in trial))
        return (
            f"{kind}: {len(done)} done, {failed} of them failed; {len(left)} left, about {len(left) * each_s / 60:.0f} "
            f"min at {each_s:.0f} s each{': ' if cells else ''}{', '.join(cells)}"
        )


def narrow(parser: argparse.ArgumentParser, arms: Sequence[str], when: str = "") -> None:
    """Add the options that name cells and arms, of the given ones."""
    cells = [cell["cell"] for cell in read("cell")]
    for name, known in (("cells", cells), ("arms", arms)):
        about = f"{when}these {name} alone"
        parser.add_argument(f"--{name}", nargs="+", default=(), choices=known, metavar="NAME", help=about)


def options(about: str, results: Sequence[str]) -> argparse.ArgumentParser:
    """Return the options that all jobs have."""
    parser = argparse.ArgumentParser(description=about.partition("\n")[0])
    for name in results:
        parser.add_argument(f"--{name}", type=Path, required=True, help="file of lines, one a trial")
    parser.add_argument("--seconds", type=float, default=0.0, help="begin no trial later than this; 0: no limit")
    parser.add_argument("--most", type=int, default=0, help="end after so many trials; 0: no limit")
    parser.add_argument("--list", action="store_true", help="only say what is left, and about how long it takes")
    return parser
