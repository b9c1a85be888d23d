"""What "auto" does when the network changes while it trains, on emulated hosts.

``python benchmarks/planner/change.py --from 1gbit --to 100mbit --quality 1.1 --json out.json --md out.md``

Four hosts train a small convolutional network. Once "auto" has chosen and cruised for a while, the rate of every link
becomes another. At the end the plan from before the change and the one in force are held against each other, turn
about, five times. Needs root, for network namespaces.
"""

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

from pliant.cli.emulate import topology_from_flags
from pliant.network import emulated
from pliant.spec.files import write_atomically

MARK = "change: "
CRUISE, AFTER, TURN, TURNS = 60, 400, 12, 5


def worker(quality: float) -> None:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import pliant
    from pliant.cli.bench.models import TASKS

    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    task = TASKS["cnn"]
    batch = task.batch(torch.Generator().manual_seed(dist.get_rank()))
    model = DistributedDataParallel(task.model())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def say(**what: object) -> None:
        if dist.get_rank() == 0:
            print(MARK + json.dumps(what), flush=True)

    def step() -> float:
        start_s = time.perf_counter()
        optimizer.zero_grad()
        task.loss(model, batch).backward()
        optimizer.step()
        return time.perf_counter() - start_s

    def everybody(mine: bool) -> bool:
        flag = torch.tensor([float(mine)])
        dist.all_reduce(flag)
        return bool(flag.item())

    start_s = time.perf_counter()
    with pliant.relax(model, optimizer, pliant.Auto(quality=quality)) as run:
        made = changed = cruised = 0
        before = run.plan
        while not changed or made < changed + AFTER:
            took_s = step()
            made += 1
            say(step=made, took_s=took_s, plan=run.plan.hash, at_s=time.perf_counter() - start_s)
            if changed == 0 and everybody(run.pilot.explanation != "auto is still watching the first steps."):
                cruised += 1
                if cruised == CRUISE:
                    before, changed = run.plan, made
                    say(change=made, explanation=run.pilot.explanation, plan=str(before))
                    while not everybody(Path(os.environ["CHANGED"]).exists() if dist.get_rank() == 0 else False):
                        time.sleep(0.1)
        after, explanation = run.plan, run.pilot.explanation
        run.pilot.close()
        run.pilot = None
        turns = {"before": [], "after": []}
        for _ in range(TURNS if before.hash != after.hash else 0):
            for name, plan in (("before", before), ("after", after)):
                run.switch(plan)
                for _ in range(2):
                    step()
                turns[name].append(statistics.median(step() for _ in range(TURN)))
        say(turns=turns, explanation=explanation, plan=str(after))


def measure(given: argparse.Namespace) -> list[dict]:
    first, second = (topology_from_flags(4, rate, "0ms", [], 1, 0.0) for rate in (given.first, given.second))
    lines: list[dict] = []
    flag = Path(f"/tmp/pliant-change-{os.getpid()}")
    with emulated(first) as cluster:

        def take(rank: int, line: str) -> None:
            if not line.startswith(MARK):
                print(f"[{rank}] {line}", flush=True)
                return
            said = json.loads(line.removeprefix(MARK))
            lines.append(said)
            if "change" in said:
                cluster.reshape(second)
                flag.touch()

        try:
            argv = [sys.executable, __file__, "--worker", "--quality", str(given.quality)]
            results = cluster.run(argv, env={"CHANGED": str(flag)}, on_line=take, timeout_s=500)
        finally:
            flag.unlink(missing_ok=True)
    if any(result.exit_code for result in results):
        raise RuntimeError(f"ranks ended with {[result.exit_code for result in results]}.")
    return lines


def summary(lines: list[dict], given: argparse.Namespace) -> str:
    steps = [line for line in lines if "step" in line]
    change = next(line for line in lines if "change" in line)
    end = lines[-1]
    at = change["change"]
    plans = [(s["step"], s["plan"]) for k, s in enumerate(steps) if k == 0 or s["plan"] != steps[k - 1]["plan"]]
    chosen = next((step for step, _ in plans if step <= at and all(p[0] <= step or p[0] > at for p in plans)), 0)
    answered = [step for step, _ in plans if step > at]
    lines_of_text = [
        f"From {given.first} to {given.second}, quality {given.quality:g}; 4 hosts, the small convolutional network.",
        "",
        f"- First choice in force after {chosen} steps, {steps[chosen - 1]['at_s']:.1f} s: {change['plan']}",
        f"- Change at step {at}; {len(answered)} switches in the {steps[-1]['step'] - at} steps that followed"
        + (f", the first after {answered[0] - at} steps, the last after {answered[-1] - at}." if answered else "."),
        f"- Afterwards: {end['plan']}",
    ]
    for name, part in (
        ("the 30 steps before the change", [s for s in steps if at - 30 < s["step"] <= at]),
        ("steps 3 to 15 after it", [s for s in steps if at + 3 <= s["step"] <= at + 15]),
        ("the last 30", steps[-30:]),
    ):
        lines_of_text.append(f"- Median step of {name}: {1e3 * statistics.median(s['took_s'] for s in part):.0f} ms")
    if end["turns"]["before"]:
        ratios = [a / b for a, b in zip(end["turns"]["before"], end["turns"]["after"], strict=True)]
        lines_of_text.append(
            f"- The plan from before over the new one, turn about on the new network: {statistics.median(ratios):.2f} "
            f"({min(ratios):.2f} to {max(ratios):.2f})"
        )
    return "\n".join([*lines_of_text, "", f"> {end['explanation']}", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worker", action="store_true")
    parser.add_argument("--quality", type=float, default=1.0)
    parser.add_argument("--from", dest="first", default="1gbit")
    parser.add_argument("--to", dest="second", default="100mbit")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--md", type=Path)
    given = parser.parse_args()
    if given.worker:
        worker(given.quality)
        return
    lines = measure(given)
    text = summary(lines, given)
    print(text)
    if given.json is not None:
        write_atomically(given.json, "\n".join(map(json.dumps, lines)) + "\n")
    if given.md is not None:
        write_atomically(given.md, text)


if __name__ == "__main__":
    main()
