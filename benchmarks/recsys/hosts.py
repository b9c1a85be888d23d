"""Embedding tables on emulated hosts: TorchRec's shardings and Pliant's placements, side by side in one set of ranks.

    python benchmarks/recsys/hosts.py --pooling 1,10,50 --skew 0.8,1.05,1.2 --memory any,128MB --rates 1gbit,100mbit \
        --jsonl F.jsonl --md F.md

All arms live in the same processes, one rank per host: same tables, initial rows, dense part, optimizers and batches.
For each pooling, skew and limit of memory they first learn the same data (AUC), then take turns at each rate, without
any limit first. A line of F.jsonl is written for each of these. What the file holds of the same hosts, sizes and arms
is not measured again: an interrupted run goes on when the same command is given again. --minutes: no set of ranks
begins after that.

--memory: of a rank, for all that rows take: shards, replicas, optimizer state, messages. TorchRec's planner has the
same limit; arms without a planner have none. Needs root, for network namespaces, and benchmarks/recsys/install before.
"""

import argparse
import json
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

from jobs import ARMS, PYTHON, UNLIMITED, Cell, Job, capped
from session import Record, append, now, provenance, read, run_ranks
from table import markdown

from pliant.cli.emulate import topology_from_flags
from pliant.recsys import CRITEO_ROWS
from pliant.spec.files import write_atomically
from pliant.spec.units import parse_bytes


def main() -> None:
    """Measure what is not there yet, and write after each rate."""
    arguments = _arguments()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    if not PYTHON.exists():
        sys.exit(f"TorchRec is not at {PYTHON}; run benchmarks/recsys/install.")
    end_s = time.monotonic() + 60 * arguments.minutes
    for cell in arguments.cells:
        records = read(arguments.jsonl)
        about = _about(cell, arguments)
        missing = [rate for rate in arguments.rates if not has(records, about, rate, arguments.arms)]
        if not missing:
            continue
        if time.monotonic() > end_s:
            sys.exit(f"stopped after {arguments.minutes:g} minutes; the same command goes on from here.")
        print(f"{cell.key}: {', '.join(missing)}", flush=True)
        try:
            _run(cell, missing, arguments)
        except RuntimeError as error:
            sys.exit(f"{cell.key}: {error}")
        write_atomically(arguments.md, markdown(read(arguments.jsonl)))
    print(markdown(read(arguments.jsonl)))


def _run(cell: Cell, rates: list[str], arguments: argparse.Namespace) -> None:
    topologies = {
        rate: topology_from_flags(arguments.hosts, rate, arguments.delay, [], 1, 0.0) for rate in (UNLIMITED, *rates)
    }
    about = {**_about(cell, arguments), **provenance()}
    told: dict[str, Any] = {"made": [], "refused": [], "tried": [], "left out": [], "links_wrong": []}

    def hear(kind: str, record: Record) -> None:
        if kind == "ready":
            told["links_wrong"] = record["links_wrong"]
        elif kind in ("auc", "rates"):
            told[kind] = record
        elif kind == "rate":
            append(arguments.jsonl, {**about, **told, **record, "time": now()})
            print(f"  {record['rate']}: {len(record['arms'])} arms measured", flush=True)
        else:
            told[kind].append(record)
            print(f"  {kind}: {' '.join(str(value) for value in list(record.values())[:3])}", flush=True)

    run_ranks(
        "worker.py",
        lambda folder, files: asdict(_job(cell, rates, files, folder, arguments)),
        topologies,
        hear,
        minutes=arguments.cell_minutes,
        quiet=arguments.quiet,
    )


def _about(cell: Cell, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what a line is of."""
    return {
        "cell": cell.key,
        "pooling": cell.pooling,
        "skew": cell.skew,
        "memory": cell.memory,
        "hosts": arguments.hosts,
        "delay": arguments.delay,
        "batch": arguments.batch,
        "dim": arguments.dim,
        "max_rows": arguments.max_rows,
        "optimizer": arguments.optimizer,
        "seed": arguments.seed,
    }


def _job(cell: Cell, rates: list[str], files: Mapping[str, str], folder: Path, arguments: argparse.Namespace) -> Job:
    return Job(
        pooling=cell.pooling,
        skew=cell.skew,
        memory_bytes=0.0 if cell.memory == "any" else parse_bytes(cell.memory),
        num_rows=capped(CRITEO_ROWS, arguments.max_rows),
        dim=arguments.dim,
        batch=arguments.batch,
        optimizer=arguments.optimizer,
        lr=arguments.lr,
        arms=tuple(arguments.arms),
        rates=tuple(rates),
        topologies=tuple(files[rate] for rate in rates),
        flags=str(folder),
        rounds=arguments.rounds,
        window_s=arguments.window,
        longest_s=arguments.longest,
        distinct_batches=max(4, arguments.batches // cell.pooling),
        train_steps=arguments.train_steps,
        test_batches=arguments.test_batches,
        seed=arguments.seed,
        machine=json.loads(arguments.machine.read_text(encoding="utf-8")) if arguments.machine else {},
    )


def has(records: Sequence[Record], about: Record, rate: str, arms: Sequence[str]) -> bool:
    """Say whether a line with these settings has all arms at a rate, or why one of them was not measured."""
    same = [r for r in records if {**about, "rate": rate}.items() <= r.items()]
    return any(set(arms) <= {*r["arms"], *_without(r)} for r in same)


def _without(r: Record) -> list[str]:
    return [no["arm"] for no in r["refused"]] + [no["arm"] for no in r["left out"] if no["rate"] == r["rate"]]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pooling", default="1,10,50", help="ids of each bag")
    parser.add_argument("--skew", default="0.8,1.05,1.2", help="exponents of the law of the rows")
    parser.add_argument("--memory", default="any,128MB", help="see above")
    parser.add_argument("--rates", default="1gbit,100mbit", help="of each host's link, both ways")
    parser.add_argument("--delay", default="0ms", help="extra one-way delay")
    parser.add_argument("--arms", default="all", help=f"all, or of: {'; '.join(ARMS)} (divided by ;)")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--batch", type=int, default=1024, help="samples of a rank in a step")
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--max-rows", type=int, default=50_000, help="of a table; Criteo's sizes below that")
    parser.add_argument("--optimizer", default="adagrad", help="of rows; rowwise_adagrad differs where columns are cut")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--window", type=float, default=1.5, help="seconds that an arm is timed for in a round, at least"
    )
    parser.add_argument("--longest", type=float, default=20.0, help="arms whose bytes alone take longer are left out")
    parser.add_argument("--batches", type=int, default=32, help="different ones that are timed, divided by the pooling")
    parser.add_argument("--train-steps", type=int, default=200, help="before AUC; 0: no AUC")
    parser.add_argument("--test-batches", type=int, default=16, help="of each rank")
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--cell-minutes", type=float, default=40.0, help="that one set of ranks may take")
    parser.add_argument(
        "--machine", type=Path, help="rates that layouts.py --fitted has written; else they are measured"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quiet", action="store_true", help="do not show what ranks print")
    parser.add_argument("--jsonl", type=Path, default=Path("results/recsys.jsonl"))
    parser.add_argument("--md", type=Path, default=Path("results/recsys.md"))
    arguments = parser.parse_args()
    numbers = [
        [kind(text) for text in getattr(arguments, name).split(",")]
        for name, kind in (("pooling", int), ("skew", float), ("memory", str))
    ]
    arguments.cells = [Cell(pooling=p, skew=s, memory=m) for p, s, m in product(*numbers)]
    arguments.rates = arguments.rates.split(",")
    arguments.arms = list(ARMS) if arguments.arms == "all" else [name.strip() for name in arguments.arms.split(";")]
    if wrong := [name for name in arguments.arms if name not in ARMS]:
        parser.error(f"--arms names {', '.join(wrong)}, but there are: {'; '.join(ARMS)}.")
    return arguments


if __name__ == "__main__":
    main()
