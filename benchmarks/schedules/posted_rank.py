"""One rank of `posted.py`: ``python posted_rank.py ASKED.json ROUNDS``, with torchrun's environment."""

import json
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.append(str(Path(__file__).parents[1]))

from schedules.meshes_rank import BYTES, Arm, timed, vector_of

from pliant.comm import Comm, new_comm
from pliant.comm.text_broadcast import broadcast_text
from pliant.comm.wrapped import WrappedComm
from pliant.network.probing import probe
from pliant.schedules.dense import dense_candidates
from pliant.schedules.scheduled_comm import ScheduledComm
from pliant.spec import Schedule, Topology, from_json, load, to_json

_TIMEOUT_S = 240.0
_PROBE_S = 10.0


class RoundByRound(WrappedComm):
    """Says that its calls run one after another, so that each round of a schedule posts its own receives."""

    @property
    def is_in_order(self) -> bool:
        return True


def chosen(num_bytes: int, topology: Topology, comm: Comm) -> tuple[str, float, list[float], Schedule]:
    """Return what rank 0 finds the fastest: name, predicted seconds, delays of the rounds, and the schedule."""
    text = ""
    if comm.rank == 0:
        best = dense_candidates(num_bytes, topology)[0]
        delays_s = [each.latency_s for each in best.cost.rounds]
        text = json.dumps([best.name, best.cost.total_s, delays_s, to_json(best.schedule)])
    name, predicted_s, delays_s, schedule = json.loads(broadcast_text(text, comm, device=torch.device("cpu")))
    return name, predicted_s, delays_s, from_json(Schedule, schedule)


def main() -> None:
    """Probe, choose, and let both ways take turns; sums of both are compared to the bit."""
    asked, rounds = load(Topology, Path(sys.argv[1])), int(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=_TIMEOUT_S))
    comm = new_comm(dist.group.WORLD, _TIMEOUT_S)
    topology = probe(comm, budget_s=_PROBE_S, hosts=[[rank] for rank in range(asked.num_ranks)], connections=1)
    found = list[dict[str, object]]()
    for kind, num_bytes in BYTES.items():
        name, predicted_s, delays_s, schedule = chosen(num_bytes, topology, comm)
        ways = {"round by round": RoundByRound(comm), "ahead": comm}
        sums = {way: ScheduledComm(over, schedule) for way, over in ways.items()}
        arms = [
            Arm(arm=way, name=name, predicted_s=predicted_s, run=lambda x, by=by: by.all_reduce(x).wait())
            for way, by in sums.items()
        ]
        results = [vector_of(comm.rank, num_bytes) / 7 for _ in arms]  # no whole numbers: an order would show
        for arm, x in zip(arms, results, strict=True):
            arm.run(x)
        if not torch.equal(*results):
            raise RuntimeError(f"the two ways of {name} gave other bits on rank {comm.rank}.")
        x, seconds = torch.zeros_like(results[0]), {arm.arm: list[float]() for arm in arms}
        for turn in range(rounds):
            for arm in arms[:: 1 if turn % 2 else -1]:
                seconds[arm.arm].append(timed(arm, x, comm))
        about = {"kind": kind, "name": name, "predicted_s": predicted_s, "delays_s": delays_s}
        found.append({**about, "seconds": seconds})
    if comm.rank == 0:
        print(json.dumps({"sums": found, "probed": json.loads(to_json(topology))}), flush=True)
    comm.barrier()
    comm.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
