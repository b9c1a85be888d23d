"""The list of measured trials, drawn from its settings before any was run.

``python benchmarks/dataset/trials.py``    writes benchmarks/dataset/trials_seed1.jsonl

`cluster`: emulated hosts. `cell`: a model with an optimizer on a cluster. `trial`: a plan in a cell; some have a fault.
What is drawn depends on the space of plans as it was on that day, so the file, not this script, is the list.
"""

import itertools
import json
import random
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from dataset.clusters import CLUSTERS, SLOW
from dataset.models import MODELS, static_workload
from dataset.plans import FREE, LEVELS, NAMED, OPTIMIZERS, fits, hybrids, period_of, quality_of
from dataset.trial_list import LIST, SEED, Record

from pliant.algorithms.by_name import plan_of_text
from pliant.planner import BASELINES, Space
from pliant.spec import SyncPlan, Topology, to_json

CONTROL = "ddp-bf16"
"""Builder that comes first and last in each cell: how far the machine has moved meanwhile."""
A_CELL = {"named": 5, "builder": 2, "sample": 3, "hybrid": 2}
FAULTS = ("refused", "slow", "raises", "refused", "slow", "lost", "refused", "slow", "late")
"""What goes wrong on purpose, in every second cell: a plan that the run refuses, one that is given up since it is
slower than 0.8 of the control, a rank that raises, one whose process ends, one that is late for good."""
REFUSED = ("onebit_adam", "decoupled_momentum", "sharded(gradients=int4, weights=differences(int4))")
ABORT_OVER, ABORT_AT_ONCE = 6.0, 0.8
"""A plan is given up whose steps take more than so many times the control's."""
MOST_PERIOD = 16


def trial(origin: str, name: str, plan: SyncPlan, fault: str = "") -> Record:
    """Return a trial without its cell and number."""
    plain = replace(plan, name="", provenance="")
    over = ABORT_AT_ONCE if fault == "slow" else ABORT_OVER
    return {"origin": origin, "name": name, "plan": json.loads(to_json(plain)), "fault": fault, "abort_over": over}


def trials_of(cell: Record, topology: Topology, named: Iterator[str], fault: str) -> list[Record]:
    """Return the trials of a cell in their order; each plan once but for the control."""
    workload, chance = static_workload(cell["model"]), random.Random(f"{SEED} {cell['cell']}")
    space = Space(workload, topology, quality_of(cell["optimizer"]))
    control = trial("control", CONTROL, BASELINES[CONTROL].plan())
    builders = [(name, genes) for name, genes in space.baselines.items() if genes in space and name != CONTROL]
    chance.shuffle(builders)
    drawn = {
        "builder": iter(builders),
        "sample": (("sample", space.sample(chance)) for _ in itertools.count()),
        "hybrid": hybrids(space, workload, topology, chance),
    }
    found = {json.dumps(control["plan"]): control}

    def take(kind: str, name: str, plan: SyncPlan) -> bool:
        one = trial(kind, name, plan)
        key = json.dumps(one["plan"])
        if key in found or period_of(plan) > MOST_PERIOD:
            return False
        found[key] = one
        return True

    for text in (text for text in LEVELS if fits(text, topology)):
        take("named", text, plan_of_text(text))
    for kind, num in A_CELL.items():
        left = num - (len(found) - 1 if kind == "named" else 0)
        while left:
            if kind == "named":
                text = next(named)
                if text not in (*LEVELS, *REFUSED) and not (text in FREE and cell["cluster"] in SLOW):
                    left -= take(kind, text, plan_of_text(text))
            else:
                name, genes = next(drawn[kind])
                left -= take(kind, name, genes.plan())
    middle = [one for one in found.values() if one is not control]
    chance.shuffle(middle)
    if fault:
        text = chance.choice(REFUSED)
        plan = plan_of_text(text) if fault == "refused" else BASELINES["ddp"].plan()
        one = trial("fault", text if fault == "refused" else "ddp", plan, fault)
        middle.insert(chance.randrange(len(middle)), one)
    return [control, *middle, {**control, "origin": "control again"}]


def draw() -> list[Record]:
    """Return clusters, cells and trials, in the order in which they are run."""
    names = itertools.cycle(NAMED)
    faults, optimizers = itertools.cycle(FAULTS), {model: itertools.cycle(OPTIMIZERS) for model in MODELS}
    records: list[Record] = []
    number = 0
    for cluster, (topology, models) in CLUSTERS.items():
        about = {"cluster": cluster, "slow_share": SLOW.get(cluster, 0.0)}
        records.append({"kind": "cluster", **about, "topology": json.loads(to_json(topology))})
        for model in models:
            optimizer = next(optimizers[model])
            cell = {"cell": f"{cluster}/{model}/{optimizer}", "cluster": cluster, "model": model}
            cell["optimizer"] = optimizer
            records.append({"kind": "cell", **cell})
            fault = next(faults) if number % 2 == 0 else ""
            found = trials_of(cell, topology, names, fault)
            records += [{"kind": "trial", "cell": cell["cell"], "number": k, **one} for k, one in enumerate(found)]
            number += 1
    return records


if __name__ == "__main__":
    LIST.write_text("".join(json.dumps(record) + "\n" for record in draw()))
    print(f"{LIST.name} is written; commit it before the first result.")
