"""Held-out loss of a GPT over characters under every setting of sharded models, beside plain FSDP2 in float32.

``nice python benchmarks/sharded/loss.py --jsonl out.jsonl --md out.md``        what has no line yet, and the table
``python benchmarks/sharded/loss.py --jsonl out.jsonl --md out.md --table``     the table alone

The text is that of `pliant bench --task lm`, State of the Union addresses; every tenth is held out. Four ranks on
loopback, 1,000 steps of AdamW, seeds 0, 1 and 2, whose weights and batches are the same under all settings. The
learning rate is that of plain FSDP2 with the least loss of seed 0, among powers of two times 1e-3; the search goes on
until both neighbours are worse. One line a trial. A setting passes if its loss exceeds float32's by at most 0.5 %, as
the mean over seeds.
"""

import argparse
import json
import math
import shlex
import statistics
import sys
from functools import partial
from pathlib import Path
from typing import Any

from journal import Lines, place, run_ranks, show
from settings import LOSS, LOSS_SHAPE

from pliant_bench.data.fetch import find_text
from pliant_bench.harness.local import LocalHosts

RANKS, STEPS, SEEDS = 4, 1000, (0, 1, 2)
KEY = ("setting", "lr", "seed", "steps")
FIRST_RATES = (2e-3, 4e-3, 8e-3)
ALLOWED = 0.005
PLAIN = LOSS[0].name


def tuned(lines: Lines, steps: int) -> tuple[float | None, list[float]]:
    """Return the learning rate, or None and those to try before it is known; none is as bad as one that failed."""
    found = {
        r["lr"]: loss if math.isfinite(loss := r.get("loss", math.inf)) else math.inf
        for r in lines.records.values()
        if (r["setting"], r["seed"], r["steps"]) == (PLAIN, SEEDS[0], steps)
    }
    if left := [lr for lr in FIRST_RATES if lr not in found]:
        return None, left
    best = min(found, key=lambda lr: found[lr])
    left = [lr for lr in (best / 2, 2 * best) if lr not in found]
    return (None, left) if left else (best, [])


def trials_left(lines: Lines, steps: int) -> list[dict[str, Any]]:
    """Return the trials without a line, those of one seed first; as long as the learning rate is not known, those."""
    lr, to_try = tuned(lines, steps)
    if lr is None:
        return [_trial(PLAIN, LOSS[0].what, each, SEEDS[0], steps) for each in to_try]
    wanted = [_trial(s.name, s.what, lr, seed, steps) for seed in SEEDS for s in LOSS]
    return [trial for trial in wanted if not lines.has(*(trial[name] for name in KEY))]


def _trial(setting: str, what: str, lr: float, seed: int, steps: int) -> dict[str, Any]:
    return {"setting": setting, "what": what, "lr": lr, "seed": seed, "steps": steps}


def measure(lines: Lines, given: argparse.Namespace) -> None:
    """Train what has no line; a trial that fails gets one with the error, and the others go on in new processes."""
    folder = find_text(given.data)
    while left := trials_left(lines, given.steps):
        begun: list[dict[str, Any]] = []
        try:
            argv = [str(folder), given.pause_while, json.dumps(left)]
            run_ranks(LocalHosts(RANKS), "loss_rank.py", argv, partial(keep, lines, begun))
        except RuntimeError as error:
            if not begun:
                raise
            lines.add({**begun[-1], "error": str(error)[-2000:], **place()})


def keep(lines: Lines, begun: list[dict[str, Any]], said: dict[str, Any]) -> None:
    """Write down what rank 0 says."""
    kind = said.pop("kind")
    if kind == "begin":
        begun.append(said)
        return
    lines.add({**said, **place()})
    told = f"{said['setting']}, lr {said['lr']:g}, seed {said['seed']}: {said['loss']:.4f}"
    print(f"{told} after {said['seconds']:.0f} s, {said['cpu_s']:.0f} s of CPU on rank 0", flush=True)


def table(lines: Lines, steps: int, command: str) -> str:
    """Return the results as Markdown."""
    lr, _ = tuned(lines, steps)
    records = [r for r in lines.records.values() if r["steps"] == steps]
    tried = sorted((r["lr"], r["loss"]) for r in records if r["setting"] == PLAIN and r["seed"] == 0 and "loss" in r)
    shape, first, last = LOSS_SHAPE, records[0], records[-1]
    commits = ", ".join(sorted({r["commit"] for r in records}))
    rates = ", ".join(f"{rate:g}: {loss:.4f}" for rate, loss in tried)
    head = [
        "# Held-out loss of sharded models",
        "",
        f"`{command}`",
        "",
        f"{last['software']}; {last['cpu']}; commits {commits}; load {first['load']} at the first, {last['load']} at "
        "the last, and nothing was timed.",
        "",
        f"A GPT over characters, width {shape.width}, {shape.layers} blocks, sharded as one; {shape.batch} sequences "
        f"of {shape.length} a rank, {RANKS} ranks; {steps} steps of AdamW, learning rate {lr or 0:g}, up over 50 steps "
        f"and then down to 0. Tried with plain FSDP2 and seed 0: {rates}.",
        "",
        "| gradients / weights | loss, by seed | over float32, by seed | mean, wanted at most 0.5 % | MB a step |",
        "|---|---|---|--:|--:|",
    ]
    known = {(r["setting"], r["seed"]): r for r in records if r["lr"] == lr}
    return "\n".join([*head, *(row for s in LOSS if (row := _row(known, s.name))), ""])


def _row(known: dict[tuple[str, int], dict[str, Any]], name: str) -> str:
    mine = {seed: known[name, seed] for seed in SEEDS if (name, seed) in known}
    if not mine:
        return ""
    if errors := [r["error"] for r in mine.values() if "error" in r]:
        return f"| {name} | failed: {errors[0][-200:]!r} | | | |"
    losses = " ".join(f"{r['loss']:.4f}" for r in mine.values())
    over = [r["loss"] / known[PLAIN, seed]["loss"] - 1 for seed, r in mine.items() if (PLAIN, seed) in known]
    mean = statistics.fmean(over)
    sent = next(iter(mine.values()))["sent_bytes"]
    told = f"{mean:+.2%} {'' if mean <= ALLOWED else '**worse**'}".strip()
    each = " ".join(f"{share:+.2%}" for share in over)
    return f"| {name} | {losses} | {each} | {told} | {'' if sent is None else f'{sent / 1e6:.3f}'} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jsonl", type=Path, required=True)
    parser.add_argument("--md", type=Path)
    parser.add_argument("--data", default="", help="a folder of text files")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--pause-while", default="", help="no trial begins while this file exists")
    parser.add_argument("--table", action="store_true", help="write the table alone")
    given = parser.parse_args()
    lines = Lines(given.jsonl, KEY)
    if not given.table:
        measure(lines, given)
    show(table(lines, given.steps, shlex.join(["python", *sys.argv])), given.md)


if __name__ == "__main__":
    main()
