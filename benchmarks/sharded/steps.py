"""Steps of sharded models on four emulated hosts, beside plain FSDP2 and computing alone, in one run.

``python benchmarks/sharded/steps.py --jsonl out.jsonl --md out.md``            what has no line yet, and the table
``python benchmarks/sharded/steps.py --jsonl out.jsonl --md out.md --table``    the table alone

For each rate and model four hosts are brought up; the network and the machine are probed once for a rate. The ranks
observe computing alone, build all settings of `settings.STEPS`, and let them take turns: three rounds, in even ones in
their order, in odd ones from the last to the first. A turn has as many steps as a step's time says, at least one. Bytes
are those that have left the host by its interface. The simulator predicts bytes and steps from the probed network, the
machine's file and the observed workload; nothing is fitted. One line a turn. Needs root, for network namespaces.
"""

import argparse
import json
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from journal import Lines, place, run_ranks, show
from predicted import predicted
from settings import MODELS, RATES, STEPS

from pliant.cli.emulate import topology_from_flags
from pliant.network import EmulatedCluster, emulate_cluster

HOSTS, ROUNDS = 4, 3
KEY = ("kind", "rate", "model", "batch", "round", "setting", "session")
WANTED = {("exact", "100mbit"): 0.8, ("exact", "1gbit"): 1.0}
BEST_OVER_ALONE, WITHIN = 1.25, 0.15


def probe(cluster: EmulatedCluster, seconds: str) -> dict[str, Any]:
    """Return the probed topology and machine."""
    with tempfile.TemporaryDirectory() as folder:
        files = {name: Path(folder) / f"{name}.json" for name in ("topology", "machine")}
        argv = [str(Path(sys.executable).with_name("pliant")), "probe", "--budget", seconds]
        argv += ["--out", str(files["topology"]), "--machine", str(files["machine"])]
        results = cluster.run(argv, on_line=lambda rank, line: None, timeout_s=120)
        if any(result.exit_code for result in results):
            raise subprocess.CalledProcessError(1, argv)
        return {name: json.loads(path.read_text()) for name, path in files.items()}


def measure(lines: Lines, given: argparse.Namespace) -> None:
    """Measure what has no line."""
    for rate in given.rates:
        left = {model: rounds for model in given.models if (rounds := rounds_left(lines, rate, model, given))}
        if not left:
            continue
        with emulate_cluster(topology_from_flags(HOSTS, rate, "0ms", [], 1, 0.0)) as cluster:
            probed = probe(cluster, given.probe)
            for model, rounds in left.items():
                named = {"rate": rate, "model": model, "batch": given.batch, "session": f"{time.time():.3f}"}
                argv = [model, str(given.batch), ",".join(map(str, rounds)), str(given.turn), *given.settings]
                run_ranks(cluster, "steps_rank.py", argv, partial(keep, lines, named, probed))


def keep(lines: Lines, named: dict[str, Any], probed: dict[str, Any], said: dict[str, Any]) -> None:
    """Write down what rank 0 says."""
    if said["kind"] == "session":
        lines.add({**said, **named, **probed, **place()})
        return
    lines.add({**said, **named})
    told = f"{1e3 * said['step_s']:.0f} ms, {said['wire_bytes'] / 1e6:.2f} MB"
    print(f"{named['rate']}, {named['model']}, round {said['round']}, {said['setting']}: {told}", flush=True)


def rounds_left(lines: Lines, rate: str, model: str, given: argparse.Namespace) -> list[int]:
    """Return the rounds in which a setting has no turn yet; they are made anew, all settings beside each other."""
    made = [r for r in turns(lines, given.batch) if (r["rate"], r["model"]) == (rate, model)]
    done = {(r["round"], r["setting"]) for r in made}
    return [k for k in range(given.rounds) if any((k, setting) not in done for setting in given.settings)]


def turns(lines: Lines, batch: int) -> list[dict[str, Any]]:
    """Return all turns with so many sequences a rank; of a round that was made anew, the last."""
    made = [r for r in lines.records.values() if (r["kind"], r["batch"]) == ("turn", batch)]
    return list({(r["rate"], r["model"], r["round"], r["setting"]): r for r in made}.values())


class Cell:
    """One model at one rate: its turns, by setting and round, and what its session has measured."""

    def __init__(self, lines: Lines, rate: str, model: str, batch: int) -> None:
        self.rate, self.model = rate, model
        mine = [r for r in turns(lines, batch) if (r["rate"], r["model"]) == (rate, model)]
        self.turns = {(r["setting"], r["round"]): r for r in mine}
        self.rounds = sorted({r["round"] for r in mine})
        sessions = {r["session"]: r for r in lines.records.values() if r["kind"] == "session"}
        self.session = sessions[mine[-1]["session"]] if mine else {}

    def of(self, setting: str) -> list[dict[str, Any]]:
        """Return a setting's turns."""
        return [self.turns[setting, k] for k in self.rounds if (setting, k) in self.turns]

    def ratio(self, setting: str, base: str) -> list[float]:
        """Return a setting's step over another's, round by round."""
        pairs = [(self.turns.get((setting, k)), self.turns.get((base, k))) for k in self.rounds]
        return [one["step_s"] / other["step_s"] for one, other in pairs if one is not None and other is not None]

    def lines(self) -> list[str]:
        """Return the rows of the table."""
        return [self._row(setting.name) for setting in STEPS if self.of(setting.name)]

    def _row(self, setting: str) -> str:
        mine = self.of(setting)
        step_s = statistics.median(turn["step_s"] for turn in mine)
        each = [s for turn in mine for s in turn["steps_s"]]
        wire = statistics.median(turn["wire_bytes"] for turn in mine)
        over = [statistics.median(self.ratio(setting, base)) for base in ("plain FSDP2", "computing alone")]
        cells = [f"{self.model}, {self.rate}, {setting}", f"{1e3 * step_s:.0f} ({1e3 * min(each):.0f} to "]
        cells[-1] += f"{1e3 * max(each):.0f})"
        cells += [f"{ratio:.2f}" for ratio in over]
        cells += [f"{wire / 1e6:.2f}"]
        plan = self.session["plans"].get(setting)
        if plan is None:
            return "| " + " | ".join([*cells, "", "", "", ""]) + " |"
        says = predicted(self.session, plan)
        own, sent = statistics.median(turn["sent_bytes"] for turn in mine), max(says.sent_bytes)
        cells += [f"{own / 1e6:.4f}", f"{sent / own:.4f}" if own else "-", f"{1e3 * says.step_s:.0f}"]
        return "| " + " | ".join([*cells, f"{says.step_s / step_s - 1:+.0%}"]) + " |"

    def verdicts(self) -> list[str]:
        """Return what was wanted, and what came."""
        found = []
        if (wanted := WANTED.get(("exact", self.rate))) and (ratios := self.ratio("exact", "plain FSDP2")):
            found.append(_verdict(f"{self.model}, {self.rate}: exact over plain FSDP2", ratios, wanted))
        over = {s.name: r for s in STEPS[3:] if (r := self.ratio(s.name, "computing alone"))}
        if self.rate == "100mbit" and over:
            best = min(over, key=lambda name: statistics.median(over[name]))
            found.append(
                _verdict(f"{self.model}, {self.rate}: {best} over computing alone", over[best], BEST_OVER_ALONE)
            )
        return found


def _verdict(what: str, ratios: Sequence[float], wanted: float) -> str:
    middle = statistics.median(ratios)
    rounds = " ".join(f"{ratio:.2f}" for ratio in ratios)
    return f"- {what}: {middle:.2f} (rounds {rounds}), wanted at most {wanted}: {'yes' if middle <= wanted else 'NO'}"


def table(lines: Lines, batch: int, command: str) -> str:
    """Return the results as Markdown."""
    cells = [Cell(lines, rate, model, batch) for model in MODELS for rate in RATES]
    cells = [cell for cell in cells if cell.turns]
    told = [f"{c.session['commit']}, load {c.session['load']}, {c.session['at']}" for c in cells]
    head = [
        "# Steps of sharded models on four emulated hosts",
        "",
        f"`{command}`",
        "",
        f"{cells[0].session['cpu']}; {cells[0].session['software']}; one thread a rank, four ranks; a GPT whose blocks "
        f"are sharded one by one, AdamW, {batch} sequences of 64 bytes a rank. Sessions: " + "; ".join(told) + ".",
        "",
        "Times are ms of the slowest rank: the median of the rounds' means (fastest to slowest step). Bytes are MB of "
        "a step out of the busiest host: by its interface, with all headers, and as the run counts them. Ratios are "
        "medians of those of the rounds. Predictions: the simulator with the probed network, the machine's file and "
        "the observed workload; their errors, wanted within 15 %.",
        "",
        "| model, rate, gradients / weights | step | over plain | over alone | interface | own count | predicted over "
        "own | predicted step | error |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    body = [row for cell in cells for row in cell.lines()]
    wanted = ["", "Wanted:", "", *(verdict for cell in cells for verdict in cell.verdicts())]
    return "\n".join([*head, *body, *wanted, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jsonl", type=Path, required=True)
    parser.add_argument("--md", type=Path)
    parser.add_argument("--rates", nargs="+", default=list(RATES))
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--settings", nargs="+", default=[setting.name for setting in STEPS])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--turn", type=float, default=3.0, help="seconds of a turn, from which its steps follow")
    parser.add_argument("--batch", type=int, default=2, help="sequences of a rank in a step; a table is of one")
    parser.add_argument("--probe", default="5s")
    parser.add_argument("--table", action="store_true", help="write the table alone")
    given = parser.parse_args()
    lines = Lines(given.jsonl, KEY)
    if not given.table:
        measure(lines, given)
    show(table(lines, given.batch, shlex.join(["python", *sys.argv])), given.md)


if __name__ == "__main__":
    main()
