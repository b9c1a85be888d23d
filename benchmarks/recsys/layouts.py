"""Many layouts of the same tables on emulated hosts, beside what the cost framework says of each.

    python benchmarks/recsys/layouts.py --data one-hot,multi-hot --rates 1gbit,100mbit --jsonl F.jsonl --md F.md
    python benchmarks/recsys/layouts.py --hosts 2 --ranks-per-host 2 --racks 2 --uplink 25mbit ...

Tables alone, without a dense part: lookup, gradients back, optimizer. One set of ranks for each data set; a line for
each layout at each rate, and what the file holds is not measured again. Bytes are held against the framework's count
from the same ids; times against its prediction, with rates fitted to every other layout (both ways, so that none is
predicted with rates that have seen it). With more than one rank on a host, layouts with rows on all ranks are measured
twice: summed flat, and inside hosts first; --racks and --uplink make islands. --predict makes the table anew from the
file alone, also after the framework has changed.
"""

import argparse
import signal
import sys
from pathlib import Path
from typing import Any

from jobs import PYTHON, UNLIMITED
from layout_data import frame_of
from layout_plans import POOLINGS, layouts
from layout_table import fitted_to, markdown, topology_of
from session import Record, append, now, provenance, read, run_ranks

from pliant.spec import save
from pliant.spec.files import write_atomically


def main() -> None:
    """Measure what is not there yet; then write the table."""
    arguments = _arguments()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    for data in [] if arguments.predict else arguments.data:
        _run(data, arguments)
    lines = read(arguments.jsonl)
    text = markdown(lines)
    if arguments.fitted:
        save(fitted_to(lines), arguments.fitted)
    write_atomically(arguments.md, text)
    print(text)


def _run(data: str, arguments: argparse.Namespace) -> None:
    about = {
        "data": data,
        "skew": arguments.skew,
        "seed": arguments.seed,
        "hosts": arguments.hosts,
        "batch": arguments.batch,
        "delay": arguments.delay,
        "ranks_per_host": arguments.ranks_per_host,
        "racks": arguments.racks,
        "uplink": arguments.uplink,
        "distinct_batches": arguments.batches,
    }
    names = [name for name in layouts(frame_of(about)) if not arguments.only or name in arguments.only]
    there = {(r["rate"], r["layout"]) for r in read(arguments.jsonl) if all(r[k] == v for k, v in about.items())}
    missing = {rate: [name for name in names if (rate, name) not in there] for rate in arguments.rates}
    rates = [rate for rate in arguments.rates if missing[rate]]
    if not rates:
        return
    topologies = {rate: topology_of({**about, "rate": rate}) for rate in (UNLIMITED, *rates)}
    how = provenance()
    wrong: list[str] = []

    def hear(kind: str, record: Record) -> None:
        if kind == "ready":
            wrong[:] = record["links_wrong"]
            return
        append(arguments.jsonl, {**about, **how, **record, "links_wrong": list(wrong), "time": now()})
        print(f"  {data} {record['rate']} {record['layout']}: {record['rounds'][0]['step_s']:.4f} s", flush=True)

    def job_of(folder: Path, files: Any) -> Record:
        return {
            **about,
            "rates": rates,
            "layouts": missing,
            "flags": str(folder),
            "rounds": arguments.rounds,
            "together": arguments.together,
            "window_s": arguments.window,
        }

    try:
        run_ranks("layouts_worker.py", job_of, topologies, hear, minutes=arguments.minutes)
    except RuntimeError as error:
        sys.exit(f"{data}: {error}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=",".join(POOLINGS))
    parser.add_argument("--rates", default="1gbit,100mbit", help="of each host's link, both ways")
    parser.add_argument("--delay", default="0ms", help="extra one-way delay")
    parser.add_argument("--skew", type=float, default=1.05)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--batch", type=int, default=1024, help="samples of a rank in a step")
    parser.add_argument("--batches", type=int, default=8, help="different ones, over and over")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--window", type=float, default=1.5, help="seconds that a layout is timed for in a round, at least"
    )
    parser.add_argument("--together", type=int, default=10, help="layouts that take turns")
    parser.add_argument("--only", default="", help="names of layouts, divided by ;")
    parser.add_argument("--ranks-per-host", type=int, default=1)
    parser.add_argument("--racks", type=int, default=0, help="that hosts are in; 0: none")
    parser.add_argument("--uplink", default="", help="rate between racks, both ways")
    parser.add_argument("--minutes", type=float, default=60.0, help="that one set of ranks may take")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--predict", action="store_true", help="measure nothing")
    parser.add_argument("--fitted", type=Path, help="file for the machine's rates, fitted to all lines: for hosts.py")
    parser.add_argument("--jsonl", type=Path, default=Path("results/layouts.jsonl"))
    parser.add_argument("--md", type=Path, default=Path("results/layouts.md"))
    arguments = parser.parse_args()
    arguments.only = [name.strip() for name in arguments.only.split(";") if name]
    arguments.data, arguments.rates = arguments.data.split(","), arguments.rates.split(",")
    if wrong := [name for name in arguments.data if name not in POOLINGS]:
        parser.error(f"--data names {', '.join(wrong)}, but there are {', '.join(POOLINGS)}.")
    if not PYTHON.exists():
        parser.error(f"the ranks' interpreter is not at {PYTHON}; run benchmarks/recsys/install.")
    return arguments


if __name__ == "__main__":
    main()
