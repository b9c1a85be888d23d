"""Ranks that are killed or stopped under algorithms at a free pace: nobody hangs, and who is stopped comes back.

    python benchmarks/network/async_faults.py list --trials benchmarks/network/async_kills_seed1.jsonl
    python benchmarks/network/async_faults.py run --trials benchmarks/network/async_kills_seed1.jsonl --results F.jsonl
    python benchmarks/network/async_faults.py stop --seconds 60 --results F.jsonl
    python benchmarks/network/async_faults.py table --results F.jsonl

A trial trains on four processes of loopback. `run` kills one of them at a moment that was drawn. The others must end
with an error that names it, or, in an elastic run, go on without it, until all close; within `WITHIN_S`. `stop` stops
one for so many seconds, and lets it go on, under exchanges in pairs; an average of all waits for all, up to its
timeout. F.jsonl gets one line a trial, and what has one is not run again. Where ranks have not begun in time, nobody
was killed or stopped: such a trial has a line as "not begun", and is run again.
"""

import argparse
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from network.async_drawn import ALGORITHMS, RANKS, Trial, draw
from network.async_rank import be
from tasc.accuracy_book import Book, read_records, say_left
from torch.distributed import TCPStore

from pliant.network.store_host import reserve_port

TIMEOUT_S = 10.0
"""Of an exchange."""
WITHIN_S = 60.0
"""After a kill, all must have come to their end, or to go on, within this; else a trial counts as one that hangs."""
START_S = 240.0
"""Time for all ranks to begin."""
IN_PAIRS = ("gossip(free=1)", "choco(free=1)")
"""Algorithms under which a rank that is stopped holds up nobody."""
FIND_OUT_S = 3.0
"""Time in which each rank finds out once that another one is stopped; it does not count."""
GO_ON_STEPS = 20
"""Steps that those who are left make before they close, in an elastic run."""
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["network.async_rank", "torch.optim", "torch._dynamo", "pliant.engine.elastic"])


class Lines(Book):
    """What has been run."""

    KEY = ("kind", "seed", "number", "algorithm")


class Ranks:
    """Four processes that train, and what they have written down; this process hosts the store of an elastic run."""

    def __init__(self, folder: Path, port: int, *, algorithm: str, elastic: bool, victim: int, pause_s: float) -> None:
        self._folder = folder
        told = {"folder": str(folder), "algorithm": algorithm, "elastic": elastic, "victim": victim}
        told |= {"pause_s": pause_s, "timeout_s": TIMEOUT_S}
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) if elastic else None
        port = port if self._store is None else self._store.port
        env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(RANKS)}
        env |= {"GLOO_SOCKET_IFNAME": "lo"}
        env |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"} if elastic else {}
        self.processes = [
            _FORKS.Process(target=be, args=(told, {**env, "RANK": str(rank)}, folder / f"{rank}.log"))
            for rank in range(RANKS)
        ]
        for process in self.processes:
            process.start()

    def told(self, rank: int) -> dict[str, Any]:
        """Return what a rank has written down last."""
        file = self._folder / f"{rank}.json"
        return json.loads(file.read_text()) if file.exists() else {}

    def log(self, rank: int) -> str:
        """Return the end of what a rank has printed; nothing if it has not begun."""
        file = self._folder / f"{rank}.log"
        return file.read_text(errors="replace")[-2000:] if file.exists() else ""

    def wait_for_steps(self, rank: int, steps: int, within_s: float) -> bool:
        """Wait until a rank has made so many steps."""
        until_s = time.monotonic() + within_s
        while time.monotonic() < until_s and self.processes[rank].is_alive():
            if self.told(rank).get("steps", 0) >= steps:
                return True
            time.sleep(0.02)
        return False

    def end(self) -> None:
        """Tell all to close."""
        (self._folder / "enough").touch()

    def wait(self, ranks: list[int], until_s: float) -> bool:
        """Wait until all these have ended; return whether they have."""
        for rank in ranks:
            self.processes[rank].join(max(0.0, until_s - time.monotonic()))
        return not any(self.processes[rank].is_alive() for rank in ranks)

    def signal(self, rank: int, number: int) -> None:
        """Send a rank a signal."""
        os.kill(self.processes[rank].pid or 0, number)

    def kill(self) -> None:
        """End what is left."""
        for rank, process in enumerate(self.processes):
            if process.is_alive():
                self.signal(rank, signal.SIGCONT)
                process.kill()
            process.join()


def carry_out(trial: Trial) -> dict[str, Any]:
    """Kill one rank; say what became of the others."""
    began_s = time.monotonic()
    others = [rank for rank in range(RANKS) if rank != trial.victim]
    with tempfile.TemporaryDirectory(prefix="async-") as folder, reserve_port() as held:
        ranks = Ranks(
            Path(folder),
            held.getsockname()[1],
            algorithm=trial.algorithm,
            elastic=trial.elastic,
            victim=trial.victim,
            pause_s=trial.pause_s,
        )
        try:
            started = ranks.wait_for_steps(trial.victim, trial.steps, START_S)
            time.sleep(trial.part * (trial.pause_s + 0.005))
            ranks.processes[trial.victim].kill()
            struck_s = time.monotonic()
            went_on = True
            if trial.elastic:
                wanted = {rank: ranks.told(rank).get("steps", 0) + GO_ON_STEPS for rank in others}
                for rank, steps in wanted.items():
                    went_on &= ranks.wait_for_steps(rank, steps, struck_s + WITHIN_S - time.monotonic())
                ranks.end()
            ended = ranks.wait(others, struck_s + WITHIN_S + (WITHIN_S if trial.elastic else 0.0))
            took_s = time.monotonic() - struck_s
        finally:
            ranks.kill()
        told = [ranks.told(rank) for rank in others]
        if trial.elastic:
            passed = went_on and ended and all(each.get("ended") == "closed" for each in told)
        else:
            passed = ended and all(trial.victim in each.get("lost", ()) for each in told)
        logs = [] if passed else [ranks.log(rank) for rank in others]
    return {
        "kind": "kill" if started else "not begun",
        **asdict(trial),
        "hangs": not ended,
        "passed": passed,
        "end_s": took_s,
        "told": told,
        "logs": logs,
        "trial_s": time.monotonic() - began_s,
    }


def stop(algorithm: str, seconds: float, victim: int = RANKS - 1) -> dict[str, Any]:
    """Stop one rank for some seconds; return what the others do before, meanwhile and after, a second."""
    about = {"kind": "stop", "seed": 0, "number": seconds, "algorithm": algorithm}
    others = [rank for rank in range(RANKS) if rank != victim]
    with tempfile.TemporaryDirectory(prefix="async-") as folder, reserve_port() as held:
        port = held.getsockname()[1]
        ranks = Ranks(Path(folder), port, algorithm=algorithm, elastic=False, victim=victim, pause_s=0.02)
        try:
            if not all(ranks.wait_for_steps(rank, 100, START_S) for rank in range(RANKS)):
                return {**about, "kind": "not begun", "logs": [ranks.log(rank) for rank in range(RANKS)]}
            span_s = min(10.0, seconds)
            before = _rates(ranks, others, span_s)
            ranks.signal(victim, signal.SIGSTOP)
            _rates(ranks, others, FIND_OUT_S)
            meanwhile = _rates(ranks, others, seconds - FIND_OUT_S)
            steps = ranks.told(victim).get("steps", 0)
            ranks.signal(victim, signal.SIGCONT)
            back = ranks.wait_for_steps(victim, steps + 50, WITHIN_S)
            after = _rates(ranks, others, span_s)
            ranks.end()
            ended = ranks.wait(list(range(RANKS)), time.monotonic() + WITHIN_S)
        finally:
            ranks.kill()
        told, logs = [ranks.told(rank) for rank in range(RANKS)], [ranks.log(rank) for rank in range(RANKS)]
    kept = [b / a if a else 0.0 for a, b in zip(before["exchanges"], meanwhile["exchanges"], strict=True)]
    passed = back and ended and all(each.get("ended") == "closed" for each in told) and min(kept) >= 0.9
    return {
        **about,
        "before_per_s": before,
        "meanwhile_per_s": meanwhile,
        "after_per_s": after,
        "kept": kept,
        "back": back,
        "hangs": not ended,
        "passed": passed,
        "told": told,
        "logs": [] if passed else logs,
    }


def _rates(ranks: Ranks, of: list[int], seconds: float) -> dict[str, list[float]]:
    """Return steps and exchanges of ranks, a second; 0 for one that has ended with an error."""
    first = [ranks.told(rank) for rank in of]
    time.sleep(seconds)
    pairs = list(zip(first, [ranks.told(rank) for rank in of], strict=True))
    return {
        what: [
            (b[what] - a[what]) / max(b["at_s"] - a["at_s"], 1e-9) if what in a and what in b else 0.0 for a, b in pairs
        ]
        for what in ("steps", "exchanges")
    }


def table(records: list[dict[str, Any]]) -> str:
    """Return what came of kills, by algorithm, and of stops."""
    rows = ["| algorithm | kills | as they should end | hang | longest end, s |", "|---|---|---|---|---|"]
    kills = [record for record in records if record["kind"] == "kill"]
    for name in ALGORITHMS:
        mine = [record for record in kills if record["algorithm"] == name]
        longest_s = max((record["end_s"] for record in mine), default=0.0)
        passed, hangs = (sum(record[what] for record in mine) for what in ("passed", "hangs"))
        rows.append(f"| {name} | {len(mine)} | {passed} | {hangs} | {longest_s:.1f} |")
    passed, hangs = (sum(record[what] for record in kills) for what in ("passed", "hangs"))
    rows.append(f"| all | {len(kills)} | {passed} | {hangs} | |")
    for r in (record for record in records if record["kind"] == "stop"):
        kept = ", ".join(f"{share:.2f}" for share in r["kept"])
        back = "came back" if r["back"] else "did not come back"
        rows.append(f"\n{r['algorithm']}, stopped {r['number']:g} s: others kept {kept} of their exchanges; it {back}")
        if not r["passed"]:
            rows.append(f"\nnot as it should be: {r['told']}")
    for r in kills:
        if not r["passed"]:
            rows.append(f"\n{r['number']} {r['algorithm']}, elastic {r['elastic']}: {r['told']}")
    return "\n".join(rows)


def main() -> None:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("act", choices=["list", "run", "stop", "table"])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--num", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--trials", type=Path)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--list", action="store_true", help="with run: say what is left, and carry out none")
    given = parser.parse_args()
    if given.act == "stop" and given.seconds <= FIND_OUT_S:
        parser.error(f"--seconds {given.seconds:g} is too short: others find out within {FIND_OUT_S:g} s.")
    if given.act == "list":
        given.trials.write_text("".join(json.dumps(asdict(each)) + "\n" for each in draw(given.seed, given.num)))
        return
    journal = Lines(given.results)
    asked = [Trial(**each) for each in read_records(given.trials)] if given.act == "run" else []
    left = [trial for trial in asked if journal.find(kind="kill", **asdict(trial)) is None]
    if given.list:
        say_left([f"{trial.number} {trial.algorithm}" for trial in left], len(asked))
        return
    for trial in left:
        record = journal.add(carry_out(trial))
        said = "passed" if record["passed"] else record["told"]
        print(f"{trial.number} {trial.algorithm}: {said if record['kind'] == 'kill' else 'not begun'}", flush=True)
    for name in IN_PAIRS if given.act == "stop" else []:
        if journal.find(kind="stop", seed=0, number=given.seconds, algorithm=name) is None:
            record = journal.add(stop(name, given.seconds))
            print(f"{name}: {record['kind']}", flush=True)
    print(table(list(journal.records.values())))


if __name__ == "__main__":
    main()
