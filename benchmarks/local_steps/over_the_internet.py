"""Time to one held-out perplexity on four continents: 16-bit data parallelism, the recipe, and torchft's DiLoCo.

    python benchmarks/local_steps/over_the_internet.py --out F.jsonl            as root, on an idle machine
    python benchmarks/local_steps/over_the_internet.py --out F.jsonl --list     carries out nothing
    python benchmarks/local_steps/over_the_internet.py --out F.jsonl --table    what came out so far

Each line of the file is one trial; the same command goes on after the last one. All arms train the decoder of
`examples/gpt_internet.py` from the same weights, on the same windows, in the world `four-continents`. Short trials say
what a step takes that exchanges nothing, and choose the bucket size of data parallelism. Then each arm trains at every
learning rate of --times, and its best one counts; with local steps for --longer times as many steps. The target is the
perplexity of data parallelism at its best rate after 80 % of its steps. The clock stands still while weights are
judged. Trials of torchft need it beside Pliant (`pip install torchft==0.2.0`).
"""

import argparse
import importlib.util
import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pliant
from pliant.algorithms.plans import plan_of
from pliant.spec import CodecSpec, Exchange, ScatterGather, save
from pliant_bench.lab.language import first_rate

sys.path.append(str(Path(__file__).parents[1]))

from tasc.accuracy_book import Book

Record = dict[str, Any]
RECIPE = Path(__file__).parents[2] / "examples" / "gpt_internet.py"
TORCHFT = Path(__file__).with_name("internet_torchft.py")
ARMS = (
    ("ddp", "Muon"),
    ("two trips", "Muon"),
    ("recipe", "Muon"),
    ("torchft diloco", "AdamW"),
    ("torchft diloco", "Muon"),
)
EVERY_STEP: dict[str, Exchange] = {"ddp": pliant.bf16(), "two trips": ScatterGather(codec=CodecSpec(name="bf16"))}
"""Arm -> means in bfloat16 of every step: a ring's, or those of owners, which take two trips."""
BUCKETS_MB, SHORT_STEPS = (1, 5, 25), 30
PERIOD = 30
"""Steps between two exchanges of torchft's DiLoCo."""
RANKS = 4
TARGET_SHARE = 0.8
KEY = ("kind", "arm", "optimizer", "bucket_mb", "times", "period", "delay_steps")
KEY += ("seed", "size", "windows", "steps", "scale", "idle_restart", "plan")


class Trials(Book):
    """Trials that were carried out; the first of a key counts."""

    KEY = KEY


def listed(options: argparse.Namespace, bucket_mb: int) -> Iterator[Record]:
    """Yield all trials, in their order; those of data parallelism have the chosen bucket size."""
    given = {name: getattr(options, name) for name in ("seed", "size", "windows", "scale", "idle_restart")}
    shared = {"optimizer": "Muon", "bucket_mb": 0, "times": 1.0, "period": 0, "delay_steps": 0, "plan": "", **given}
    short = {**shared, "steps": min(SHORT_STEPS, options.steps)}
    yield {**short, "kind": "alone", "arm": "alone"}
    for size_mb in BUCKETS_MB:
        yield {**short, "kind": "bucket", "arm": "ddp", "bucket_mb": size_mb}
    for arm, optimizer in ARMS:
        of_arm = {**shared, "kind": "trained", "arm": arm, "optimizer": optimizer}
        of_arm["steps"], all_times = round(options.longer * options.steps), options.times
        if arm in EVERY_STEP:
            of_arm |= {"steps": options.steps, "bucket_mb": bucket_mb}
            all_times = options.ddp_times or options.times
        periods, delays = [0], [0]
        if arm == "recipe" and options.plan:
            of_arm["plan"] = options.plan
        elif arm == "recipe":
            periods, delays = options.period, options.delay_steps
        for times, period, delay in itertools.product(all_times, periods, delays):
            yield {**of_arm, "times": times, "period": period, "delay_steps": delay}


def best_bucket(trials: Trials) -> int:
    """Return the bucket size whose steps were shortest; the first, if none was tried."""
    found = {line["bucket_mb"]: line["train_s"] for line in trials.of_kind("bucket")}
    return min(found, key=lambda size: found[size], default=BUCKETS_MB[0])


def command(trial: Record, options: argparse.Namespace, folder: Path) -> list[str]:
    """Return what runs a trial; its result is result.json in the folder."""
    emulate = [sys.executable, "-m", "pliant", "emulate", "--topology", "four-continents"]
    emulate += ["--scale", str(trial["scale"]), "--timeout", f"{options.timeout}s"]
    emulate += [] if options.check else ["--no-check"]
    emulate += [] if trial["idle_restart"] else ["--no-idle-restart"]
    worker = [sys.executable, str(TORCHFT if trial["arm"].startswith("torchft") else RECIPE)]
    rate = trial["times"] * first_rate(trial["size"], trial["windows"] * RANKS)
    given = {name: trial[name] for name in ("optimizer", "size", "windows", "steps", "seed")}
    given |= {"lr": rate, "judge-every": options.judge_every if trial["kind"] == "trained" else 0, "text": options.text}
    given |= {"connections": options.connections, "json": folder / "result.json"}
    if trial["arm"] in EVERY_STEP:
        plan = replace(plan_of(EVERY_STEP[trial["arm"]]), bucket_bytes=trial["bucket_mb"] << 20)
        save(plan, folder / "plan.json")
        given["plan"] = folder / "plan.json"
    if trial["plan"]:
        given["plan"] = trial["plan"]
    elif trial["arm"] == "recipe":
        given |= {"period": trial["period"], "delay-steps": trial["delay_steps"]}
    if trial["arm"] == "alone":
        given["plan"] = f"local_sgd({2 * trial['steps']})"
    return [*emulate, "--", *worker, *(f"--{name}={value}" for name, value in given.items())]


def carry_out(trial: Record, options: argparse.Namespace) -> Record:
    """Return what a trial has come to, or the end of what it said."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            command(trial, options, Path(folder)),
            capture_output=True,
            text=True,
            check=False,
            timeout=options.timeout + 120,
        )
        out = Path(folder) / "result.json"
        return json.loads(out.read_text()) if out.exists() else {"error": (done.stdout + done.stderr)[-1000:]}


def time_to(target: float, curve: Sequence[Sequence[float]]) -> float:
    """Return the seconds at which a curve of (step, seconds, perplexity) comes to a target; infinity if it does not.

    Between two points the loss is on a straight line.

    >>> time_to(math.exp(2.5), [(15, 10.0, math.exp(3)), (45, 20.0, math.exp(2))])
    15.0
    """
    for (_, before_s, before), (_, after_s, after) in itertools.pairwise(curve):
        if after <= target < before:
            share = (math.log(before) - math.log(target)) / (math.log(before) - math.log(after))
            return before_s + share * (after_s - before_s)
    return curve[0][1] if curve and curve[0][2] <= target else math.inf


def target_of(lines: Sequence[Record]) -> float:
    """Return the lowest perplexity of data parallelism after 80 % of its steps; infinity if it was not trained."""
    ends = [
        next(point[2] for point in line["curve"] if point[0] >= TARGET_SHARE * line["curve"][-1][0])
        for line in lines
        if line["arm"] == "ddp" and line["curve"]
    ]
    return min(ends, default=math.inf)


def table(trials: Trials) -> str:
    """Return a row for each arm, at the rate with which it comes to the target first."""
    lines = trials.of_kind("trained")
    target = target_of(lines)
    rows = [
        f"Target: perplexity {target:.3f}.{_computing(trials)}",
        "",
        "| arm | optimizer | times the rate | period | delay | steps | s to the target | s a step | at the end |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for arm, optimizer in ARMS:
        of_arm = [line for line in lines if (line["arm"], line["optimizer"]) == (arm, optimizer) and line["curve"]]
        if of_arm:
            line = min(of_arm, key=lambda line: (time_to(target, line["curve"]), line["perplexity"]))
            seconds = time_to(target, line["curve"])
            told = f"{seconds:.0f}" if math.isfinite(seconds) else "not reached"
            settings = f"{line['times']:g} | {line['period']} | {line['delay_steps']}"
            figures = f"{settings} | {line['steps']} | {told} | {_step_s(line):.3f}"
            rows.append(f"| {arm} | {optimizer} | {figures} | {line['perplexity']:.3f} |")
    return "\n".join(rows)


def _computing(trials: Trials) -> str:
    return "".join(f" A step that exchanges nothing takes {_step_s(one):.3f} s." for one in trials.of_kind("alone"))


def _step_s(line: Record) -> float:
    return line["train_s"] / line["steps"]


def reason_against(trial: Record) -> str:
    """Return why a trial cannot be made here; empty if it can."""
    if trial["arm"].startswith("torchft") and importlib.util.find_spec("torchft") is None:
        return "torchft is not installed"
    return ""


def options_of(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of a command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON-lines file, appended to")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--size", default="3M")
    parser.add_argument("--windows", type=int, default=8, help="of a rank and step")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scale", type=float, default=0.07, help="factor of the world's rates")
    parser.add_argument("--times", type=float, nargs="+", default=[1.0, 2.0, 4.0], help="learning rates, in first ones")
    parser.add_argument("--ddp-times", type=float, nargs="*", default=[], help="those of data parallelism, if others")
    parser.add_argument("--longer", type=float, default=1.0, help="times the steps for arms with local steps")
    parser.add_argument("--period", type=int, nargs="+", default=[5], help="of the recipe, in steps")
    parser.add_argument("--delay-steps", type=int, nargs="+", default=[3], help="of the recipe")
    parser.add_argument(
        "--plan", default="", help="of the recipe, in the place of its own; judged as if every 30 steps"
    )
    parser.add_argument("--connections", default="auto", help="of Pliant's arms")
    parser.add_argument("--judge-every", type=int, default=PERIOD, help="steps between two perplexities")
    parser.add_argument("--text", default="", help="folder of *.txt files; Python's library if empty")
    parser.add_argument("--timeout", type=int, default=7200, help="seconds of one trial")
    parser.add_argument("--no-check", dest="check", action="store_false", help="do not measure links before a trial")
    parser.add_argument(
        "--no-idle-restart", dest="idle_restart", action="store_false", help="let no connection begin slowly again"
    )
    parser.add_argument("--list", action="store_true", help="say which trials are done, and carry out none")
    parser.add_argument("--table", action="store_true", help="print the table, and carry out none")
    options = parser.parse_args(argv)
    for period in (PERIOD, *options.period):
        if options.judge_every < period or options.judge_every % period:
            parser.error(f"--judge-every is {options.judge_every}, and must be a multiple of the period of {period}")
    if max(options.delay_steps) >= min(options.period):
        parser.error(
            f"--delay-steps is {max(options.delay_steps)}: weights are exchanged every {min(options.period)} steps, "
            "and judged before the next exchange; give less"
        )
    return options


def main(argv: Sequence[str] | None = None) -> None:
    options = options_of(argv)
    trials = Trials(options.out)
    num_all = len(list(listed(options, 0)))
    for number in range(num_all):
        trial = list(listed(options, best_bucket(trials)))[number]  # the size is known once all have been tried
        name = " ".join(str(trial[key]) for key in KEY)
        done = trials.find(**trial) is not None
        if options.list:
            print("done" if done else "open", name)
        if done or options.list or options.table:
            continue
        if why := reason_against(trial):
            print(f"[{number + 1} of {num_all}] {name}: left out: {why}", flush=True)
            continue
        begun_s, at = time.perf_counter(), time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        result = carry_out(trial, options)
        if "error" in result:
            print(f"[{number + 1} of {num_all}] {name}: failed: {result['error']}", flush=True)
            continue
        trials.add({**trial, **result, "at": at, "load": os.getloadavg()[0]})
        print(f"[{number + 1} of {num_all}] {name}: {time.perf_counter() - begun_s:.0f} s", flush=True)
    if not options.list:
        print(table(trials))


if __name__ == "__main__":
    main()
