"""One rank of a plain DDP script, which knows nothing of Pliant and trains as many steps as it is told.

`unhelped.py` starts it. A line of the pipe `go-RANK` is a number of steps; rank 0 writes to the pipe `done` how many
seconds they took. An empty line ends it.
"""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH, BATCH, CLASSES = 256, 512, 100


def main() -> None:
    """Train blocks of steps, one a line."""
    folder = Path(sys.argv[1])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    hidden = [layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    model = DistributedDataParallel(nn.Sequential(*hidden, nn.Linear(WIDTH, CLASSES)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    images = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(rank))
    labels = torch.arange(BATCH) % CLASSES

    with (folder / f"go-{rank}").open() as go, (folder / "done").open("w") as done:
        for line in go:
            if not line.strip():
                break
            start_s = time.perf_counter()
            for _ in range(int(line)):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(images), labels).backward()
                optimizer.step()
            dist.barrier()
            if rank == 0:
                print(time.perf_counter() - start_s, file=done, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
