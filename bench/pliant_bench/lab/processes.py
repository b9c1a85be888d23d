"""Trainings of the laboratory whose workers are processes: those of an accelerator, which threads cannot share."""

import gc
import itertools
import json
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast, final

import torch
import torch.distributed as dist

from pliant.comm import RankContext
from pliant.comm.private_comm import new_comm
from pliant.network.emulate import RankResult
from pliant.spec.files import write_atomically
from pliant_bench.harness.local import LocalHosts
from pliant_bench.lab.language import language_task
from pliant_bench.lab.training import TIMEOUT_S, Outcome, RankOutcome, Recipe, Worker, first_model, outcome_of

__all__ = ["RankProcesses"]

_POLL_S = 0.01


@final
class RankProcesses:
    """Workers that share a device, each a process, which stay from one training to the next.

    Backward passes of all threads of a process share one thread of an accelerator, in which a rank that exchanges
    gradients would wait for another one for ever. Used with `with`, or closed by hand.

    Args:
        device: Such as "cuda" or "cpu".

    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._life: _Life | None = None

    def train(self, task: Mapping[str, str | int], what: str, recipe: Recipe) -> Outcome:
        """Train as `pliant_bench.lab.training.train` does; ranks begin anew where there are to be more or fewer.

        Args:
            task: Arguments of `language_task`, which each process makes.
            what: An algorithm's name, or a plan's path.
            recipe: Settings of the training.

        Raises:
            RuntimeError: A rank has failed; the error that it named is in the message.

        """
        start_s = time.perf_counter()
        if self._life is not None and self._life.num_ranks != recipe.ranks:
            self.close()
        if self._life is None:
            self._life = _Life(recipe.ranks, self._device)
        try:
            ranks = self._life.carry_out([dict(task), what, asdict(recipe)])
        except RuntimeError:
            self.close()
            raise
        if any(map(_ends, ranks)):
            self.close()
        return outcome_of(ranks, time.perf_counter() - start_s)

    def close(self) -> None:
        """Let all ranks end, and wait for it."""
        life, self._life = self._life, None
        if life is not None:
            life.end()

    def __enter__(self) -> "RankProcesses":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:  # else this process ends soon, and its ranks with it
            self.close()


class _Life:
    """Processes of one world. Orders are files of their folder, by number; each rank answers with a file beside it."""

    def __init__(self, num_ranks: int, device: str) -> None:
        self.num_ranks = num_ranks
        self._temporary = tempfile.TemporaryDirectory()
        self._folder = Path(self._temporary.name)
        self._numbers = itertools.count()
        self._errors, self._results = dict[int, str](), list[RankResult]()
        argv = [sys.executable, "-m", "pliant_bench.lab.processes", self._temporary.name, device]
        self._thread = threading.Thread(target=self._run, args=(argv,), daemon=True)
        self._thread.start()

    def carry_out(self, order: Sequence[Any]) -> list[RankOutcome]:
        """Return each rank's result of a training. Raises RuntimeError if a rank fails."""
        number = self._say(order)
        answers = [self._folder / f"{number}.{rank}" for rank in range(self.num_ranks)]
        while True:
            lives = self._thread.is_alive()  # looked at first: the last act of a rank may be its answer
            if all(answer.exists() for answer in answers):
                return [RankOutcome(**torch.load(answer)) for answer in answers]
            if not lives:
                raise RuntimeError(self._why())
            time.sleep(_POLL_S)

    def end(self) -> None:
        """Wait until all have ended, as they do after the training that they are at."""
        self._say(None)
        self._thread.join()
        self._temporary.cleanup()

    def _say(self, order: Sequence[Any] | None) -> int:
        number = next(self._numbers)
        write_atomically(self._folder / str(number), json.dumps(order))
        return number

    def _run(self, argv: Sequence[str]) -> None:
        self._results += LocalHosts(self.num_ranks).run(argv, on_line=self._hear)

    def _hear(self, rank: int, line: str) -> None:
        if "Error" in line:  # what comes after it is said by connections that end
            self._errors[rank] = line.strip()

    def _why(self) -> str:
        failed = [end for end in self._results if end.exit_code]
        if not failed:
            return "the ranks have ended before their training has."
        first = next((end for end in failed if not end.ended_by_us), failed[0])
        return f"rank {first.rank} failed: {self._errors.get(first.rank, 'it named no error')}"


def _ends(outcome: RankOutcome) -> bool:
    """Say whether a rank ends after a training, since its connections may be broken."""
    return outcome.diverged or bool(outcome.lost)


def _be_a_rank(folder: Path, device: str) -> None:
    """Carry out the orders in a folder, and write this rank's results there."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    group = cast(dist.ProcessGroup, dist.group.WORLD)
    for number in itertools.count():
        if (order := _awaited(folder / str(number))) is None:
            break
        task, what, recipe = order
        comm = new_comm(group, TIMEOUT_S)
        place = RankContext(rank=comm.rank, size=comm.size, process_group=group, comm=comm)
        learned, how = language_task(**task), Recipe(**recipe)
        outcome = Worker(learned, how, first_model(learned, how.seed), place, device).train(what)
        written = folder / f"{number}.{place.rank}.part"
        torch.save(asdict(outcome), written)
        written.rename(written.with_suffix(""))
        comm.close()
        if _ends(outcome):
            break
        gc.collect()  # models may be in cycles, and stay in memory beside the next ones
        torch.cuda.empty_cache()  # what it keeps, no other process of the device can have
    dist.destroy_process_group()


def _awaited(order: Path) -> Any:
    """Return an order, once it is there; None if there are to be no more."""
    while not order.exists():
        time.sleep(_POLL_S)
    return json.loads(order.read_text())


if __name__ == "__main__":
    _be_a_rank(Path(sys.argv[1]), sys.argv[2])
