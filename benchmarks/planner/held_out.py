"""What "auto" keeps on networks and models that nothing was fitted to, beside ten fixed arms, with real computing.

``python benchmarks/planner/held_out.py --out held_out.jsonl``           what has no line yet, and the table
``python benchmarks/planner/held_out.py --out held_out.jsonl --table``   the table alone

In each of `CELLS` three to six hosts whose links differ are brought up, and a model is trained there for real by SGD:
first under "auto" with quality 1.5 and without experience, for 200 steps, or until it has chosen. Then the plan that it
kept and ten fixed arms take turns on a model of the same shapes: in even rounds in their order, in odd ones from the
last to the first. A line for what "auto" did, and one for each turn; a cell that is not complete is made anew.

Regret: step time times steps ratio of the kept plan over the least of the arms, each the median of its turns; also over
the least of those that the quality admits.
Search: the time of the first 200 steps that so many steps under the kept plan, or under DDP's own exchange where that
is sooner, would not have taken, over all of it. `relax_s` of a line is what relax() took before them. Errors: predicted
step times over measured ones; for arms predicted after the search, with what it has fitted, and for trials before each
of them. Needs an idle machine, and root.
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

from dataset.clusters import pairs, racks, uneven
from sharded.journal import Lines, place, run_ranks

from pliant.network import emulate_cluster
from pliant.planner import BASELINES, Quality, named_genomes
from pliant.planner.experience import Experience, load_experience
from pliant.simulator import simulate
from pliant.spec import Topology, to_json

MBIT = 1e6 / 8
BURST = 8_000
"""Bytes that a link passes at once after a pause, or 2 ms of its rate. Messages are hardly longer than the default, and
32 kB, as before, let a quarter of some pass at no cost."""
QUALITY, FIRST_STEPS, ROUNDS = 1.5, 200, 3
WANTED_REGRET, WANTED_SEARCH, WANTED_ERROR = (0.05, 0.15), 0.1, (0.1, 0.25)
"""Median and worst; share of the first steps; median and 90th percentile."""
ARMS = ("ddp", "ddp-bf16", "bytegrad", "onebit", "powersgd", "topk", "local_sgd", "gossip", "int4", "choco")
KEPT = "kept"
RANK = Path(__file__).with_name("held_out_rank.py")


def _rates(*mbit: float, delay_s: float = 0.0) -> Topology:
    return uneven([(rate * MBIT, rate * MBIT) for rate in mbit], delay_s=delay_s)


CELLS: dict[str, tuple[Topology, str]] = {
    "3 hosts, pairs of 240 Mbit/s": (pairs(3, 1, "240mbit", random.Random(11)), "mixer"),
    "4 hosts, pairs of 300 Mbit/s": (pairs(4, 1, "300mbit", random.Random(12)), "separable"),
    "5 hosts, pairs of 200 Mbit/s": (pairs(5, 1, "200mbit", random.Random(13)), "gru"),
    "6 hosts, pairs of 200 Mbit/s": (pairs(6, 1, "200mbit", random.Random(14)), "encoder"),
    "3 hosts of 400, 200, 100 Mbit/s": (_rates(400, 200, 100), "gru"),
    "4 hosts, one of 75 Mbit/s": (_rates(300, 300, 300, 75, delay_s=2e-3), "mixer"),
    "5 hosts, slow uplinks, 5 ms": (
        uneven([(up * MBIT, 200 * MBIT) for up in (50, 100, 150, 200, 80)], delay_s=5e-3),
        "encoder",
    ),
    "6 hosts in two racks": (racks(2, 3, "300mbit", "150mbit"), "separable"),
    "3 hosts of 150 to 250 Mbit/s, 15 ms": (_rates(200, 150, 250, delay_s=15e-3), "encoder"),
    "4 hosts, pairs of 600 Mbit/s": (pairs(4, 1, "600mbit", random.Random(15)), "gru"),
    "5 hosts, two of 40 Mbit/s": (_rates(160, 40, 160, 40, 160), "separable"),
    "6 hosts of 60 to 360 Mbit/s": (_rates(60, 120, 180, 240, 300, 360, delay_s=1e-3), "mixer"),
}
"""Name -> hosts, and a model of `held_out_rank.MODELS`."""


GENOMES = named_genomes() | BASELINES
KEY = ("kind", "cell", "round", "arm")


def measure(lines: Lines, cell: str) -> None:
    """Bring up a cell's hosts, and keep what its ranks say, with what the search's experience predicts of the arms."""
    topology, model = CELLS[cell]
    plans = {arm: json.loads(to_json(GENOMES[arm].plan(arm))) for arm in ARMS}
    said: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, emulate_cluster(topology, burst=BURST) as hosts:
        job, experience = (Path(folder) / name for name in ("job.json", "experience.json"))
        about = {
            "model": model,
            "plans": plans,
            "steps": FIRST_STEPS,
            "rounds": ROUNDS,
            "quality": QUALITY,
            "kept": KEPT,
        }
        about |= {"experience": str(experience), "topology": json.loads(to_json(topology))}
        job.write_text(json.dumps(about))
        run_ranks(hosts, str(RANK), [str(job)], said.append)
        found = load_experience(experience)
    for line in said:
        if line["kind"] == "auto":
            line |= {"tried": _tried(found), "predicted_s": _predicted(found)}
            line |= {"ratio": Quality(budget=100.0).ratio(found.kept), "summary": found.kept.summary}
        lines.add({"cell": cell, **line, **place()})


def _tried(found: Experience) -> list[dict[str, Any]]:
    return [
        {"plan": one.genes.summary, "predicted_s": before_s, "seen_s": one.step_s, "status": one.status}
        for one, before_s in zip(found.trials, found.predicted_s, strict=True)
    ]


def _predicted(found: Experience) -> dict[str, float]:
    """Return the step times of the arms, as the search would predict them now."""
    about = {"workload": found.workload, "topology": found.topology, "overheads": found.learned_overheads}
    return {arm: simulate(GENOMES[arm].plan(arm), **about).step_s for arm in ARMS}


def _is_admitted(arm: str) -> bool:
    """Say whether "auto" could choose an arm, with its quality and the optimizer of the job."""
    return all(map(Quality(budget=QUALITY).admits, GENOMES[arm].genes))


def figures(lines: Lines, cell: str) -> dict[str, Any]:
    """Return what the lines of a cell say."""
    (auto,) = (line for line in lines.of_kind("auto") if line["cell"] == cell)
    turns = [line for line in lines.of_kind("turn") if line["cell"] == cell]
    step_s = {a: statistics.median(t["step_s"] for t in turns if t["arm"] == a) for a in (KEPT, *ARMS)}
    ratios = {arm: Quality(budget=100.0).ratio(GENOMES[arm]) or 1.0 for arm in ARMS}
    cost_s = {arm: step_s[arm] * ratios[arm] for arm in ARMS}
    kept_s = step_s[KEPT] * auto["ratio"]
    best, admitted = (min(arms, key=cost_s.__getitem__) for arms in (ARMS, filter(_is_admitted, ARMS)))
    tried = [one for one in auto["tried"] if one["status"] == "ok"]
    return {
        "cell": cell,
        "best": best,
        "plan": auto["summary"],
        "regret": kept_s / cost_s[best] - 1,
        "admitted": admitted,
        "admitted_regret": kept_s / cost_s[admitted] - 1,
        "search": 1 - FIRST_STEPS * min(step_s[KEPT], step_s["ddp"]) / auto["first_s"],
        "over_ddp": auto["first_s"] / (FIRST_STEPS * step_s["ddp-bf16"]),
        "chosen_after": auto["chosen_after"],
        "relax_s": auto["relax_s"],
        "arm_errors": [abs(auto["predicted_s"][arm] / step_s[arm] - 1) for arm in ARMS],
        "trial_errors": [abs(one["predicted_s"] / one["seen_s"] - 1) for one in tried],
    }


def table(found: Sequence[dict[str, Any]]) -> str:
    """Return the table of all cells, and what is wanted of them."""
    lines = [
        "| network | best admitted arm, regret | best of all ten, regret | kept | search "
        "| first steps over `ddp-bf16`'s | chosen after | `relax` |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in found:
        arms = f"`{one['admitted']}`, {one['admitted_regret']:+.0%} | `{one['best']}`, {one['regret']:+.0%}"
        about = f"| {one['cell']} | {arms} | {one['plan']} | {one['search']:.0%} | {one['over_ddp']:.2f} "
        lines.append(f"{about}| {one['chosen_after']} steps | {one['relax_s']:.0f} s |")
    lines.append("")
    for key, of in (("regret", "all arms"), ("admitted_regret", "admitted arms")):
        regrets = [one[key] for one in found]
        told = _spread(regrets, max(regrets), "worst")
        lines.append(f"Regret against {of}: {told}; wanted are at most {WANTED_REGRET}.")
    searches = [one["search"] for one in found]
    lines.append(f"Search: {_spread(searches, max(searches), 'worst')}; wanted is at most {WANTED_SEARCH:.0%}.")
    for name, what in (("arm_errors", "Arms"), ("trial_errors", "Trials")):
        errors = sorted(error for one in found for error in one[name])
        ninety = errors[int(0.9 * (len(errors) - 1))]
        lines.append(f"{what}: {_spread(errors, ninety, '90th percentile')} off; wanted are {WANTED_ERROR}.")
    return "\n".join(lines)


def _spread(values: Sequence[float], end: float, name: str) -> str:
    return f"{statistics.median(values):+.1%} at the median, {end:+.1%} {name}, of {len(values)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON-lines file, appended to")
    parser.add_argument("--only", nargs="*", default=list(CELLS), choices=list(CELLS), help="cells, by name")
    parser.add_argument("--table", action="store_true", help="measure nothing")
    given = parser.parse_args()
    lines = Lines(given.out, KEY)
    for cell in given.only:
        if not (given.table or lines.has("turn", cell, ROUNDS - 1, KEPT)):
            measure(lines, cell)
            print(table([figures(lines, cell)]), flush=True)
    print(table([figures(lines, cell) for cell in CELLS if lines.has("turn", cell, ROUNDS - 1, KEPT)]))


if __name__ == "__main__":
    main()
