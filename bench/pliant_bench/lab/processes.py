"""A training of the laboratory whose workers are processes: those of an accelerator, which threads cannot share."""

import pickle
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from pliant.comm import RankContext
from pliant.comm.private_comm import new_comm
from pliant_bench.harness.local import LocalHosts
from pliant_bench.lab.tasks import LabTask
from pliant_bench.lab.training import TIMEOUT_S, Outcome, RankOutcome, Recipe, Worker, first_model, outcome_of

__all__ = ["train_in_processes"]

_ORDER = "order"


def train_in_processes(make_task: Callable[[], LabTask], what: str, recipe: Recipe, device: str) -> Outcome:
    """Train as `train` does, but with a process for each rank; all share the device.

    Backward passes of all threads of a process share one thread of an accelerator, in which a rank that exchanges
    gradients would wait for another one for ever.

    Args:
        make_task: Makes the task in each process; it can be pickled.
        what: An algorithm's name, or a plan's path.
        recipe: Settings of the training.
        device: Such as "cuda" or "cpu".

    Raises:
        RuntimeError: A rank has failed; its last line is in the message.

    """
    start_s, last = time.perf_counter(), dict[int, str]()

    def on_line(rank: int, line: str) -> None:
        last[rank] = line.strip() or last.get(rank, "")

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / _ORDER).write_bytes(pickle.dumps((make_task, what, recipe, device)))
        argv = [sys.executable, "-m", "pliant_bench.lab.processes", folder]
        failed = [end for end in LocalHosts(recipe.ranks).run(argv, on_line=on_line) if end.exit_code]
        if failed:
            first = next((end for end in failed if not end.ended_by_us), failed[0])
            raise RuntimeError(f"rank {first.rank} failed: {last.get(first.rank, 'it said nothing')}")
        ranks: list[RankOutcome] = [
            pickle.loads((Path(folder) / str(rank)).read_bytes())  # noqa: S301  a rank of ours wrote it
            for rank in range(recipe.ranks)
        ]
    return outcome_of(ranks, time.perf_counter() - start_s)


def _be_a_rank(folder: Path) -> None:
    """Carry out the order in a folder, and write this rank's result there."""
    make_task, what, recipe, device = pickle.loads((folder / _ORDER).read_bytes())  # noqa: S301  as above
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    group, task = dist.distributed_c10d._get_default_group(), make_task()
    comm = new_comm(group, TIMEOUT_S)
    place = RankContext(rank=comm.rank, size=comm.size, process_group=group, comm=comm)
    outcome = Worker(task, recipe, first_model(task, recipe.seed), place, device).train(what)
    (folder / str(place.rank)).write_bytes(pickle.dumps(outcome))
    comm.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    _be_a_rank(Path(sys.argv[1]))
