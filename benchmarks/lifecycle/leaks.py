"""Fifty cycles of open, train, switch, close, and 2,000 steps: what stays of memory, threads and open files.

    python benchmarks/lifecycle/leaks.py run --results F.jsonl [--only "onebit,stale"]
    python benchmarks/lifecycle/leaks.py table --results F.jsonl

Each algorithm is trained by two processes on loopback, which look at themselves after every cycle, and after every 50
steps: bytes of resident memory, once the collector has run and the C library has given back what is free; bytes of all
tensors; threads; open files. What is told is the slope of the last two thirds, fitted by least squares, with its
standard error; of memory, without the largest single step. Plain DDP, measured the same way, grows by itself (about
4 kB a cycle, with torch 2.13): what an algorithm's memory grows by beyond that, stays. F.jsonl gets one line an
algorithm and kind, and what has one is not run again.
"""

import argparse
import ctypes
import gc
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tasc.accuracy_book import Book, say_left

from pliant.network.namespaces import die_with_parent
from pliant.network.store_host import reserve_port
from pliant_bench.harness.names import PLIANT_ARMS

RANKS, CYCLES, STEPS, STEPS_A_LOOK = 2, 50, 2000, 50
KINDS = {"cycles": CYCLES, "steps": STEPS // STEPS_A_LOOK}
"""Kind -> looks."""
PLAIN, GROUPS = "ddp", 2
"""Plain DDP makes and destroys as many groups in a cycle as a run does: torch's store keeps by what they were made."""
LOOKED_AT = ("resident", "tensors", "threads", "files")
ERRORS, NOISE_BYTES = 2.0, 256 * 1024
"""Memory stays if it grows by more than plain DDP's: by so many standard errors, and over all looks so many bytes."""
_FIRST = 3
"""A part in so many of the looks comes before the fit: libraries load, pools fill."""


class Lines(Book):
    """What has been run."""

    KEY = ("kind", "algorithm")


def slope(values: Sequence[float]) -> tuple[float, float]:
    """Return the slope per look of the later values, and its standard error."""
    later = values[len(values) // _FIRST :]
    x = range(len(later))
    a, b = statistics.linear_regression(x, later)
    rest = sum((y - a * k - b) ** 2 for k, y in zip(x, later, strict=True)) / max(len(later) - 2, 1)
    mean = statistics.fmean(x)
    return a, (rest / sum((k - mean) ** 2 for k in x)) ** 0.5


def without_jump(values: Sequence[float]) -> list[float]:
    """Return values without the largest of their later steps up: at some look a library's page or a pool is touched.

    Plain DDP's memory has such a step of some 140 kB, too, at one look in no run or another.
    """
    first = len(values) // _FIRST
    steps = [b - a for a, b in zip(values[first:], values[first + 1 :], strict=False)]
    at = max(range(len(steps)), key=steps.__getitem__)
    jump = steps[at] - statistics.median(steps)
    return [value - jump * (k > first + at) for k, value in enumerate(values)]


def stays(record: dict[str, Any], plain: dict[str, Any]) -> list[str]:
    """Return what of a process stays, in memory beyond what stays of plain DDP.

    A thread or a file stays if the fewest that were seen became more, too: a connection that is about to be closed, at
    one look and not at the next, is none.
    """
    found: list[str] = []
    for name in LOOKED_AT:
        a, error = _steepest(record, name)
        own, own_error = _steepest(plain, name) if name == "resident" else (0.0, 0.0)
        noise = NOISE_BYTES if name == "resident" else 0.5
        grows = a - own > ERRORS * math.hypot(error, own_error) and (a - own) * len(record["looks"][0]) > noise
        if grows and (name not in ("threads", "files") or any(_fewest_grow(looks, name) for looks in record["looks"])):
            found.append(name)
    return found


def _fewest_grow(looks: Sequence[dict[str, int]], name: str) -> bool:
    """Say whether the least of the second half of the later looks is above that of the first."""
    later = [look[name] for look in looks[len(looks) // _FIRST :]]
    return min(later[len(later) // 2 :]) > min(later[: len(later) // 2])


def _steepest(record: dict[str, Any], name: str) -> tuple[float, float]:
    """Return the largest slope over ranks, and its error."""
    values = [[look[name] for look in looks] for looks in record["looks"]]
    return max(slope(without_jump(own) if name == "resident" else own) for own in values)


def measure(algorithm: str, kind: str) -> dict[str, Any]:
    """Train with two processes, and return what they have seen of themselves."""
    began_s = time.monotonic()
    held = reserve_port()
    port = str(held.getsockname()[1])
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(RANKS), "GLOO_SOCKET_IFNAME": "lo"}
    # Torch's flight recorder would fill its 2,000 entries, one for each collective, in all the time that is measured.
    env |= {"OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1", "TORCH_FR_BUFFER_SIZE": "0"}
    command = [sys.executable, __file__, "be", "--only", algorithm, "--kind", kind]
    ranks = [
        subprocess.Popen(
            command,
            env={**os.environ, **env, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            preexec_fn=die_with_parent(os.getpid()),
        )
        for rank in range(RANKS)
    ]
    try:
        said = [rank.communicate(timeout=1800)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
        held.close()
    if any(rank.returncode for rank in ranks):
        raise RuntimeError(f"{algorithm}, {kind}: the ranks ended with {[rank.returncode for rank in ranks]}.")
    looks = [json.loads(text.splitlines()[-1]) for text in said]
    return {"kind": kind, "algorithm": algorithm, "looks": looks, "took_s": time.monotonic() - began_s}


def be(algorithm: str, kind: str) -> None:
    """Train as a rank, and print what was seen."""
    import torch
    import torch.distributed as dist
    from torch import nn

    from pliant_bench.harness.arms import plan_of_arm, prepare

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    give_back = ctypes.CDLL(None).malloc_trim

    def open_arm() -> Any:
        torch.manual_seed(0)
        layers = nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(784, 64), nn.Tanh(), nn.Linear(64, 8)
        return prepare(algorithm, nn.Sequential(*layers), 0.01, STEPS, 25.0, timeout_s=60)

    def train(arm: Any, steps: int) -> None:
        for _ in range(steps):
            x = torch.randn(4, 1, 16, 16)
            arm.optimizer.zero_grad()
            nn.functional.cross_entropy(arm.model(x), x.flatten(1)[:, :8].argmax(1)).backward()
            arm.optimizer.step()

    def look() -> dict[str, int]:
        dist.barrier()
        gc.collect()
        give_back(0)
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        tensors = sum(x.nbytes for x in gc.get_objects() if issubclass(type(x), torch.Tensor) and not x.is_sparse)
        files, threads = len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
        return {"resident": resident, "tensors": tensors, "threads": threads, "files": files}

    def after_cycles() -> Iterator[dict[str, int]]:
        other = plan_of_arm("allreduce" if algorithm != "allreduce" else "onebit")
        for _ in range(CYCLES):
            arm = open_arm()
            train(arm, 3)
            if arm.run is not None and algorithm != "onebit_adam":  # which belongs to an optimizer of its own
                arm.run.switch(other)
                train(arm, 2)
            for _ in range(0 if arm.run is not None else GROUPS):
                group = dist.new_group()
                dist.all_reduce(torch.zeros(10), group=group)
                dist.destroy_process_group(group)
            arm.close()
            del arm
            yield look()

    def after_steps() -> Iterator[dict[str, int]]:
        arm = open_arm()
        for _ in range(STEPS // STEPS_A_LOOK):
            train(arm, STEPS_A_LOOK)
            if arm.run is not None:
                arm.run.state_dict()  # nothing is on its way
            yield look()
        arm.close()

    looks = list(after_cycles() if kind == "cycles" else after_steps())
    dist.barrier()
    dist.destroy_process_group()
    print(json.dumps(looks), flush=True)


def table(journal: Lines) -> str:
    """Return a table: for each algorithm and kind the largest slopes of its ranks, and what stays."""
    rows = [
        "| algorithm | kind | resident bytes a look | tensor bytes a look | threads | files | stays |",
        "|---|---|---|---|---|---|---|",
    ]
    num = 0
    for record in journal.records.values():
        cells = [record["algorithm"], record["kind"]]
        for name in LOOKED_AT:
            a, error = _steepest(record, name)
            cells.append(f"{a:+.0f} ± {error:.0f}" if name in ("resident", "tensors") else f"{a:+.2f}")
        found = stays(record, journal.records[record["kind"], PLAIN])
        num += not found
        rows.append("| " + " | ".join([*cells, ", ".join(found) or "nothing"]) + " |")
    return "\n".join([*rows, "", f"Nothing stays in {num} of {len(journal.records)}."])


def main() -> None:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("act", choices=["run", "table", "be"])
    parser.add_argument("--results", type=Path)
    parser.add_argument("--only", default=",".join(PLIANT_ARMS), help="algorithms, with commas")
    parser.add_argument("--kind", choices=sorted(KINDS), help="one of them; default: both")
    parser.add_argument("--list", action="store_true", help="with run: say what is left, and measure nothing")
    given = parser.parse_args()
    if given.act == "be":
        be(given.only, given.kind)
        return
    journal = Lines(given.results)
    algorithms = [PLAIN, *given.only.split(",")] if given.act == "run" else []
    asked = [(kind, each) for each in algorithms for kind in (KINDS if given.kind is None else [given.kind])]
    left = [about for about in asked if about not in journal.records]
    if given.list:
        say_left([f"{algorithm}, {kind}" for kind, algorithm in left], len(asked))
        return
    for kind, algorithm in left:
        record = journal.add(measure(algorithm, kind))
        found = stays(record, journal.records[kind, PLAIN])
        print(f"{algorithm}, {kind}: {', '.join(found) or 'nothing'} stays", flush=True)
    print(table(journal))


if __name__ == "__main__":
    main()
