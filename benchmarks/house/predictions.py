"""Predicted steps against measured ones on emulated hosts with real computing, before and after a change of the model.

``python benchmarks/house/predictions.py --jsonl out.jsonl --json out.json --md out.md``

For each rate, four hosts are brought up and probed once: `pliant probe --out topology --machine machine`. Then each
model is observed by `pliant.observe` on all ranks at once, and each algorithm put in force and timed. Nothing is
fitted. Every arm is appended to --jsonl as soon as it is measured; a run that finds arms there goes on behind them.
Afterwards three predict all arms from the same files: this version with the machine's file, this version with its
defaults, and the version before with its own defaults, since it had no use for a machine's file. The version before
gets rates of payload, as its probe wrote them, and this one rates of the links with the CPUs that the ranks share; a
probe of before said nothing of these, and is taken for one on the machine that its session names. Needs root, for
network namespaces; a book in which nothing is left to measure is only predicted.
"""

import argparse
import json
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from arms import ALGORITHMS, MODELS
from versions import REPOSITORY, built, commit_of, environment, machine

import pliant
from pliant.cli.emulate import topology_from_flags
from pliant.netmodel import Overheads
from pliant.network import EmulatedCluster, emulate_cluster
from pliant.spec.files import write_atomically
from pliant_bench.harness.setup import MARK

sys.path.append(str(Path(__file__).parents[1]))

from tasc.accuracy_book import append_record, read_records

HOSTS = 4
AFTER, DEFAULTS, BEFORE = "after", "after, with defaults", "before"
HOUSE = Path(__file__).parent
TIMEOUT_S = 560.0


class Book:
    """The lines of a run, each kept at once: arms, and sessions with what they found of network, machine and model."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines = read_records(path) if path.exists() else []

    def write(self, line: dict) -> None:
        """Keep a line."""
        self.lines.append(line)
        append_record(self.path, line)

    def left(self, rate: str, model: str, algorithms: list[str]) -> list[str]:
        """Return the algorithms that were not measured on a model at a rate."""
        done = {line["algorithm"] for line in self.arms() if (line["rate"], line["model"]) == (rate, model)}
        return [algorithm for algorithm in algorithms if algorithm not in done]

    def arms(self) -> list[dict]:
        """Return the arms, those that failed included."""
        return [line for line in self.lines if line["kind"] == "arm"]

    def cases(self) -> list[dict]:
        """Return the arms that ended well, each with the network, the machine and the model of its session."""
        sessions = {line["session"]: line for line in self.lines if line["kind"] == "session"}
        return [sessions[arm["session"]] | arm for arm in self.arms() if arm["status"] == "ok"]


def run_ranks(cluster: EmulatedCluster, argv: list[str], take: Callable[[dict], object]) -> None:
    """Run a command on all hosts, and hand over the records of rank 0."""
    words: list[str] = []

    def on_line(rank: int, line: str) -> None:
        if rank == 0 and line.startswith(MARK):
            take(json.loads(line.removeprefix(MARK)))
        else:
            words.append(f"[{rank}] {line}")

    results = cluster.run([sys.executable, *argv], on_line=on_line, timeout_s=TIMEOUT_S)
    if any(result.exit_code for result in results):
        raise RuntimeError("\n".join([f"{argv[0]} failed on {[r.exit_code for r in results]}:", *words[-40:]]))


def measure(journal: Book, given: argparse.Namespace) -> None:
    """Measure what the book lacks."""
    for rate in given.rates:
        left = {model: journal.left(rate, model, given.algorithms) for model in given.models}
        if not any(left.values()):
            continue
        topology = topology_from_flags(HOSTS, rate, given.delay, [], 1, 0.0)
        with tempfile.TemporaryDirectory() as folder, emulate_cluster(topology) as cluster:
            files = {name: Path(folder) / f"{name}.json" for name in ("topology", "machine")}
            argv = [str(Path(sys.executable).with_name("pliant")), "probe", "--budget", given.probe]
            argv += ["--out", str(files["topology"]), "--machine", str(files["machine"])]
            run_ranks(cluster, argv, print)
            probed = {name: json.loads(path.read_text()) for name, path in files.items()}
            for model, algorithms in left.items():
                if algorithms:
                    place = {"rate": rate, "delay": given.delay, "model": model, **probed}
                    _session(cluster, journal, place, algorithms, given.seconds)


def _session(cluster: EmulatedCluster, journal: Book, place: dict, algorithms: list[str], seconds: float) -> None:
    named = {"session": f"{time.time():.3f}", **{name: place[name] for name in ("rate", "delay", "model")}}

    def take(said: dict) -> None:
        if said["kind"] == "workload":
            journal.write({**place, **named, **machine(), "kind": "session", "workload": said["workload"]})
            return
        journal.write({**said, **named})
        took = f"{1e3 * measured_s(said):.1f} ms" if said["status"] == "ok" else said["reason"]
        print(f"{place['model']} at {place['rate']}, {said['algorithm']}: {took}", flush=True)

    run_ranks(cluster, [str(HOUSE / "predictions_rank.py"), place["model"], str(seconds), *algorithms], take)


def measured_s(arm: dict) -> float:
    """Return an arm's step: the median over turns of the mean over ranks."""
    return statistics.median(mean for mean, _, _ in arm["samples"])


def predicted(cases: list[dict], before: str) -> dict[str, list[dict]]:
    """Return what each of the three predicts for all arms."""
    with tempfile.TemporaryDirectory(prefix="pliant-") as folder:
        versions = {AFTER: None, DEFAULTS: None, BEFORE: environment(built(before, Path(folder)))}
        found = {}
        for name, env in versions.items():
            arms = [
                {"plan": case["plan"], "workload": case["workload"], "topology": topology_for(case, name)}
                | {"machine": case["machine"] if name == AFTER else None}
                for case in cases
            ]
            argv = [sys.executable, str(HOUSE / "predict.py")]
            ended = subprocess.run(argv, input=json.dumps(arms), stdout=subprocess.PIPE, env=env, check=True, text=True)
            found[name] = json.loads(ended.stdout)
    return found


def topology_for(case: dict, name: str) -> dict:
    """Return a case's topology as the probe of a version writes it."""
    topology = dict(case["topology"])
    of_before = topology.pop("num_cpus", 0) == 0
    if of_before != (name == BEFORE):
        factor = Overheads().wire_factor ** (1 if of_before else -1)
        topology["hosts"] = [
            _scaled(host, factor, "send_bytes_per_s", "receive_bytes_per_s") for host in topology["hosts"]
        ]
        topology["links"] = [_scaled(link, factor, "bytes_per_s") for link in topology["links"]]
    cpus = int(case["cpu"].split()[0])  # '2 x AMD EPYC'
    return topology if name == BEFORE else topology | {"num_cpus": case["topology"].get("num_cpus", cpus)}


def _scaled(record: dict, factor: float, *names: str) -> dict:
    return record | {name: factor * record[name] for name in names}


def error_of(row: dict, name: str) -> float:
    """Return the relative error of a prediction."""
    return row[name]["step_s"] / row["measured_s"] - 1


def table(found: dict) -> str:
    """Return the results as Markdown."""
    rows, names = found["rows"], (AFTER, DEFAULTS, BEFORE)
    lines = [
        f"# Predicted steps, {found['after']} beside {found['before']}",
        "",
        f"`{found['command']}`",
        "",
        f"{len(rows)} arms on {HOSTS} emulated hosts with real computing; nothing was fitted. "
        f"{found['machine']['cpu']}; {found['machine']['software']}; "
        f"load {found['machine']['load']} at the end, {found['machine']['at']}. "
        f"`{AFTER}` has the probed topology and the machine's file, `{DEFAULTS}` the topology and the defaults of "
        f"Overheads, `{BEFORE}` the topology and the defaults of its Costs: a machine's file reached nobody there. "
        "All have the same observed workload. Bytes of exchanges that outlive a short turn are counted outside it. "
        f"Failed arms: {', '.join(found['failed']) or 'none'}.",
        "",
        "| absolute relative error | median | 90th percentile | largest | median of the signed |",
        "|---|--:|--:|--:|--:|",
    ]
    groups = {"all": rows}
    groups |= {f"{m}, {r}": [row for row in rows if (row["model"], row["rate"]) == (m, r)] for m, r in _places(rows)}
    for group, chosen in groups.items():
        for name in names:
            signed = [error_of(row, name) for row in chosen]
            middle, most, worst = np.quantile(np.abs(signed), [0.5, 0.9, 1.0])
            lines.append(
                f"| {group}: {name} | {middle:.1%} | {most:.1%} | {worst:.1%} | {statistics.median(signed):+.1%} |"
            )
    lines += [
        "",
        f"| model, rate, algorithm | measured (spread) | {' | '.join(names)} | bytes sent, predicted over own |",
    ]
    lines.append(f"|---|--:|{'--:|' * len(names)}--:|")
    for row in rows:
        cells = [f"{1e3 * row[name]['step_s']:.1f} ({error_of(row, name):+.0%})" for name in names]
        spread = f"{1e3 * row['measured_s']:.1f} ms ({1e3 * row['least_s']:.0f} to {1e3 * row['most_s']:.0f})"
        sent = row[AFTER]["sent_bytes"] / row["sent_bytes"] if row["sent_bytes"] else float("nan")
        lines.append(
            f"| {row['model']}, {row['rate']}, `{row['algorithm']}` | {spread} | {' | '.join(cells)} | {sent:.3f} |"
        )
    return "\n".join([*lines, ""])


def _places(rows: list[dict]) -> list[tuple[str, str]]:
    return list(dict.fromkeys((row["model"], row["rate"]) for row in rows))


def compare(journal: Book, given: argparse.Namespace) -> dict:
    """Return all arms with what each version predicts for them."""
    cases, before = journal.cases(), commit_of(given.before)
    predictions = predicted(cases, before)
    kept = ("model", "rate", "algorithm", "sent_bytes", "exposed_s", "exchange_s", "codec_s", "num_steps", "session")
    rows = []
    for k, case in enumerate(cases):
        samples = [mean for mean, _, _ in case["samples"]]
        row = {name: case[name] for name in kept}
        row |= {"measured_s": measured_s(case), "least_s": min(samples), "most_s": max(samples)}
        rows.append(row | {name: found[k] for name, found in predictions.items()})
    failed = [
        f"{a['model']} {a['rate']} {a['algorithm']}: {a['reason']}" for a in journal.arms() if a["status"] != "ok"
    ]
    command = shlex.join(["python", *sys.argv])
    return {
        "after": commit_of("HEAD"),
        "before": before,
        "command": command,
        "machine": machine(),
        "failed": failed,
        "rows": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", default="e3e89e4")
    parser.add_argument("--rates", nargs="+", default=["1gbit", "100mbit"])
    parser.add_argument("--delay", default="0ms")
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--algorithms", nargs="+", default=list(ALGORITHMS))
    parser.add_argument("--seconds", type=float, default=2.5, help="Of an arm: no turn begins later.")
    parser.add_argument("--probe", default="5s")
    parser.add_argument("--jsonl", type=Path, required=True)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--md", type=Path)
    given = parser.parse_args()
    print(f"{pliant.__file__}, beside {REPOSITORY}", flush=True)
    journal = Book(given.jsonl)
    if others := {line.get("delay", "0ms") for line in journal.lines} - {given.delay}:
        parser.error(f"{given.jsonl} is of links with {', '.join(others)}, not {given.delay}; give another --jsonl.")
    measure(journal, given)
    found = compare(journal, given)
    print(table(found))
    if given.json is not None:
        write_atomically(given.json, json.dumps(found) + "\n")
    if given.md is not None:
        write_atomically(given.md, table(found))


if __name__ == "__main__":
    main()
