"""One rank of a benchmark: ``python -m pliant_bench.harness.worker SETUP.json``, with torchrun's environment.

What else travels between a grid's ranks and who started them are files beside SETUP.json.
"""

import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from pliant.spec import load
from pliant_bench.data.images import load_images
from pliant_bench.data.text import load_text
from pliant_bench.harness.cells import measure_cells
from pliant_bench.harness.rounds import measure
from pliant_bench.harness.setup import Setup
from pliant_bench.harness.training import compute_alone, train

__all__ = ["main"]


def main(path: str) -> None:
    """Run all cells of a setup, in one process group."""
    setup = load(Setup, path)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=300))
    if setup.mode == "time":
        for model in setup.models:
            measure(model, setup)
    elif setup.mode == "grid":
        measure_cells(setup, Path(path).parent)
    else:
        task = load_images(Path(setup.data)) if setup.task == "images" else load_text(Path(setup.data))
        alone_s = compute_alone(task, setup)
        for seed in setup.seeds:
            for name in setup.arms:
                train(name, seed, task, setup, alone_s)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
