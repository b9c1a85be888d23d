"""One rank of `gains_measured.py`: a search by "auto", or turns of the plans that were found and of whole-model plans.

``python benchmarks/planner/gains_rank.py JOB.json``, with torchrun's environment
"""

import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

sys.path.append(str(Path(__file__).parents[1]))

from dataset.models import MODELS
from planner.held_out_rank import TIMEOUT_S, Training, search, taken

from pliant.spec import SyncPlan, from_json
from pliant_bench.collect.trial import run_trial
from pliant_bench.harness.emit import emit

HOPELESS = 1.5
"""A plan whose first turn cost so many times the least has no other turn: it is not the best."""


def turns(training: Training, job: dict[str, Any]) -> None:
    """Try what was found for each limit, then let the best of each, and all whole-model plans, take turns."""
    plans = {name: from_json(SyncPlan, json.dumps(one["plan"])) for name, one in job["plans"].items()}
    run_trial(training, plans[job["first"]], 0.0, wire=True)  # DDP lays out its buckets, and TCP finds its window
    cost_s: dict[str, float] = {}

    def turn(number: int, arm: str, name: str) -> None:
        found = taken(training, plans[name], arm, job["plans"][name]["period"])
        cost_s[arm] = min(found["step_s"] * job["plans"][name]["ratio"], cost_s.get(arm, float("inf")))
        emit("turn", {"round": number, "arm": arm, "plan": name, **found})

    tried = dict.fromkeys(name for names in job["tried"].values() for name in names)
    for name in tried:
        turn(-1, name, name)
    arms = {arm: min(names, key=cost_s.__getitem__) for arm, names in job["tried"].items()}
    arms |= {name: name for name in plans if name not in tried or name == job["kept"]}
    cost_s.clear()
    for number in range(job["rounds"]):
        for arm in list(arms) if number % 2 == 0 else reversed(list(arms)):
            found = arm == job["kept"] or arm in job["tried"]
            if number == 0 or found or cost_s[arm] <= HOPELESS * min(cost_s.values()):
                turn(number, arm, arms[arm])


def main(path: str) -> None:
    """Carry out a job."""
    job = json.loads(Path(path).read_text())
    torch.set_num_threads(1)  # ranks share this machine
    dist.init_process_group("gloo", timeout=timedelta(seconds=2 * TIMEOUT_S))
    if "plans" in job:
        training = Training(MODELS[job["model"]], "bf16")
        turns(training, job)
        training.run.close()
    else:
        search(MODELS[job["model"]], job)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
