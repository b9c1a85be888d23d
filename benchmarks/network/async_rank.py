"""One rank of `async_faults.py`: trains under an algorithm at a free pace, and writes down what it does.

Its line is written anew several times a second, so that what a rank that is killed has done is known as well.
"""

import json
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import pliant
from pliant.engine.pair_exchange import PairExchange
from pliant_bench.faults.processes import end_with_job


def exchanges(run: Any, peers: list[int]) -> int:
    """Return the exchanges with some ranks; of averages, the bytes sent, since all take part in each."""
    parts = [part for part in run._executor.parts if isinstance(part, PairExchange)]
    if parts:
        return sum(part.exchanges_with(peer) for part in parts for peer in peers)
    return int(run.stats()["sent_bytes"])


def be(told: dict[str, Any], env: dict[str, str], log: Path) -> None:
    """Be a rank: train until a file says that it is enough. What is printed goes to a file."""
    end_with_job()
    out = os.open(log, os.O_WRONLY | os.O_CREAT)
    os.dup2(out, 1), os.dup2(out, 2)
    os.environ.update(env)
    folder, rank, size = Path(told["folder"]), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if not told["elastic"]:
        dist.init_process_group("gloo")
    model = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    settings = {"elastic": pliant.Elastic(regroup_s=10)} if told["elastic"] else {}
    own, others = folder / f"{rank}.json", [k for k in range(size) if k not in (rank, told["victim"])]

    def say(**what: Any) -> None:
        part = own.with_suffix(".part")
        part.write_text(json.dumps({"rank": rank, "at_s": time.time(), **what}))
        part.rename(own)

    generator = torch.Generator().manual_seed(rank)
    try:
        with pliant.relax(
            model, optimizer, told["algorithm"], timeout_s=told["timeout_s"], start_timeout_s=120.0, **settings
        ) as run:
            while not (folder / "enough").exists():
                x = torch.randn(16, 64, generator=generator)
                optimizer.zero_grad()
                nn.functional.cross_entropy(run.model(x), x[:, :8].argmax(1)).backward()
                optimizer.step()
                if run.steps % 5 == 0:
                    say(steps=run.steps, exchanges=exchanges(run, others), members=list(run.members))
                time.sleep(told["pause_s"])
            done = exchanges(run, others)
        say(steps=run.steps, exchanges=done, members=list(run.members), ended="closed")
    except pliant.CommError as error:
        say(ended="CommError", lost=list(error.lost), error=str(error)[:300])
        raise SystemExit(3) from None
