"""One rank of `meshes.py`: ``python meshes_rank.py ASKED.json ROUNDS``, with torchrun's environment."""

import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from pliant.comm import Comm, new_comm
from pliant.comm.text_broadcast import broadcast_text
from pliant.network.probing import probe
from pliant.schedules import candidates
from pliant.schedules.dense import dense_candidates, dense_merged, ring_s
from pliant.schedules.scheduled_comm import ScheduledComm
from pliant.spec import Schedule, Topology, from_json, load, to_json

_TIMEOUT_S = 240.0
BYTES = {"dense": 1 << 21, "agreed": (1 << 23) // 40 * 4}
_PROBE_S = 10.0
WINDOW_S, MOST_CALLS = 1.0, 10
_ONCE_S = 3.0
"""An arm that takes longer has one turn: what is slow that long hardly varies."""


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One way of summing."""

    arm: str
    name: str
    predicted_s: float
    run: Callable[[Tensor], None]


def arms_of(num_bytes: int, topology: Topology, comm: Comm) -> list[Arm]:
    """Return the three arms; rank 0 chooses for all. Collective."""
    merged = dense_merged(Schedule(name="", num_ranks=comm.size, num_blocks=8 * comm.size, rounds=()), num_bytes)
    around_s, text = ring_s(num_bytes, topology), ""
    if comm.rank == 0:
        start_s = time.monotonic()
        family, best = candidates(merged, topology)[0], dense_candidates(num_bytes, topology)[0]
        seconds = time.monotonic() - start_s
        told = [(each.name, each.cost.total_s, to_json(each.schedule)) for each in (family, best)]
        text = json.dumps([seconds, *told])
    seconds, family, best = json.loads(broadcast_text(text, comm, device=torch.device("cpu")))

    def ring(x: Tensor) -> None:
        comm.all_reduce(x).wait()

    def by(schedule: str) -> Callable[[Tensor], None]:
        scheduled = ScheduledComm(comm, from_json(Schedule, schedule))
        return lambda x: scheduled.all_reduce(x).wait()

    found = [
        Arm(arm="ring", name="ring", predicted_s=around_s, run=ring),
        Arm(arm="family", name=family[0], predicted_s=family[1], run=by(family[2])),
    ]
    if best[1] < around_s:
        return [*found, Arm(arm="chosen", name=best[0], predicted_s=best[1], run=by(best[2]))]
    return [*found, Arm(arm="chosen", name="ring", predicted_s=around_s, run=ring)]


def vector_of(rank: int, num_bytes: int) -> Tensor:
    """Return a rank's vector, of whole numbers: their sums are exact in any order."""
    return (30 * torch.randn(num_bytes // 4, generator=torch.Generator().manual_seed(rank))).round()


def timed(arm: Arm, x: Tensor, comm: Comm) -> float:
    """Return the seconds of one sum among several, each by itself, of the slowest rank."""
    y, calls = torch.zeros_like(x), max(1, min(MOST_CALLS, math.ceil(WINDOW_S / arm.predicted_s)))
    took_s = 0.0
    for _ in range(calls):
        comm.barrier()
        start_s = time.perf_counter()
        arm.run(y)
        took_s += time.perf_counter() - start_s
    slowest = torch.tensor([took_s / calls])
    comm.all_reduce(slowest, "max").wait()
    return float(slowest)


def main() -> None:
    """Probe, choose, and let the arms take turns."""
    asked, rounds = load(Topology, Path(sys.argv[1])), int(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=_TIMEOUT_S))
    comm = new_comm(dist.group.WORLD, _TIMEOUT_S)
    start_s = time.monotonic()
    topology = probe(comm, budget_s=_PROBE_S, hosts=[[rank] for rank in range(comm.size)], connections=1)
    probe_s, records = time.monotonic() - start_s, []
    if topology.num_ranks != asked.num_ranks:
        raise RuntimeError(f"{topology.num_ranks} ranks were probed, but {asked.num_ranks} were asked for.")
    for kind, num_bytes in BYTES.items():
        each = [vector_of(rank, num_bytes) for rank in range(comm.size)]
        x, wanted = each[comm.rank], torch.stack(each).sum(0)
        arms = arms_of(num_bytes, topology, comm)
        for arm in arms[1:]:  # but not the ring, which may take long
            y = x.clone()
            arm.run(y)
            if not torch.equal(y, wanted):
                raise RuntimeError(f"{arm.name} gave another sum on rank {comm.rank}.")
        seconds: dict[str, list[float]] = {arm.arm: [] for arm in arms}
        for turn in range(rounds):
            for arm in arms[turn % 3 :] + arms[: turn % 3]:
                if not seconds[arm.arm] or seconds[arm.arm][0] < _ONCE_S:
                    seconds[arm.arm].append(timed(arm, x, comm))
        records += [
            {"kind": kind, "arm": a.arm, "name": a.name, "predicted_s": a.predicted_s, "seconds": seconds[a.arm]}
            for a in arms
        ]
    if comm.rank == 0:
        print(json.dumps({"arms": records, "probe_s": probe_s, "probed": json.loads(to_json(topology))}), flush=True)
    comm.barrier()
    comm.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
