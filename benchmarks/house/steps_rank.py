"""One rank of `steps.py`: trains as the lines on standard input say, with whichever version of Pliant is on the path.

A model and an algorithm begin a training; each number after them is a turn of so many steps, and 0 ends it.
"""

import hashlib
import itertools
import json
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import pliant
from pliant_bench.models import TASKS

MARK = "steps: "


def main() -> None:
    """Train until standard input ends."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)

    def say(**what: object) -> None:
        if dist.get_rank() == 0:
            print(MARK + json.dumps(what), flush=True)

    def train(model_name: str, algorithm: str) -> None:
        torch.manual_seed(0)
        task = TASKS[model_name]
        generator = torch.Generator().manual_seed(dist.get_rank())
        batches = itertools.cycle([task.batch(generator) for _ in range(16)])
        model = DistributedDataParallel(task.model())
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
        what = pliant.diloco(period=8) if algorithm == "diloco" else algorithm
        with pliant.relax(model, optimizer, what) as run:
            say(version=pliant.__file__, plan=str(run.plan))
            for line in sys.stdin:
                num_steps = int(line)
                if not num_steps:
                    break
                dist.barrier()
                start_s = time.perf_counter()
                for _ in range(num_steps):
                    optimizer.zero_grad()
                    task.loss(model, next(batches)).backward()
                    optimizer.step()
                dist.barrier()
                say(step_s=(time.perf_counter() - start_s) / num_steps)
        found = hashlib.sha256()
        for tensor in model.state_dict().values():
            found.update(tensor.numpy().tobytes())
        say(weights=found.hexdigest())

    for line in sys.stdin:
        train(*line.split())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
