"""A rank of `steps.py`: measures arms one after the other on the network of a cell.

``python benchmarks/grid/steps_rank.py SETUP.json UNTIL``    with torchrun's environment; UNTIL: no arm begins later
"""

import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from pliant.spec import load
from pliant_bench.harness.cells import Turns, computing_s, ready_arm, take_turns
from pliant_bench.harness.emit import emit
from pliant_bench.harness.learners import timed_learner
from pliant_bench.harness.rank_speed import speed_of
from pliant_bench.harness.setup import OPEN, Setup
from pliant_bench.harness.stages import NetworkRequests
from pliant_bench.harness.wire import busiest

TIMEOUT_S = 300.0


def main(path: str, until_s: float) -> None:
    """Make and warm up each arm while nothing limits the network, measure it on the cell's, and say what came out."""
    setup = load(Setup, path)
    (cell,) = setup.cells
    network = NetworkRequests(Path(path).parent)
    torch.set_num_threads(1)  # ranks share this machine
    dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT_S))
    learner = timed_learner(cell.model, setup)
    network.wait_for(OPEN)
    alone_s = computing_s(ready_arm("compute", learner), learner)
    speed = speed_of(cell.slow_share, alone_s)
    for name in setup.arms:
        network.wait_for(OPEN)
        if busiest([time.time()])[0] > until_s:
            break
        arm = ready_arm(name, learner)
        network.wait_for(0)
        turns = Turns(arm, learner, speed)
        take_turns([turns], setup)
        emit("arm", {"arm": name, "computing_s": alone_s, **turns.found()})
        arm.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
