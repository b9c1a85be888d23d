"""One rank of `loss.py`: ``python loss_rank.py TEXT_FOLDER PAUSE_FILE TRIALS``, with torchrun's environment.

TRIALS is a JSON list of {"setting", "what", "lr", "seed", "steps"}. No trial begins while PAUSE_FILE exists.
"""

import contextlib
import json
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from settings import LOSS_SHAPE
from subjects import Gpt, loss_of
from torch.distributed.fsdp import fully_shard
from torch.optim.lr_scheduler import LambdaLR

import pliant
from pliant_bench.data.text import Text, load_text
from pliant_bench.harness.emit import emit

WARMUP = 50
HELD_OUT = 1024
"""Windows to judge by, all ranks together."""
_TIMEOUT_S = 600.0


def share(step: int, num_steps: int) -> float:
    """Return the share of the learning rate: up over the first steps, then down to 0, in straight lines."""
    return min((step + 1) / WARMUP, (num_steps - step) / (num_steps - WARMUP))


def trained(text: Text, trial: dict[str, Any]) -> dict[str, Any]:
    """Train once; return the held-out loss in nats, and bytes of a step as the run counts them. Collective."""
    shape, rank, size = LOSS_SHAPE, dist.get_rank(), dist.get_world_size()
    torch.manual_seed(trial["seed"])
    model = Gpt(width=shape.width, layers=shape.layers, heads=shape.heads, length=shape.length)
    fully_shard(model)  # as one: what each group costs on a CPU is most of a step of so small a model
    optimizer = torch.optim.AdamW(model.parameters(), lr=trial["lr"])
    schedule = LambdaLR(optimizer, lambda step: share(step, trial["steps"]))
    plain = trial["what"] == "plain FSDP2"
    run = None if plain else pliant.relax(model, optimizer, trial["what"], timeout_s=_TIMEOUT_S)
    with contextlib.nullcontext() if run is None else run:
        for step in range(trial["steps"]):
            inputs, targets = text.batch(step, rank, size, shape.batch, trial["seed"])
            windows = torch.cat([inputs, targets[:, -1:]], 1)[:, : shape.length + 1]
            loss_of(model, windows).backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        sent_bytes = None if run is None else run.stats()["sent_bytes"] / trial["steps"]
    model.eval()
    mine = text.held_out[:HELD_OUT, : shape.length + 1].chunk(size)[rank].long()
    with torch.no_grad():
        losses = torch.stack([loss_of(model, windows) for windows in mine.split(64)])
    dist.all_reduce(total := losses.mean())
    return {"loss": total.item() / size, "sent_bytes": sent_bytes}


def main() -> None:
    """Train one trial after the other."""
    folder, pause, trials = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=_TIMEOUT_S))
    text = load_text(Path(folder))
    for trial in json.loads(trials):
        while dist.get_rank() == 0 and pause and Path(pause).exists():
            time.sleep(2)
        emit("begin", trial)
        dist.barrier()
        began_s, cpu_s = time.perf_counter(), time.process_time()
        found = trained(text, trial)
        took = {"seconds": time.perf_counter() - began_s, "cpu_s": time.process_time() - cpu_s}
        emit("loss", {**trial, **found, **took})
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
