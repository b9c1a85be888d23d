"""Rows that nobody measured: plans on clusters and models at random, simulated. The same seed gives the same rows."""

import random
from collections.abc import Iterator
from itertools import islice

from dataset.clusters import even, pairs, racks, uneven
from dataset.plans import NAMED, OPTIMIZERS, fits, hybrids, quality_of
from dataset.rows import SIMULATOR, Tables, rounded, simulated
from dataset.schema import Row

from pliant.algorithms.by_name import plan_of_text
from pliant.planner import WORKLOADS, Genome, Space, scaled_down
from pliant.spec import SyncPlan, Topology, Workload

__all__ = ["CELLS", "SEED", "add_simulated"]

SEED = 1
CELLS = 170
PLANS_A_CELL, NAMED_A_CELL, HYBRIDS_A_CELL = 56, 12, 8
TRIES = 40
SMALL_BYTES = (4e6, 30e6)
HOSTS, RANKS, MOST_RANKS = (2, 3, 4, 6, 8, 16, 32), (1, 2, 4, 8), 128
MBIT = (20, 50, 100, 200, 500, 1000, 2500, 10_000, 25_000)
DELAYS_S = (0.0, 1e-4, 1e-3, 5e-3, 2e-2)
SHAPES = ("even", "even", "uneven hosts", "uneven pairs", "uneven pairs", "home uplinks", "racks")
MOST_PAIRED, MOST_SCHEDULED = 8, 4
"""Hosts of a cluster whose pairs all differ, at most, and ranks among which sums may take ways of their own: a way
through more is not found in a second."""


def add_simulated(tables: Tables, seed: int = SEED, cells: int = CELLS) -> None:
    """Add the rows of so many cells, each a model on a cluster under some plans."""
    for number in range(cells):
        chance = random.Random(f"simulated {seed} {number}")
        family = chance.choice(sorted(WORKLOADS))
        workload, share = WORKLOADS[family](), 1.0
        if chance.random() < 0.5:
            workload, share = scaled_down(workload, chance.choice(SMALL_BYTES))
        name, topology = _cluster(chance)
        slow_share = chance.choice((0.25, 0.5)) if chance.random() < 0.2 else 0.0
        keys = {
            "session": tables.session(f"assumed-{family}", "", workload.provenance.partition(";")[0], workload),
            "model": tables.model(family, workload, share),
            "cluster": tables.cluster(name + ("-slow" if slow_share else ""), topology, slow_share),
            "optimizer": chance.choice(OPTIMIZERS),
        }
        for k, (origin, text, plan) in enumerate(_plans(workload, topology, keys["optimizer"], chance)):
            row = _row(plan, workload, topology, slow_share)
            about = {"run": f"simulated-{seed}-{number}-{k}", "origin": origin, "name": text, "seed": seed}
            tables.runs.append({**row, **about, **keys, "plan": tables.plan(plan)})


def _row(plan: SyncPlan, workload: Workload, topology: Topology, slow_share: float) -> Row:
    found = simulated(plan, workload, topology, slow_share)
    predicted = found.pop("predicted", None)
    row = {
        "kind": "simulated",
        "status": "ok" if predicted else "failed",
        "reason": "" if predicted else "the plan does not fit this model or this cluster",
        "step_s": found["simulated_s"],
        "blocks_s": [],
        "num_steps": 0,
        "period": predicted.period if predicted else 0,
        "compute_s": rounded(predicted.compute_s) if predicted else None,
        "exposed_s": rounded(predicted.exposed_s) if predicted else None,
        "codec_s": rounded(predicted.codec_s) if predicted else None,
        "sent_bytes": rounded(max(predicted.sent_bytes)) if predicted else None,
        "load": None,
        "version": SIMULATOR,
    }
    return {**row, **found}


def _plans(
    workload: Workload, topology: Topology, optimizer: str, chance: random.Random
) -> Iterator[tuple[str, str, SyncPlan]]:
    space = Space(workload, topology, quality_of(optimizer))
    known: set[str] = set()

    def is_new(plan: SyncPlan) -> bool:
        new = plan.hash not in known
        known.add(plan.hash)
        return new

    for text in chance.sample([text for text in NAMED if fits(text, topology)], NAMED_A_CELL):
        if is_new(plan := plan_of_text(text)):
            yield "named", text, plan

    def is_quick(genes: Genome) -> bool:
        return not genes.by_schedule or topology.num_ranks <= MOST_SCHEDULED

    for name, genes in islice(hybrids(space, workload, topology, chance), HYBRIDS_A_CELL):
        if is_quick(genes) and is_new(plan := genes.plan()):
            yield "hybrid", name, plan
    for name, genes in space.distinct(chance, TRIES, is_quick):
        if len(known) >= PLANS_A_CELL:
            return
        if is_new(plan := genes.plan()):
            yield "sample" if name == "sample" else "builder", name, plan


def _cluster(chance: random.Random) -> tuple[str, Topology]:
    """Return a cluster and its name, without a slow host."""
    shape = chance.choice(SHAPES)
    num_hosts = chance.choice([n for n in HOSTS if shape != "uneven pairs" or 2 < n <= MOST_PAIRED])
    num_ranks = chance.choice([n for n in RANKS if n * num_hosts <= MOST_RANKS])
    if shape == "racks" and (num_hosts % 2 or num_ranks > 1):
        shape = "even"
    rate, delay_s = chance.choice(MBIT), chance.choice(DELAYS_S)
    name = f"{num_hosts}x{num_ranks}-{rate}mbit-{shape.replace(' ', '-')}"
    if shape == "uneven hosts":
        rates = [rate * 1.25e5 * chance.choice((1.0, 0.5, 0.25)) for _ in range(num_hosts)]
        return name, uneven([(r, r) for r in rates], num_ranks, delay_s)
    if shape == "uneven pairs":
        return name, pairs(num_hosts, num_ranks, f"{rate}mbit", chance)
    if shape == "racks":
        return name, racks(2, num_hosts // 2, f"{rate}mbit", f"{rate}mbit")
    send = f"{max(1, rate // 5)}mbit" if shape == "home uplinks" else ""
    return name, even(num_hosts, num_ranks, f"{rate}mbit", delay_s, send)
