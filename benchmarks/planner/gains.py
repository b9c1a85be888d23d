"""Gain of a searched plan over the best of all plans of one kind, simulated on AutoSync's clusters.

``python benchmarks/planner/gains.py --json LINES --md TABLE``    resumes from LINES; one line a cell

Both sides are predicted by the same simulator, and count the same ratio of steps. The plans of one kind are all names
that need no settings and the builders of `pliant.planner.BASELINES`, as far as they are within the limit of steps.
"""

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from sharded.journal import Lines, show

from pliant.algorithms.plans import plan_of
from pliant.algorithms.registry import algorithm_named, algorithm_names
from pliant.netmodel import overheads_of
from pliant.planner import Genome, LeastTimes, Quality, Space, named_genomes, search_predicted
from pliant.planner.compositions import searched_genes
from pliant.simulator import simulate_many
from pliant.spec import SyncPlan, Workload
from pliant.spec.layers import workload_of_layers
from pliant.spec.models import LAYERS
from pliant.spec.worlds import world

KEY = ("cluster", "share", "model", "limit", "seed")
CLUSTERS = ("autosync-a", "autosync-b")
SHARES = (1.0, 0.25, 0.1)
"""Parts of the clusters' rates: 40 and 50 Gbit/s, 10 and 12.5, 4 and 5."""
MODELS = {"vgg16": 32, "ncf": 4096, "bert": 8, "lm1b": 128}
"""Model -> samples of a GPU in a step, taken as in benchmarks/published/autosync.py."""
OPERATIONS_PER_S = {"titan-x": 3e12, "t4": 4e12}
LIMITS = (1.0, 1.1, 1.5)
CANDIDATES, SEEDS = 400, (0, 1, 2)


def workload(model: str, machine: str) -> Workload:
    """Return a model on a machine."""
    speed = OPERATIONS_PER_S[machine]
    return workload_of_layers(model, LAYERS[model](), batch=MODELS[model], operations_per_s=speed)


def named_plans(space: Space) -> Iterable[tuple[str, SyncPlan, float]]:
    """Yield the plans of one kind within the limit of steps: name, plan, ratio of steps."""
    genes = {gene.exchange: gene for gene in reversed(searched_genes())}
    for name, each in space.baselines.items():
        if each in space:
            yield name, each.plan(), space.quality.factor(each)
    for name in algorithm_names():
        try:
            plan = plan_of(algorithm_named(name))
        except ValueError:  # needs settings, or an optimizer
            continue
        gene = genes.get(plan.rules[-1].exchange)
        if gene is not None and space.quality.admits(gene):
            yield name, plan, space.quality.factor(Genome(gene))


def judged(cluster: str, share: float, model: str, limit: float, seed: int) -> dict[str, object]:
    """Return one line."""
    topology = world(cluster, share)
    work = workload(model, topology.hosts[0].machine)
    space = Space(work, topology, Quality(budget=limit), combined=True)
    builders = list(named_plans(space))
    builders_s = simulate_many([plan for _, plan, _ in builders], work, topology)
    cost_s = {name: float(s) * ratio for (name, _, ratio), s in zip(builders, builders_s, strict=True)}
    best = min(cost_s, key=cost_s.__getitem__)
    simulated = 0

    def step_s(plans: list[Genome]) -> list[float]:
        nonlocal simulated
        simulated += len(plans)
        return simulate_many([genes.plan() for genes in plans], work, topology).tolist()

    least_s = LeastTimes(work, topology, overheads_of(topology))
    seeds = named_genomes() | space.baselines
    found, found_s = search_predicted(space, step_s, seeds, CANDIDATES, seed, least_s=least_s)[0]
    return {
        "cluster": cluster,
        "share": share,
        "model": model,
        "limit": limit,
        "seed": seed,
        "builder": best,
        "builder_s": cost_s[best],
        "plan": found.summary,
        "plan_s": found_s,
        "steps_ratio": space.quality.factor(found),
        "gain": cost_s[best] / found_s,
        "room": cost_s[best] / (work.forward_s + work.backward_s),
        "simulated": simulated,
        "builders": len(builders),
    }


def cells() -> list[tuple[str, float, str, float, int]]:
    """Return all lines that there are to be."""
    return [
        (cluster, share, model, limit, seed)
        for seed in SEEDS
        for share in SHARES
        for cluster in CLUSTERS
        for model in MODELS
        for limit in LIMITS
    ]


def table(lines: list[dict]) -> str:
    """Return the least gain over seeds of each cell, and what stays beside computing."""
    text = [
        "| cluster, part of its rate | model | limit of steps | best plan of one kind | gain | room | searched plan |",
        "|---|---|---|---|---|---|---|",
    ]
    keys = dict.fromkeys((x["cluster"], x["share"], x["model"], x["limit"]) for x in lines)
    for key in keys:
        mine = [x for x in lines if (x["cluster"], x["share"], x["model"], x["limit"]) == key]
        least = min(mine, key=lambda x: x["gain"])
        text.append(
            f"| {key[0]}, {key[1]:g} | {key[2]} | {key[3]:g} | {least['builder']} {1e3 * least['builder_s']:.4g} ms | "
            f"{least['gain']:.2f} | {least['room']:.2f} | {least['plan']} |"
        )
    return "\n".join(text) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--md", type=Path)
    given = parser.parse_args()
    lines = Lines(given.json, KEY)
    for cell in cells():
        if not lines.has(*cell):
            lines.add(judged(*cell))
    show(table(list(lines.records.values())), given.md)


if __name__ == "__main__":
    main()
