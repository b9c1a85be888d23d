"""Peers and the Pliant arms they correspond to, in turn on the same emulated hosts.

    python benchmarks/peers/run.py --peers all --rate 100mbit --hosts 4 --json F.json --md F.md

Each run is a fresh set of processes: a peer's in its own environment (benchmarks/peers/install), Pliant's in this one.
F.json and F.md are written after every run, and what F.json holds is not run again: so an interrupted comparison goes
on where it was when the same command is given again, and others can be added to it. What failed is tried again.
No run begins after --minutes, and none takes longer than --timeout, so that their sum bounds the whole.
"""

import argparse
import json
import os
import platform
import shlex
import signal
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jobs import HERE, PAIRS, Job, Pair, whole_periods
from table import markdown

from pliant.cli.emulate import topology_from_flags
from pliant.network import EmulatedCluster, emulate_cluster
from pliant.spec.files import write_atomically
from pliant_bench.data.fetch import find_images
from pliant_bench.harness.setup import MARK, MODELS

_SOURCES = HERE.parents[1] / "src"


@dataclass(frozen=True)
class Turn:
    """One run of a comparison."""

    model: str
    peer: str
    round: int
    side: str


def main() -> None:
    arguments = _arguments()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    result = _result(arguments)
    turns = _turns_to_make(arguments, result["records"])
    if turns:
        print(f"{len(turns)} runs, {arguments.timeout:g} s each at most; none begins after {arguments.minutes:g} min.")
        topology = topology_from_flags(arguments.hosts, arguments.rate, arguments.delay, [], 1, 0.0)
        with emulate_cluster(topology) as cluster:
            complete = _make(turns, result, cluster, arguments)
        if not complete:
            sys.exit(f"stopped after {arguments.minutes:g} minutes; the same command goes on from here.")
    print(markdown(result))


def _turns_to_make(arguments: argparse.Namespace, records: list[dict[str, Any]]) -> list[Turn]:
    """Return the runs that are not among the records, each pair's in turn, A B B A."""
    sides = ("peer", "pliant")
    made = {Turn(r["model"], r["peer"], r["round"], r["side"]) for r in records}
    turns = (
        Turn(model, peer, turn, side)
        for model in arguments.models
        for peer in arguments.peers
        for turn in range(arguments.rounds)
        for side in (sides if turn % 2 == 0 else reversed(sides))
    )
    return [turn for turn in turns if turn not in made]


def _make(turns: list[Turn], result: dict[str, Any], cluster: EmulatedCluster, arguments: argparse.Namespace) -> bool:
    """Run all and write after each; return whether the time sufficed. What fails once is left out from there on."""
    end_s = time.monotonic() + 60 * arguments.minutes
    failed: set[tuple[str, str]] = set()
    for turn in turns:
        if (turn.model, turn.peer) in failed:
            continue
        if time.monotonic() > end_s:
            return False
        pair = PAIRS[turn.peer]
        record: dict[str, Any] = {**asdict(turn), "version": pair.version}
        what = f"{turn.model} {turn.peer} round {turn.round} {turn.side}"
        try:
            record |= _run(_argv(turn.side, pair), _job(turn, pair, arguments), cluster, arguments.timeout)
            print(f"{what}: {record['step_s']:.4f} s a step", flush=True)
        except RuntimeError as error:
            print(f"{what}: {error}", flush=True)
            record["error"] = str(error)
            failed.add((turn.model, turn.peer))
        result["records"].append(record)
        write_atomically(arguments.json, json.dumps(result, indent=1) + "\n")
        write_atomically(arguments.md, markdown(result))
    return True


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default="all", help=f"all, or of {', '.join(PAIRS)}")
    parser.add_argument("--models", default="cnn", help=f"of {', '.join(MODELS)}; cnn trains on real images")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rate", default="100mbit", help="of each host's link, both ways")
    parser.add_argument("--delay", default="0ms", help="extra one-way delay")
    parser.add_argument("--rounds", type=int, default=2, help="runs of each of the two, with seeds 0, 1, ...")
    parser.add_argument("--steps", type=int, default=128, help="timed steps, rounded up to whole periods")
    parser.add_argument("--timeout", type=float, default=240.0, help="seconds that one run may take")
    parser.add_argument("--minutes", type=float, default=60.0, help="after which no run begins")
    parser.add_argument("--data", default="", help="folder of the images")
    parser.add_argument("--json", type=Path, default=Path("results/peers.json"))
    parser.add_argument("--md", type=Path, default=Path("results/peers.md"))
    arguments = parser.parse_args()
    if arguments.peers == "all":
        arguments.peers = ",".join(PAIRS)
    for names, known in (("peers", tuple(PAIRS)), ("models", MODELS)):
        chosen = getattr(arguments, names).split(",")
        if wrong := [name for name in chosen if name not in known]:
            parser.error(f"--{names} names {', '.join(wrong)}, but there are {', '.join(known)}.")
        setattr(arguments, names, chosen)
    return arguments


def _result(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what the file holds but for errors, or an empty result. Raises ValueError if it is of another setting."""
    setting = {
        "network": f"{arguments.hosts} hosts at {arguments.rate} with {arguments.delay} delay",
        "steps": arguments.steps,
    }
    records: list[dict[str, Any]] = []
    provenance: list[dict[str, str]] = []
    if arguments.json.exists():
        before = json.loads(arguments.json.read_text())
        if (found := {key: before.get(key) for key in setting}) != setting:
            raise ValueError(f"{arguments.json} is of {found}, but this run of {setting}; give another --json.")
        records = [record for record in before["records"] if "error" not in record]
        provenance = before["provenance"]
    now = {
        "command": shlex.join(["python", *sys.argv]),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()} {platform.release()}",
        "time": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "load before": f"{os.getloadavg()[0]:.1f}",
    }
    return {**setting, "provenance": [*provenance, now], "records": records}


def _job(turn: Turn, pair: Pair, arguments: argparse.Namespace) -> Job:
    return Job(
        arm=pair.arm if turn.side == "peer" else pair.pliant,
        period=pair.period,
        model=turn.model,
        seed=turn.round,
        warm_up_steps=whole_periods(4, pair.period) + pair.lead,
        steps=whole_periods(arguments.steps, pair.period),
        data=str(find_images(arguments.data)) if turn.model == "cnn" else "",
    )


def _argv(side: str, pair: Pair) -> list[str]:
    """Return interpreter and worker. Raises RuntimeError where a peer is not installed."""
    if side == "pliant":
        return [sys.executable, str(HERE / "pliant_worker.py")]
    if not pair.python.exists():
        raise RuntimeError(f"not installed; run benchmarks/peers/install {pair.package}.")
    return [str(pair.python), str(HERE / f"{pair.package}_worker.py")]


def _run(argv: list[str], job: Job, cluster: EmulatedCluster, timeout_s: float) -> dict[str, Any]:
    """Run a worker on every rank; return rank 0's record. Raises RuntimeError with what the first to fail said."""
    records: list[dict[str, Any]] = []
    words: dict[int, list[str]] = {}

    def take(rank: int, line: str) -> None:
        if line.startswith(MARK):
            records.append(json.loads(line.removeprefix(MARK)))
        elif line.strip():
            words.setdefault(rank, []).append(line.strip())

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.json"
        job.write(path)
        env = {"PYTHONPATH": str(_SOURCES)}
        results = cluster.run([*argv, str(path)], env=env, on_line=take, timeout_s=timeout_s)
    if records:  # some peers end with an error when all is done: what they measured stands
        return {key: value for key, value in records[0].items() if key != "kind"}
    failed = [r for r in results if r.exit_code and not r.ended_by_us]
    if not failed:
        raise RuntimeError(f"no result after {timeout_s:g} s; last words: {(words.get(0) or ['none'])[-1][:300]}")
    said = words.get(failed[0].rank, [])
    print("\n".join(said[-20:]), file=sys.stderr, flush=True)
    error = next((line for line in reversed(said) if "Error" in line), (said or ["nothing"])[-1])
    raise RuntimeError(f"rank {failed[0].rank} ended with exit code {failed[0].exit_code}: {error[:300]}")


if __name__ == "__main__":
    main()
