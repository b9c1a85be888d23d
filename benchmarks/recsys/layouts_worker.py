"""One rank that measures layouts: `python layouts_worker.py JOB.json`, with torchrun's environment. See layouts.py."""

import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from layout_data import clicks_of, frame_of
from layout_plans import Frame, layouts
from pliant_arms import hot_of
from session import meet

from pliant.comm import Comm, RecordedComm, new_comm
from pliant.recsys.module import ShardedEmbeddingBag
from pliant.spec import EmbeddingPlan, to_json
from pliant_bench.harness.emit import emit
from pliant_bench.harness.wire import interface_bytes

Inputs = list[Any]

_TIMEOUT_S = 300.0
_MOST_STEPS = 240


@dataclass(kw_only=True)
class Measured:
    """A layout that is being measured."""

    name: str
    plan: EmbeddingPlan
    comm: RecordedComm
    module: ShardedEmbeddingBag
    cycle: int
    """Steps after which what it sends repeats."""
    steps: int = 0
    """In a round."""
    counted_bytes: list[float] = field(default_factory=list[float])
    """That each rank sent in the first cycle."""
    rounds: list[dict[str, float]] = field(default_factory=list[dict[str, float]])


def main(path: Path) -> None:
    """Measure all layouts of a data set at each rate."""
    job = json.loads(path.read_text(encoding="utf-8"))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=_TIMEOUT_S))
    comm = new_comm(dist.group.WORLD, _TIMEOUT_S)
    clicks, frame = clicks_of(job), frame_of(job)
    batches = [clicks.batch(k, comm.rank, job["batch"]) for k in range(job["distinct_batches"])]
    inputs = [list(zip(batch.ids, batch.offsets, strict=True)) for batch in batches]
    plans = layouts(frame)
    for rate in job["rates"]:
        meet(job["flags"], rate, dist.barrier, emit)
        for some in _parts(job["layouts"][rate], job["together"]):
            made = [_made(name, plans[name], frame, comm, inputs, job) for name in some]
            _measure(made, rate, inputs, job)
    dist.barrier()
    comm.close()
    dist.destroy_process_group()


def _parts(names: list[str], size: int) -> list[list[str]]:
    return [names[first : first + size] for first in range(0, len(names), size)]


def _made(
    name: str, plan: EmbeddingPlan, frame: Frame, comm: Comm, inputs: Sequence[Inputs], job: dict[str, Any]
) -> Measured:
    """Make a layout, and count what each rank sends in its first steps."""
    recorded = RecordedComm(comm)
    size = job["ranks_per_host"]
    hosts = [list(range(first, first + size)) for first in range(0, comm.size, size)]
    module = ShardedEmbeddingBag(plan, recorded, lr=0.01, hot=hot_of(plan, frame.frequencies), hosts=hosts)
    found = Measured(
        name=name, plan=plan, comm=recorded, module=module, cycle=math.lcm(plan.every, job["distinct_batches"])
    )
    recorded.reset()
    _run(found, inputs, found.cycle)
    mine = torch.tensor([float(recorded.sent_bytes)], dtype=torch.float64)
    everybody = [torch.empty_like(mine) for _ in range(comm.size)]
    dist.all_gather(everybody, mine)
    found.counted_bytes = torch.cat(everybody).tolist()
    return found


def _run(layout: Measured, inputs: Sequence[Inputs], num_steps: int) -> None:
    generator = torch.Generator().manual_seed(dist.get_rank())
    gradients = [torch.randn(layout.plan.batch_size, t.dim, generator=generator) for t in layout.plan.tables]
    for k in range(num_steps):
        torch.autograd.backward(layout.module(inputs[k % len(inputs)]), gradients)
        layout.module.step()


def _measure(some: Sequence[Measured], rate: str, inputs: Sequence[Inputs], job: dict[str, Any]) -> None:
    """Time layouts in turn, round after round, and say what came out."""
    for layout in some:
        first = _timed(layout, inputs, layout.cycle)
        num = min(_MOST_STEPS, math.ceil(job["window_s"] / first["step_s"]))
        layout.steps = -(-num // layout.cycle) * layout.cycle
    for turn in range(job["rounds"]):
        for layout in [*some[turn % len(some) :], *some[: turn % len(some)]]:
            layout.rounds.append(_timed(layout, inputs, layout.steps))
    for layout in some:
        layout.module.close()
        emit(
            "layout",
            {
                "rate": rate,
                "layout": layout.name,
                "plan": to_json(layout.plan),
                "steps": layout.steps,
                "counted_steps": layout.cycle,
                "counted_bytes": layout.counted_bytes,
                "rounds": layout.rounds,
            },
        )


def _timed(layout: Measured, inputs: Sequence[Inputs], num: int) -> dict[str, float]:
    dist.barrier()
    wire, waited_s, start_s = interface_bytes(), layout.comm.wait_s, time.perf_counter()
    _run(layout, inputs, num)
    took_s = time.perf_counter() - start_s
    dist.barrier()
    mine = [took_s, layout.comm.wait_s - waited_s, float(interface_bytes() - wire)]
    most = torch.tensor(mine, dtype=torch.float64) / num
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return dict(zip(("step_s", "wait_s", "link_bytes"), most.tolist(), strict=True))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
