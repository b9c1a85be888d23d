"""One rank that measures layouts: `python layouts_worker.py JOB.json`, with torchrun's environment. See layouts.py."""

import json
import math
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from layout_data import clicks_of, frame_of
from layout_plans import layouts
from pliant.recsys.module import ShardedEmbeddingBag
from pliant_arms import hot_of
from session import meet
from torch import Tensor

from pliant.cli.bench.lines import say
from pliant.cli.bench.wire import interface_bytes
from pliant.comm import RecordedComm, own_group
from pliant.recsys.batch import ClickBatch
from pliant.spec import EmbeddingPlan, to_json

_TIMEOUT_S = 300.0
_MOST_STEPS = 240


def main(path: Path) -> None:
    """Measure all layouts of a data set at each rate."""
    job = json.loads(path.read_text(encoding="utf-8"))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=_TIMEOUT_S))
    clicks, frame = clicks_of(job), frame_of(job)
    batches = [clicks.batch(k, dist.get_rank(), job["batch"]) for k in range(job["distinct_batches"])]
    plans = layouts(frame)
    hot = {name: hot_of(plan, frame.frequencies) for name, plan in plans.items()}
    for rate in job["rates"]:
        meet(job["flags"], rate, dist.barrier, say)
        for name in job["layouts"][rate]:
            _measure(name, plans[name], hot[name], rate, batches, job)
    dist.barrier()
    dist.destroy_process_group()


def _measure(
    name: str,
    plan: EmbeddingPlan,
    hot: dict[str, Tensor],
    rate: str,
    batches: Sequence[ClickBatch],
    job: dict[str, Any],
) -> None:
    """Time a layout, and count what each rank sends in its first steps."""
    comm = RecordedComm(own_group(dist.group.WORLD, _TIMEOUT_S))
    module = ShardedEmbeddingBag(plan, comm, lr=0.01, hot=hot)
    generator = torch.Generator().manual_seed(dist.get_rank())
    gradients = [torch.randn(job["batch"], table.dim, generator=generator) for table in plan.tables]
    inputs = [list(zip(batch.ids, batch.offsets, strict=True)) for batch in batches]
    cycle = math.lcm(plan.every, len(batches))

    def steps(first: int, num: int) -> None:
        for k in range(first, first + num):
            torch.autograd.backward(module(inputs[k % len(inputs)]), gradients)
            module.step()

    comm.reset()
    steps(0, cycle)
    counted = _gathered(torch.tensor([float(comm.sent_bytes)], dtype=torch.float64))
    rounds = [_timed(steps, cycle, comm)]
    num = min(_MOST_STEPS, math.ceil(job["window_s"] / rounds[0]["step_s"]))
    num = -(-num // cycle) * cycle
    rounds = [_timed(steps, num, comm) for _ in range(job["rounds"])]
    say(
        "layout",
        {
            "rate": rate,
            "layout": name,
            "plan": to_json(plan),
            "steps": num,
            "counted_steps": cycle,
            "counted_bytes": counted,
            "rounds": rounds,
        },
    )
    comm.close()


def _timed(steps: Any, num: int, comm: RecordedComm) -> dict[str, float]:
    dist.barrier()
    wire, waited_s, start_s = interface_bytes(), comm.wait_s, time.perf_counter()
    steps(0, num)
    took_s = time.perf_counter() - start_s
    dist.barrier()
    mine = torch.tensor([took_s, comm.wait_s - waited_s, float(interface_bytes() - wire)], dtype=torch.float64) / num
    dist.all_reduce(mine, dist.ReduceOp.MAX)
    return dict(zip(("step_s", "wait_s", "link_bytes"), mine.tolist(), strict=True))


def _gathered(x: Tensor) -> list[float]:
    """Return one number (1,) of each rank."""
    everybody = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(everybody, x)
    return torch.cat(everybody).tolist()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
