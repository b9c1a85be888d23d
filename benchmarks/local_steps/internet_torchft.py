"""One rank of `over_the_internet.py` under torchft's DiLoCo, with the options of `examples/gpt_internet.py`.

Each rank is a replica group of one. The outer optimizer is SGD with Nesterov momentum: 0.9, the paper's, for AdamW, and
0.6, that of MuLoCo, for Muon. The model is one fragment, whose changes are averaged in float32 in one bucket; torchft
has codecs on CUDA alone, and one connection between two ranks.
"""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import SGD
from torchft.local_sgd import DiLoCo

sys.path.append(str(Path(__file__).parents[2] / "examples"))
sys.path.append(str(Path(__file__).parents[1] / "peers"))

from gpt_internet import Judge, Rank, make_step, optimizers_of, parsed, task_of
from torchft_manager import managed

MOMENTUM = {"AdamW": 0.9, "Muon": 0.6}
PERIOD = 30


def mean_of(model: nn.Module) -> dict[str, Tensor]:
    """Return the mean of all ranks' weights, as one message of each hop. Collective."""
    weights = model.state_dict()
    mean = torch.cat([value.flatten() for value in weights.values()]) / dist.get_world_size()
    dist.all_reduce(mean)
    parts = mean.split([value.numel() for value in weights.values()])
    return {name: part.view_as(value) for (name, value), part in zip(weights.items(), parts, strict=True)}


def train(rank: Rank) -> None:
    """Train under torchft, and let rank 0 write what `examples/gpt_internet.py` does."""
    options = parsed()
    task = task_of(options, rank)
    model, judge = task.model(), Judge(task, options.judge_every)
    optimizers = optimizers_of(options.optimizer, model, options.lr)
    manager, close = managed(model, use_async_quorum=False)
    outer = SGD(model.parameters(), lr=0.7, momentum=MOMENTUM[options.optimizer], nesterov=True)
    inner = optimizers[-1]  # which steps last: averages are made after its step
    with DiLoCo(manager, [model], inner, outer, sync_every=PERIOD, use_bucketization=True):
        judge.start()
        for step in range(options.stop or options.steps):
            make_step(model, optimizers, task, step, options, rank)
            judge.after_step(step + 1, lambda: mean_of(model))
        train_s = judge.stop()
    result = {"train_s": train_s, "perplexity": judge.perplexity(mean_of(model)), "curve": judge.curve}
    dist.barrier()
    close()
    if rank.number == 0:
        Path(options.json).write_text(json.dumps(result))


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train(Rank(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])))
    dist.destroy_process_group()
