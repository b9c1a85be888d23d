"""Peers and the Pliant arms they correspond to, in turn on the same emulated hosts.

    python benchmarks/peers/run.py --peers torchft-localsgd,decent-dp --rate 100mbit --hosts 4 --json F.json --md F.md

Each run is a fresh set of processes: a peer's in its own environment (benchmarks/peers/install), Pliant's in this one.
What F.json already holds about other peers or models stays, so that a comparison can be made in parts.
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
from pathlib import Path
from typing import Any

from jobs import ENVIRONMENTS, HERE, PAIRS, Job, Pair, whole_periods
from table import markdown

from pliant.cli.bench.fetch import find_images
from pliant.cli.bench.setup import MARK, MODELS
from pliant.cli.emulate import topology_from_flags
from pliant.network import Cluster, emulated
from pliant.spec.files import write_atomically

_SOURCES = HERE.parents[1] / "src"


def main() -> None:
    arguments = _arguments()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    result = _result(arguments)
    topology = topology_from_flags(arguments.hosts, arguments.rate, arguments.delay, [], 1, 0.0)
    with emulated(topology) as cluster:
        for model in arguments.models:
            for peer in arguments.peers:
                kept = [r for r in result["records"] if (r["peer"], r["model"]) != (peer, model)]
                result["records"] = kept + _compare(peer, model, cluster, arguments)
                write_atomically(arguments.json, json.dumps(result, indent=1) + "\n")
                write_atomically(arguments.md, markdown(result))
    print(markdown(result))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default=",".join(PAIRS), help=f"of {', '.join(PAIRS)}")
    parser.add_argument("--models", default="cnn", help=f"of {', '.join(MODELS)}; cnn trains on real images")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rate", default="100mbit", help="of each host's link, both ways")
    parser.add_argument("--delay", default="0ms", help="extra one-way delay")
    parser.add_argument("--rounds", type=int, default=2, help="runs of each of the two, with seeds 0, 1, ...")
    parser.add_argument("--steps", type=int, default=128, help="timed steps, rounded up to whole periods")
    parser.add_argument("--timeout", type=float, default=240.0, help="seconds that one run may take")
    parser.add_argument("--data", default="", help="folder of the images")
    parser.add_argument("--json", type=Path, default=Path("results/peers.json"))
    parser.add_argument("--md", type=Path, default=Path("results/peers.md"))
    arguments = parser.parse_args()
    for names, known in (("peers", tuple(PAIRS)), ("models", MODELS)):
        chosen = getattr(arguments, names).split(",")
        if wrong := [name for name in chosen if name not in known]:
            parser.error(f"--{names} names {', '.join(wrong)}, but there are {', '.join(known)}.")
        setattr(arguments, names, chosen)
    return arguments


def _result(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what the file holds, or an empty result. Raises ValueError if it is of another network."""
    network = f"{arguments.hosts} hosts at {arguments.rate} with {arguments.delay} delay"
    records: list[dict[str, Any]] = []
    provenance: list[dict[str, str]] = []
    if arguments.json.exists():
        before = json.loads(arguments.json.read_text())
        if before["network"] != network:
            raise ValueError(
                f"{arguments.json} is of {before['network']}, but this run of {network}; give another --json."
            )
        records, provenance = before["records"], before["provenance"]
    now = {
        "command": shlex.join(["python", *sys.argv]),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()} {platform.release()}",
        "time": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "load before": f"{os.getloadavg()[0]:.1f}",
    }
    return {"network": network, "provenance": [*provenance, now], "records": records}


def _compare(peer: str, model: str, cluster: Cluster, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Run both in turn, A B B A, and return a record per run, or one with the error."""
    pair = PAIRS[peer]
    version = (HERE / "requirements" / f"{pair.package}.txt").read_text().split()[0].replace("==", " ")
    about = {"peer": peer, "version": version, "model": model}
    steps = whole_periods(arguments.steps, pair.period)
    records: list[dict[str, Any]] = []
    for turn in range(arguments.rounds):
        for side in ("peer", "pliant") if turn % 2 == 0 else ("pliant", "peer"):
            job = Job(
                arm=pair.arm if side == "peer" else pair.pliant,
                period=pair.period,
                model=model,
                seed=turn,
                warm_up_steps=whole_periods(4, pair.period),
                steps=steps,
                data=str(find_images(arguments.data)) if model == "cnn" else "",
            )
            try:
                found = _run(_argv(side, pair), job, cluster, arguments.timeout)
            except RuntimeError as error:
                print(f"{model} {peer} {side}: {error}", flush=True)
                return [{**about, "side": side, "error": str(error)}]
            print(f"{model} {peer} round {turn} {side}: {found['step_s']:.4f} s a step", flush=True)
            records.append({**about, "side": side, "round": turn, **found})
    return records


def _argv(side: str, pair: Pair) -> list[str]:
    """Return interpreter and worker. Raises RuntimeError where a peer is not installed."""
    if side == "pliant":
        return [sys.executable, str(HERE / "pliant_worker.py")]
    python = ENVIRONMENTS / pair.package / "bin" / "python"
    if not python.exists():
        raise RuntimeError(f"not installed; run benchmarks/peers/install {pair.package}.")
    return [str(python), str(HERE / f"{pair.package}_worker.py")]


def _run(argv: list[str], job: Job, cluster: Cluster, timeout_s: float) -> dict[str, Any]:
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
