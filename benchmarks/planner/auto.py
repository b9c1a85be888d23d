"""What "auto" costs until it has chosen, what it is worth from then on, and what it does when the network changes.

``python benchmarks/planner/auto.py --from 1gbit --to 100mbit --quality 1.1 --json out.json --md out.md``

Four hosts train a small convolutional network. First torch's DDP alone; then "auto", until it has chosen; then both,
turn about, two models in one process group. With --to, the rate of every link becomes another while "auto" trains on,
and at the end the plan from before the change and the one in force are held against each other. Needs root, for network
namespaces.
"""

import argparse
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from pliant.cli.emulate import topology_from_flags
from pliant.network import emulate_cluster
from pliant.spec.files import write_atomically

MARK = "auto: "
ALONE, ROUNDS, TURN = 20, 12, 24
BATCHES = 64
"""One alone would soon be known by heart, and then gradients vanish, as they never do in a training."""
AFTER, LAST_TURNS, LAST_TURN = 300, 5, 12


def worker(quality: float, changed: str) -> None:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import pliant
    from pliant_bench.models import TASKS

    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    task = TASKS["cnn"]
    generator = torch.Generator().manual_seed(dist.get_rank())
    batches = itertools.cycle([task.batch(generator) for _ in range(BATCHES)])

    def arm():
        model = DistributedDataParallel(task.model())
        return model, torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def say(**what: object) -> None:
        if dist.get_rank() == 0:
            print(MARK + json.dumps(what), flush=True)

    def step(model, optimizer) -> float:
        start_s = time.perf_counter()
        optimizer.zero_grad()
        task.loss(model, next(batches)).backward()
        optimizer.step()
        return time.perf_counter() - start_s

    def turn(arm, num: int) -> float:
        step(*arm)  # connections that idled start slowly
        return statistics.median(step(*arm) for _ in range(num))

    plain, ours = arm(), arm()
    ddp_s = turn(plain, ALONE)
    with pliant.relax(*ours, pliant.Auto(quality=quality, experience=None)) as run:
        start_s, made = time.perf_counter(), 0
        while run.tuner.advice is None:  # which comes with the choice
            step(*ours)
            made += 1
        spent_s = time.perf_counter() - start_s
        before = run.plan
        turns = []
        for k in range(ROUNDS):
            first, second = (plain, ours) if k % 2 else (ours, plain)
            times_s = {id(arm): turn(arm, TURN) for arm in (first, second)}
            turns.append([times_s[id(plain)], times_s[id(ours)]])
        say(ddp_s=ddp_s, steps=made, spent_s=spent_s, turns=turns, plan=str(before), explanation=run.tuner.explanation)
        if not changed:
            return
        before_s = statistics.median(step(*ours) for _ in range(30))
        dist.barrier()
        say(change=True)
        while dist.get_rank() == 0 and not Path(changed).exists():
            time.sleep(0.05)
        dist.barrier()
        plans, times_s = [], []
        for _ in range(AFTER):
            times_s.append(step(*ours))
            plans.append(run.plan.hash)
        after, explanation = run.plan, run.tuner.explanation
        run.tuner.close()
        run.tuner = None
        held = {"before": [], "after": []}
        for _ in range(LAST_TURNS if before.hash != after.hash else 0):
            for name, plan in (("before", before), ("after", after)):
                run.switch(plan)
                step(*ours)
                held[name].append(turn(ours, LAST_TURN))
        say(
            before=before.hash,
            before_s=before_s,
            plans=plans,
            times_s=times_s,
            held=held,
            plan=str(after),
            why=explanation,
        )


def measure(given: argparse.Namespace) -> list[dict]:
    first = topology_from_flags(given.hosts, given.first, given.delay, [], 1, 0.0)
    said: list[dict] = []
    with tempfile.TemporaryDirectory() as folder, emulate_cluster(first) as cluster:
        flag = Path(folder) / "changed"

        def take(rank: int, line: str) -> None:
            if not line.startswith(MARK):
                print(f"[{rank}] {line}", flush=True)
                return
            said.append(json.loads(line.removeprefix(MARK)))
            if "change" in said[-1]:
                cluster.reshape(topology_from_flags(given.hosts, given.second, given.delay, [], 1, 0.0))
                flag.touch()

        argv = [
            sys.executable,
            __file__,
            "--worker",
            str(flag) if given.second else "",
            "--quality",
            str(given.quality),
        ]
        results = cluster.run(argv, env=dict(os.environ), on_line=take, timeout_s=550)
    if any(result.exit_code for result in results):
        raise RuntimeError(f"ranks ended with {[result.exit_code for result in results]}.")
    return said


def summary(said: list[dict], given: argparse.Namespace) -> str:
    choice, end = said[0], said[-1]
    ratios = sorted(ours / plain for plain, ours in choice["turns"])
    plain_s, ours_s = (statistics.median(t[k] for t in choice["turns"]) for k in (0, 1))
    overhead_s = choice["spent_s"] - choice["steps"] * choice["ddp_s"]
    text = [
        f"## {given.first}, delay {given.delay}, quality {given.quality:g}, {given.hosts} hosts",
        "",
        f"- Chosen after {choice['steps']} steps and {choice['spent_s']:.1f} s, {overhead_s:+.1f} s against DDP's "
        f"{1e3 * choice['ddp_s']:.0f} ms a step: {choice['plan']}",
        f"- Then a step over DDP's, turn about: {statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f}); "
        f"{1e3 * ours_s:.0f} ms and {1e3 * plain_s:.0f} ms",
    ]
    if "plans" in end:
        plans, times_ms = end["plans"], [1e3 * took_s for took_s in end["times_s"]]
        changes = [k + 1 for k, plan in enumerate(plans) if plan != (plans[k - 1] if k else end["before"])]
        when = f", the first after {changes[0]}, the last after {changes[-1]}" if changes else ""
        text += [
            f"- Then {given.first} became {given.second}: steps of {1e3 * end['before_s']:.0f} ms became "
            f"{statistics.median(times_ms[2:10]):.0f} ms, at last {statistics.median(times_ms[-30:]):.0f} ms; "
            f"{len(changes)} switches in {len(plans)} steps{when}",
            f"- Afterwards: {end['plan']}",
        ]
        if end["held"]["before"]:
            gains = sorted(a / b for a, b in zip(end["held"]["before"], end["held"]["after"], strict=True))
            spread = f"{statistics.median(gains):.2f} ({gains[0]:.2f} to {gains[-1]:.2f})"
            text.append(f"- The plan from before over the new one, turn about: {spread}")
    return "\n".join([*text, "", f"> {end.get('why', choice['explanation'])}", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worker")
    parser.add_argument("--quality", type=float, default=1.0)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--delay", default="0ms")
    parser.add_argument("--from", dest="first", default="100mbit")
    parser.add_argument("--to", dest="second", default="")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--md", type=Path)
    given = parser.parse_args()
    if given.worker is not None:
        worker(given.quality, given.worker)
        return
    said = measure(given)
    text = summary(said, given)
    print(text)
    if given.json is not None:
        write_atomically(given.json, json.dumps(said) + "\n")
    if given.md is not None:
        write_atomically(given.md, text)


if __name__ == "__main__":
    main()
