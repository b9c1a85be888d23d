"""Trainings of language models with local steps: optimizers x exchanges x rates x batches x lengths x sizes.

``nice -n 19 python benchmarks/local_steps/measure.py --out results.jsonl --seconds 5000``
``python benchmarks/local_steps/measure.py --out results.jsonl --list``          carries out nothing
``python benchmarks/local_steps/measure.py --out results.jsonl --device cuda --only '*/125M/*'``   on an accelerator
``python benchmarks/local_steps/measure.py --out results.jsonl --trials trials_muon_seed1.jsonl``   another list

The list of trials, with seeds, is `trials_seed1.jsonl` (see `trials.py`). A trial needs one or more trainings, and each
finished training is one line of the file: the same command goes on where it stopped. Nothing is timed, so the machine
may do other things. Workers are processes with real Gloo groups between them, each with a run of Pliant's own
(`pliant_bench.lab`); an accelerator, which carries out the trials of all sizes, they share. Commands side by side need
each its own --out and its own arms; `merge_lines.py` makes one file of them, and `benchmarks/gpu/lab.py` does it all on
an accelerator.

A trial whose algorithm or optimizer this version of Pliant does not have, or refuses, is one line on the screen and
none in the file, so that it is tried again. The text is the source of Python's standard library, or `--text FOLDER`;
`python -m pliant_bench.lab.language FOLDER` writes that source for a machine that has another Python.
"""

import argparse
import fnmatch
import time
from collections.abc import Sequence
from pathlib import Path

from rates import KEY, NotTrainedError, Rates, Trainings, from_file, loss_of
from trials import LIST, Record, key_of, read

import pliant
from pliant_bench.lab.language import text_name
from pliant_bench.lab.optimizers import require_optimizer
from pliant_bench.lab.processes import RankProcesses
from pliant_bench.lab.training import Outcome, Recipe

POINTS = 10
"""Points of a curve."""


class TimeIsOverError(Exception):
    """No training may begin any more."""


class Bench:
    """Finds trainings in a file, or makes them and writes a line about each.

    Args:
        trainings: The file.
        device: "cpu", or an accelerator.
        text: Folder of text files; Python's library if empty.
        end_s: Reading of the monotonic clock after which no training begins.

    """

    def __init__(self, trainings: Trainings, device: str, text: str, end_s: float) -> None:
        self._trainings, self._device, self._text, self._end_s = trainings, device, text, end_s
        self._processes = RankProcesses(device)
        self.made = 0

    def trained(self, about: Record) -> Record:
        """Return the line of a training."""
        found = self._trainings.find(**about)
        if found is not None:
            return found
        if time.monotonic() >= self._end_s:
            raise TimeIsOverError
        outcome = self._train(about)
        self.made += 1
        curve = [(point["step"], round(point["loss"], 6)) for point in outcome.curve]
        facts = {"curve": curve, "diverged": outcome.diverged, "exchanges": outcome.exchanges}
        facts |= {"sent_bytes": round(outcome.sent_bytes), "wall_s": round(outcome.wall_s, 1)}
        line = self._trainings.add({**about, **facts, "device": self._device, "text": text_name(self._text)})
        print(f"    {'/'.join(str(about[name]) for name in KEY)}: {loss_of(line):.4f}", flush=True)
        return line

    def _train(self, about: Record) -> Outcome:
        pliant.parse(about["algorithm"])
        require_optimizer(about["optimizer"])
        task = {name: about[name] for name in ("size", "windows", "ranks", "steps")} | {"folder": self._text}
        recipe = Recipe(
            optimizer=about["optimizer"],
            lr=about["lr"],
            decay=about["decay"],
            seed=about["seed"],
            ranks=about["ranks"],
            every=max(about["steps"] // POINTS, 1),
        )
        return self._processes.train(task, about["algorithm"], recipe)

    def close(self) -> None:
        """End the processes."""
        self._processes.close()


def require_text(trainings: Trainings, text: str) -> None:
    """Raise ValueError if a file has trainings on another text."""
    others = {line["text"] for line in trainings.records.values()} - {text_name(text)}
    if others:
        raise ValueError(f"the file has trainings on {', '.join(others)}, not on {text_name(text)}; use another --out.")


def carry_out(trials: Sequence[Record], bench: Bench) -> None:
    """Carry out trials, one after another, until the time is over."""
    rates = Rates(bench.trained)
    for number, trial in enumerate(trials):
        try:
            rate, line = rates.carry_out(trial)
        except TimeIsOverError:
            print(f"the time is over; {len(trials) - number} trials are left: the same command goes on.", flush=True)
            break
        except (ValueError, RuntimeError) as error:
            print(f"[{number + 1} of {len(trials)}] {key_of(trial)}: refused: {_one_line(error)}", flush=True)
            continue
        told = f"rate {rate:g}, loss {loss_of(line):.4f}"
        print(f"[{number + 1} of {len(trials)}] {key_of(trial)}: {told}", flush=True)
    print(f"{bench.made} trainings were made.", flush=True)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def is_done(trial: Record, rates: Rates) -> bool:
    """Say whether a file has all trainings that a trial needs, and a rate was found."""
    try:
        rates.carry_out(trial)
    except (NotTrainedError, ValueError):
        return False
    return True


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON-lines file, appended to")
    parser.add_argument("--seconds", type=float, default=0.0, help="no training begins after so many seconds; 0: none")
    parser.add_argument("--only", action="append", help="pattern over kind/optimizer/arm/size/...; repeatable")
    parser.add_argument("--device", default="cpu", help="cpu, or an accelerator such as cuda")
    parser.add_argument("--trials", type=Path, default=LIST, help="list of trials that trials.py has written")
    parser.add_argument("--text", default="", help="folder of text files")
    parser.add_argument("--list", action="store_true", help="say which trials are done, and carry out none")
    given = parser.parse_args(argv)
    trainings, patterns = Trainings(given.out), given.only or ["*"]
    trials = read(given.trials)
    asked = [trial for trial in trials if any(fnmatch.fnmatchcase(key_of(trial), each) for each in patterns)]
    asked = [trial for trial in asked if given.device != "cpu" or trial["device"] == "cpu"]
    if not asked:
        parser.error(
            f"no trial for {given.device} is called {', '.join(patterns)}; they are called as in {key_of(trials[0])}."
        )
    try:
        require_text(trainings, given.text)
    except ValueError as error:
        parser.error(str(error))
    done = Rates(from_file(trainings))
    open_ones = [trial for trial in asked if not is_done(trial, done)]
    if given.list:
        left = {key_of(trial) for trial in open_ones}
        print("\n".join(f"{'open' if key_of(trial) in left else 'done'} {key_of(trial)}" for trial in asked))
        hours = sum(trial["expected_s"] for trial in open_ones) / 3600
        print(f"{len(open_ones)} of {len(asked)} trials are open, {hours:.1f} h of a core.")
        return
    end_s = time.monotonic() + (given.seconds or float("inf"))
    bench = Bench(trainings, given.device, given.text, end_s)
    carry_out(open_ones, bench)
    bench.close()


if __name__ == "__main__":
    main()
