"""Time to an accuracy under "auto", without and with experience, beside the best fixed arms.

``python benchmarks/planner/cold_start.py benchmarks/results/cold_start.jsonl``

The small convolutional network learns Fashion-MNIST on four emulated hosts at 100 Mbit/s, to 85 %. In each round, one
for each seed, all arms train once; their order turns by one from round to round. Experience comes from one training
before the first round, which is a line of its own. One line of JSON for each training; what the file has with the same
options is not run again. Beside it lies a cache for each set of options. Needs root, for network namespaces.
"""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from sharded.journal import Lines

from pliant.cli.emulate import topology_from_flags
from pliant_bench.harness.session import Files, carry_out
from pliant_bench.harness.setup import Setup

FIXED = ("choco", "powersgd", "ddp-bf16")
COLD, CACHED, FIRST = "auto cold", "auto cached", "auto, the first with the cache"
FIRST_SEED = 100
ABOUT = ("steps", "every", "target", "hosts", "rate")
"""Options that trainings of one comparison share."""


def arm_of(name: str, cache: Path) -> str:
    """Return an arm as the laboratory takes it."""
    if name in FIXED:
        return name
    experience = None if name == COLD else str(cache.absolute())
    return f"auto(quality=1.1, experience={experience!r})"


def train(name: str, seed: int, given: argparse.Namespace, cache: Path) -> dict:
    setup = Setup(
        mode="train",
        models=("cnn",),
        arms=(arm_of(name, cache),),
        train_steps=given.steps,
        evaluate_every=given.every,
        seeds=(seed,),
        target=given.target,
        emulated=True,
    )
    topology = topology_from_flags(given.hosts, given.rate, "0ms", [], 1, 0.0)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "result.json"
        carry_out(setup, Files(json=file, md=None, html=None), [], topology, f"{given.hosts} hosts at {given.rate}")
        (record,) = (r for r in json.loads(file.read_text())["records"] if "time_to_target_s" in r)
    kept = ("time_to_target_s", "step_s", "plan", "curve", "final_accuracy")
    return {"arm": name, "seed": seed, **about_of(given), **{key: record.get(key) for key in kept}}


def about_of(given: argparse.Namespace) -> dict:
    """Return what trainings of a comparison share."""
    return {name: getattr(given, name) for name in ABOUT}


def jobs(seeds: int) -> list[tuple[str, int]]:
    """Return all trainings in their order: names of arms with seeds."""
    arms = [*FIXED, COLD, CACHED]
    found = [(FIRST, FIRST_SEED)]
    for seed in range(seeds):
        turned = arms[seed % len(arms) :] + arms[: seed % len(arms)]
        found += [(name, seed) for name in turned]
    return found


def summary(lines: list[dict]) -> str:
    """Return the mean time of each arm to the target, and over that of the best fixed arm."""
    times_s = {
        name: [line["time_to_target_s"] for line in lines if line["arm"] == name] for name in (*FIXED, COLD, CACHED)
    }
    means_s = {name: statistics.mean(each) for name, each in times_s.items() if each and None not in each}
    best_s = min((means_s[name] for name in FIXED if name in means_s), default=float("nan"))
    rows = [f"| {name} | {s:.1f} s | {s / best_s:.2f} | {len(times_s[name])} |" for name, s in means_s.items()]
    missed = [f"{name} has not reached the target with every seed." for name in times_s if name not in means_s]
    return "\n".join(["| arm | to the target | over the best fixed arm | seeds |", "|---|---|---|---|", *rows, *missed])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--target", type=float, default=0.85)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rate", default="100mbit")
    given = parser.parse_args()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    about = about_of(given)
    cache = given.out.with_suffix(f".{'-'.join(map(str, about.values()))}.cache")
    lines = Lines(given.out, ("arm", "seed", *ABOUT))
    for name, seed in jobs(given.seeds):
        if not lines.has(name, seed, *about.values()):
            lines.add(train(name, seed, given, cache))
    print(summary([line for line in lines.records.values() if about.items() <= line.items()]))


if __name__ == "__main__":
    main()
