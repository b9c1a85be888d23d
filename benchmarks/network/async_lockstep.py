"""Exchanges at a free pace beside a slow rank: those of the fast ranks go on as without it.

    python benchmarks/network/async_lockstep.py [--seconds 5] [--json FILE]

Four ranks, threads of this process, train a small model. Each sleeps 10 ms a step, and in a second run rank 3 sleeps
0.5 s. Told are steps a second, and exchanges a second of the fast ranks: in pairs those among the fast ranks, and of
averages all. Exit status 1 if one of them falls by more than a tenth. One line of JSON for each run.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.append(str(Path(__file__).parents[1]))

from tasc.accuracy_book import append_record

import pliant
from pliant.comm.threads import RankContext
from pliant.engine.background_average import BackgroundAverage
from pliant.engine.pair_exchange import PairExchange
from pliant.engine.run import Run

RANKS, SLOW, FAST_S, SLOW_S = 4, 3, 0.01, 0.5
KEPT = 0.9
"""Least share of the exchanges that a slow rank may leave."""
ARMS = {
    "gossip(free=True)": pliant.gossip(free=True),
    "gossip(ring, free=True)": pliant.gossip(pliant.Graph(kind="ring"), free=True),
    "choco(free=True)": pliant.choco(free=True),
    "async_average": pliant.async_average(),
}


def exchanges_of(run: Run) -> int:
    """Return the exchanges of a fast rank: those with other fast ranks, or averages."""
    parts = run._executor.parts  # pyright: ignore[reportPrivateUsage]
    among = [part.exchanges_with(peer) for part in parts if isinstance(part, PairExchange) for peer in range(SLOW)]
    averages = [part.rounds[0] for part in parts if isinstance(part, BackgroundAverage)]
    return sum(among) + sum(averages)


def measure(algorithm: Any, slow_s: float, seconds: float) -> dict[str, Any]:
    """Train for some seconds; return steps and exchanges a second of each rank."""

    def train(place: RankContext) -> tuple[float, float]:
        model = nn.Linear(64, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        generator = torch.Generator().manual_seed(place.rank)
        pause_s = slow_s if place.rank == SLOW else FAST_S
        with pliant.relax(model, optimizer, algorithm, group=place.process_group, timeout_s=60) as run:
            began_s, steps = time.monotonic(), 0
            while time.monotonic() < began_s + seconds:
                optimizer.zero_grad()
                run.model(torch.randn(8, 64, generator=generator)).square().mean().backward()
                optimizer.step()
                steps += 1
                time.sleep(pause_s)
            took_s = time.monotonic() - began_s
            return steps / took_s, exchanges_of(run) / took_s

    rows = pliant.run_world(RANKS, train)
    return {"slow_s": slow_s, "steps_per_s": [row[0] for row in rows], "exchanges_per_s": [row[1] for row in rows]}


def main() -> int:
    """Measure all arms; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="of each of the two runs of an algorithm")
    parser.add_argument("--json", type=Path, help="file to append a line to for each run")
    given = parser.parse_args()
    torch.set_num_threads(1)
    fell = False
    for name, algorithm in ARMS.items():
        runs = [{"arm": name, **measure(algorithm, slow_s, given.seconds)} for slow_s in (FAST_S, SLOW_S)]
        even, uneven = (sum(run["exchanges_per_s"][:SLOW]) for run in runs)
        for run in runs:
            shown = ", ".join(f"{rate:.1f}" for rate in run["exchanges_per_s"][:SLOW])
            steps = ", ".join(f"{rate:.1f}" for rate in run["steps_per_s"])
            print(f"{name}, rank {SLOW} sleeps {run['slow_s']:g} s: {steps} steps/s; fast ranks exchange {shown} a s")
            if given.json:
                append_record(given.json, run)
        print(f"{name}: {uneven / even:.3f} of the exchanges beside a slow rank", flush=True)
        fell |= uneven < KEPT * even
    return int(fell)


if __name__ == "__main__":
    sys.exit(main())
