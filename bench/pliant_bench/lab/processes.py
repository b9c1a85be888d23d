"""A training of the laboratory whose workers are processes: those of an accelerator, which threads cannot share."""

import json
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import cast

import torch
import torch.distributed as dist

from pliant.comm import RankContext
from pliant.comm.private_comm import new_comm
from pliant_bench.harness.local import LocalHosts
from pliant_bench.lab.language import language_task
from pliant_bench.lab.training import TIMEOUT_S, Outcome, RankOutcome, Recipe, Worker, first_model, outcome_of

__all__ = ["train_in_processes"]

_ORDER = "order"


def train_in_processes(task: Mapping[str, str | int], what: str, recipe: Recipe, device: str) -> Outcome:
    """Train as `train` does, but with a process for each rank; all share the device.

    Backward passes of all threads of a process share one thread of an accelerator, in which a rank that exchanges
    gradients would wait for another one for ever.

    Args:
        task: Arguments of `language_task`, which each process makes.
        what: An algorithm's name, or a plan's path.
        recipe: Settings of the training.
        device: Such as "cuda" or "cpu".

    Raises:
        RuntimeError: A rank has failed; the error that it named is in the message.

    """
    start_s, errors = time.perf_counter(), dict[int, str]()

    def on_line(rank: int, line: str) -> None:
        if "Error" in line:  # what comes after it is said by connections that end
            errors[rank] = line.strip()

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / _ORDER).write_text(json.dumps([dict(task), what, asdict(recipe), device]))
        argv = [sys.executable, "-m", "pliant_bench.lab.processes", folder]
        failed = [end for end in LocalHosts(recipe.ranks).run(argv, on_line=on_line) if end.exit_code]
        if failed:
            first = next((end for end in failed if not end.ended_by_us), failed[0])
            raise RuntimeError(f"rank {first.rank} failed: {errors.get(first.rank, 'it named no error')}")
        ranks = [RankOutcome(**torch.load(Path(folder) / str(rank))) for rank in range(recipe.ranks)]
    return outcome_of(ranks, time.perf_counter() - start_s)


def _be_a_rank(folder: Path) -> None:
    """Carry out the order in a folder, and write this rank's result there."""
    task, what, recipe, device = json.loads((folder / _ORDER).read_text())
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    group = cast(dist.ProcessGroup, dist.group.WORLD)
    comm = new_comm(group, TIMEOUT_S)
    place = RankContext(rank=comm.rank, size=comm.size, process_group=group, comm=comm)
    learned, how = language_task(**task), Recipe(**recipe)
    outcome = Worker(learned, how, first_model(learned, how.seed), place, device).train(what)
    torch.save(asdict(outcome), folder / str(place.rank))
    comm.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    _be_a_rank(Path(sys.argv[1]))
