"""Gain of a searched plan over the best of all whole-model plans, measured on emulated hosts with real computing.

``python benchmarks/planner/gains_measured.py --out gains_measured.jsonl``           what has no line yet, and the table
``python benchmarks/planner/gains_measured.py --out gains_measured.jsonl --table``   the table alone

In each of `CELLS` a model is trained by SGD under "auto" with quality 1.5, without experience. With the costs that it
has measured and fitted, a search among combinations (`Space(combined=True)`, `CANDIDATES` predictions) follows for each
of `LIMITS`. Its `TRIED` best predicted plans, and what "auto" kept, have a trial each; the best of a limit is the
searched plan. Then the searched plans, the kept one and all whole-model plans within the larger limit take turns on the
same model: in even rounds in their order, in odd ones from the last to the first. A whole-model plan whose first turn
costs 1.5 times the least has no other. Those plans are all names that need no settings, and the builders of
`pliant.planner.BASELINES`.

Gain: step time times steps ratio of the best whole-model plan within a limit, over that of the searched plan; each the
median of its turns. Trials do not count. A cell that is not complete is made anew. Needs an idle machine, and root.
"""

import argparse
import json
import random
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))

from dataset.clusters import even, pairs
from planner.gains import named_plans
from planner.held_out import BURST
from sharded.journal import Lines, place, run_ranks

from pliant.network import EmulatedCluster, emulate_cluster
from pliant.planner import Genome, LeastTimes, Quality, Space, named_genomes, search_predicted
from pliant.planner.experience import Experience, load_experience
from pliant.planner.schedules import scheduled_plan, with_schedules
from pliant.simulator import simulate, simulate_many
from pliant.spec import SyncPlan, to_json

LIMITS = (1.1, 1.5)
CANDIDATES, TRIED, ROUNDS, FIRST_STEPS = 400, 6, 3, 100
KEPT = "kept"
RANK = Path(__file__).with_name("gains_rank.py")
NETWORKS = {
    "4 hosts, 400 Mbit/s": even(4, 1, "400mbit"),
    "4 hosts of 2 ranks, 300 Mbit/s": even(4, 2, "300mbit"),
    "4 hosts, pairs of 300 Mbit/s": pairs(4, 1, "300mbit", random.Random(21)),
    "3 hosts of 2 ranks, pairs of 300 Mbit/s": pairs(3, 2, "300mbit", random.Random(22)),
}
MODELS = ("vgg", "clicks", "gpt", "lstm")
"""Small ones of the kinds that AutoSync's are: VGG16, NCF, BERT and LM-1B."""
CELLS = [(network, model) for network in NETWORKS for model in MODELS]
KEY = ("kind", "network", "model", "round", "arm")


def measure(lines: Lines, network: str, model: str) -> None:
    """Bring up a cell's hosts, and keep what was found there, and all turns."""
    about = {"network": network, "model": model}
    with tempfile.TemporaryDirectory() as folder, emulate_cluster(NETWORKS[network], burst=BURST) as hosts:
        path = Path(folder) / "experience.json"
        auto = {"steps": FIRST_STEPS, "quality": max(LIMITS), "experience": str(path)}
        (told,) = _carried_out(hosts, Path(folder), {"model": model, **auto})
        asked = _searched(load_experience(path))
        job = {"model": model, "rounds": ROUNDS, "first": "ddp-bf16", "kept": KEPT, **asked}
        turns = _carried_out(hosts, Path(folder), job)
    for line in turns:
        lines.add({**line, **about})
    lines.add({**told, **about, **asked, **place()})


def _carried_out(hosts: EmulatedCluster, folder: Path, job: dict[str, Any]) -> list[dict[str, Any]]:
    said: list[dict[str, Any]] = []
    path = folder / "job.json"
    path.write_text(json.dumps(job))
    run_ranks(hosts, str(RANK), [str(path)], said.append)
    return said


def _searched(found: Experience) -> dict[str, Any]:
    """Return plans by name, and for each limit the names of those to be tried, and of whole-model plans."""
    work, topology, costs = found.workload, found.topology, found.learned_overheads
    least_s = LeastTimes(work, topology, costs)
    plans: dict[str, dict[str, Any]] = {}
    tried: dict[str, list[str]] = {}
    whole: dict[str, list[str]] = {}

    def add(name: str, plan: SyncPlan, ratio: float) -> None:
        told = simulate(plan, work, topology, overheads=costs)
        about = {"predicted_s": told.step_s, "period": told.period, "ratio": ratio}
        plans[name] = {**about, "plan": json.loads(to_json(plan))}

    def scheduled(genes: Genome) -> SyncPlan:
        return scheduled_plan(genes, work, topology, costs)

    def step_s(genomes: list[Genome]) -> list[float]:
        return simulate_many([scheduled(genes) for genes in genomes], work, topology, overheads=costs).tolist()

    for limit in LIMITS:
        space = Space(work, topology, Quality(budget=limit), combined=True)
        seeds = named_genomes() | space.baselines
        best = search_predicted(space, step_s, seeds, CANDIDATES, 0, least_s=least_s)[:TRIED]
        for genes, _ in best:
            add(genes.summary, scheduled(genes), space.quality.factor(genes))
        builders = list(named_plans(space))
        for name, plan, ratio in builders:
            add(name, with_schedules(plan, work, topology, costs), ratio)
        tried[f"{limit:g}"] = [genes.summary for genes, _ in best] + [KEPT] * (found.kept in space)
        whole[f"{limit:g}"] = [name for name, _, _ in builders]
    add(KEPT, scheduled(found.kept), Quality(budget=max(LIMITS)).factor(found.kept))
    return {"plans": plans, "tried": tried, "whole": whole, "kept_summary": found.kept.summary}


def gains(lines: Lines, network: str, model: str) -> list[dict[str, Any]]:
    """Return what the lines of a cell say, for each limit."""
    mine = [one for one in lines.records.values() if (one["network"], one["model"]) == (network, model)]
    (auto,) = (one for one in mine if one["kind"] == "auto")
    turns = [one for one in mine if one["kind"] == "turn" and one["round"] >= 0]
    plan_of = {one["arm"]: one["plan"] for one in turns}
    cost_s = {
        arm: auto["plans"][plan]["ratio"] * statistics.median(one["step_s"] for one in turns if one["arm"] == arm)
        for arm, plan in plan_of.items()
    }
    found: list[dict[str, Any]] = []
    for limit, names in auto["whole"].items():
        best = min(names, key=cost_s.__getitem__)
        plan = auto["kept_summary"] if plan_of[limit] == KEPT else plan_of[limit]
        about = {"network": network, "model": model, "limit": float(limit), "best": best, "best_s": cost_s[best]}
        about |= {"plan": plan, "gain": cost_s[best] / cost_s[limit], "num_whole": len(names)}
        kept = KEPT in auto["tried"][limit]
        found.append({**about, "kept_gain": cost_s[best] / cost_s[KEPT] if kept else None})
    return found


def table(found: Sequence[dict[str, Any]]) -> str:
    """Return the table of all cells."""
    text = [
        "| network | model | limit of steps | best whole-model plan | gain | searched plan | gain of what `auto` kept |"
    ]
    text.append("|---|---|---|---|---|---|---|")
    for one in found:
        best = f"`{one['best']}` of {one['num_whole']}, {1e3 * one['best_s']:.0f} ms"
        about = f"| {one['network']} | {one['model']} | {one['limit']:g} | {best} | {one['gain']:.2f} | {one['plan']} "
        text.append(about + ("| not within |" if one["kept_gain"] is None else f"| {one['kept_gain']:.2f} |"))
    return "\n".join(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON-lines file, appended to")
    parser.add_argument("--cells", type=int, default=len(CELLS), help="only the first so many")
    parser.add_argument("--table", action="store_true", help="measure nothing")
    given = parser.parse_args()
    lines = Lines(given.out, KEY)
    for cell in CELLS[: given.cells]:
        if not (given.table or lines.has("auto", *cell, -1, "")):
            measure(lines, *cell)
            print(table(gains(lines, *cell)), flush=True)
    print(table([one for cell in CELLS if lines.has("auto", *cell, -1, "") for one in gains(lines, *cell)]))


if __name__ == "__main__":
    main()
