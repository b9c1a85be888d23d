"""Random attacks on trainings: `list` draws the trials of a seed, `run` carries them out, `table` tells how it went.

    python benchmarks/chaos list --seed 1 --trials benchmarks/chaos/trials_seed1.jsonl
    python benchmarks/chaos run --trials benchmarks/chaos/trials_seed1.jsonl --results F.jsonl --limit 50
    python benchmarks/chaos large --results F.jsonl
    python benchmarks/chaos table --results F.jsonl

F.jsonl gets one line a trial, and what has one is not run again: the same command goes on where it was. Hosts are
network namespaces, so run it as root, or where users may make them. Ctrl-C leaves nothing behind.
"""

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tasc.accuracy_book import Book, say_left

from chaos.table import markdown
from chaos.trials import Trial, draw_trials, read_trials, write_trials

__all__ = ["main"]

_RANKS = 4


class _Lines(Book):
    """What has been carried out."""

    KEY = ("seed", "number")


def main(arguments: Sequence[str] | None = None) -> None:
    """Do what the command line asks for."""
    given = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        given.act(given)
    except KeyboardInterrupt:
        sys.exit("stopped, and everything is cleaned up; the same command goes on from here.")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="chaos", description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(required=True)
    drawn = commands.add_parser("list", help="draw the trials of a seed, before any is run")
    drawn.add_argument("--seed", type=int, required=True)
    drawn.add_argument("--num", type=int, default=400)
    drawn.add_argument("--trials", type=Path, required=True)
    drawn.set_defaults(act=_list)
    run = commands.add_parser("run", help="carry out what has no line yet")
    run.add_argument("--trials", type=Path, required=True)
    run.add_argument("--results", type=Path, required=True)
    run.add_argument("--limit", type=int, default=0, help="at most so many now; 0: all")
    run.add_argument("--from", type=int, default=0, dest="first", help="the first number")
    run.add_argument("--only", default="", help="numbers or attacks, with commas")
    run.add_argument("--list", action="store_true", help="say what is left, and carry out none")
    run.add_argument("--slack", type=float, default=1.0, help="what all times are multiplied by, on a busy machine")
    run.set_defaults(act=_run)
    large = commands.add_parser("large", help="train one parameter of more than 2^31 elements; alone on the machine")
    large.add_argument("--results", type=Path, required=True)
    large.add_argument("--ranks", type=int, default=2, help="9.2 GiB of memory each")
    large.add_argument("--algorithm", default="allreduce", help="a lossy one needs more memory")
    large.set_defaults(act=_large)
    told = commands.add_parser("table", help="print a table of what has lines")
    told.add_argument("--results", type=Path, required=True)
    told.set_defaults(act=_table)
    return parser


def _list(given: argparse.Namespace) -> None:
    trials = draw_trials(given.seed, given.num)
    if given.trials.exists() and read_trials(given.trials) != trials:
        sys.exit(f"{given.trials} has other trials than seed {given.seed} draws now; give another file.")
    write_trials(trials, given.trials)


def _run(given: argparse.Namespace) -> None:
    journal = _Lines(given.results)
    done = {(r["seed"], r["number"]) for r in journal.records.values()}
    wanted = {word.strip() for word in given.only.split(",") if word.strip()}
    asked = [t for t in read_trials(given.trials) if t.number >= given.first]
    asked = [t for t in asked if not wanted or t.attack in wanted or str(t.number) in wanted]
    left = [t for t in asked if (t.seed, t.number) not in done]
    if given.list:
        say_left([f"{t.number} {t.attack} {t.algorithm}" for t in left], len(asked))
        return
    left = left[: given.limit or None]
    if left:
        _carry_out_all(left, journal, given.slack)
    print(markdown(list(journal.records.values())))


def _carry_out_all(trials: Sequence[Trial], journal: Book, slack: float) -> None:
    # Here, since they need torch, and `list` and `table` do not.
    from contextlib import ExitStack

    from chaos.hosts import Hosts
    from chaos.strike import carry_out

    references: dict[str, str] = {}
    with ExitStack() as stack:
        hosts = stack.enter_context(Hosts(_RANKS)) if any(t.where == "hosts" for t in trials) else None
        for k, trial in enumerate(trials, 1):
            record = carry_out(trial, hosts, references, slack)
            journal.add({**record, "time": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())})
            told = f"{k} of {len(trials)}: {trial.number} {trial.attack} {trial.algorithm}, {trial.ranks} ranks"
            print(f"{told}: {record['outcome']} after {record['trial_s']:.0f} s  {record['why']}", flush=True)


def _large(given: argparse.Namespace) -> None:
    from chaos.large import large_trial  # here, since it needs torch

    record = large_trial(0, given.ranks, given.algorithm)
    _Lines(given.results).add({**record, "time": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())})
    print(f"large {given.algorithm}: {record['outcome']} after {record['trial_s']:.0f} s  {record['why']}")


def _table(given: argparse.Namespace) -> None:
    print(markdown(list(_Lines(given.results).records.values())))
