"""One rank of a benchmark: ``python -m pliant_bench.harness.worker SETUP.json``, with torchrun's environment.

What else travels between a grid's ranks and who started them are files beside SETUP.json.
"""

import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from pliant.spec import load
from pliant_bench.data.images import load_images
from pliant_bench.data.text import load_text
from pliant_bench.harness.cells import measure_cells
from pliant_bench.harness.learners import LearnsOwn, LearnsTask, TrainedLearner
from pliant_bench.harness.rounds import measure
from pliant_bench.harness.setup import Setup
from pliant_bench.harness.stages import NetworkRequests
from pliant_bench.harness.training import compute_alone, train

__all__ = ["main"]


def main(path: str) -> None:
    """Run all cells of a setup, in one process group."""
    setup = load(Setup, path)
    if not setup.by_torchrun:
        torch.set_num_threads(1)  # ranks share this machine
    dist.init_process_group(_backend(), timeout=timedelta(seconds=300))
    if setup.mode == "time":
        for model in setup.models:
            measure(model, setup)
    elif setup.mode == "grid":
        measure_cells(setup, Path(path).parent)
    else:
        learner = _trained_learner(setup)
        alone_s = compute_alone(learner)
        network = NetworkRequests(Path(path).parent) if setup.emulated else None
        for seed in setup.seeds:
            for name in setup.arms:
                train(name, seed, learner, setup, alone_s, network)
    dist.barrier()
    dist.destroy_process_group()


def _backend() -> str:
    """Return the backend of a user's devices beside Gloo; each rank of a host has its own device."""
    if not torch.accelerator.is_available():
        return "gloo"
    torch.accelerator.set_device_index(int(os.environ.get("LOCAL_RANK", "0")) % torch.accelerator.device_count())
    device = torch.accelerator.current_accelerator()
    backend = "" if device is None else dist.get_default_backend_for_device(device)
    return "gloo" if backend in ("", "gloo") else f"cpu:gloo,{device}:{backend}"


def _trained_learner(setup: Setup) -> TrainedLearner:
    if setup.own:
        return LearnsOwn(where=setup.own, bucket_mb=setup.bucket_mb)
    load_task = load_images if setup.task == "images" else load_text
    return LearnsTask(task=load_task(Path(setup.data)), batch=setup.batch, bucket_mb=setup.bucket_mb, lr=setup.lr)


if __name__ == "__main__":
    main(sys.argv[1])
