"""Cells that nobody measured: whole models on networks at random, and plans for them, simulated."""

import random
from collections.abc import Iterator, Sequence
from itertools import islice

from pliant.planner import WORKLOADS, Quality, Space
from pliant.planner.quality import MEASURED_STEPS_RATIO
from pliant.simulator import Overheads, simulate
from pliant.spec import Host, Topology
from pliant_bench.dataset import ModelRow, NetworkRow, PlanRow, SimulatedRun

__all__ = ["simulated_runs"]

_HOSTS, _RANKS = (2, 4, 8, 16, 32), (1, 2, 4, 8)
_MOST_RANKS = 128
_MBIT = (50, 100, 200, 500, 1000, 2500, 10_000)
_DELAYS_S = (0.0, 0.0001, 0.001, 0.005, 0.02)
_UNEVEN_SHARE, _SLOW_SHARE = 0.25, 0.2
_PLANS_A_CELL = 60
_BUDGET = 3.5
_TRIES = 20


def simulated_runs(
    number: int, families: Sequence[str], overheads: Overheads, simulator: str, seed: int
) -> list[SimulatedRun]:
    """Return so many different runs, the same for the same arguments.

    A cell is one of `WORKLOADS`, whole, on 2 to 32 hosts of 1 to 8 ranks at 50 Mbit/s to 10 Gbit/s, with delays up to
    20 ms; in a quarter of cells one host has a quarter of the rate, in a fifth the last one computes half as fast. Its
    plans are the builders that are possible there, and samples of the space, all of these families alone.
    """
    rng = random.Random(seed)  # noqa: S311  not for secrets
    return list(islice(_endless(rng, frozenset(families), overheads, simulator), number))


def _endless(
    rng: random.Random, families: frozenset[str], overheads: Overheads, simulator: str
) -> Iterator[SimulatedRun]:
    seen: set[tuple[str, str]] = set()
    while True:
        family = rng.choice(sorted(WORKLOADS))
        model, network = ModelRow(family=family, workload=WORKLOADS[family]()), _network(rng)
        if (model.id, network.id) in seen:
            continue
        seen.add((model.id, network.id))
        space = Space(model.workload, network.topology, Quality(budget=_BUDGET, ratios=MEASURED_STEPS_RATIO))
        plans = space.distinct(rng, _TRIES, lambda g: families >= {gene.family for gene in g.genes})
        for name, genes in islice(plans, _PLANS_A_CELL):
            planned = PlanRow(genes=genes, generator=name)
            found = simulate(
                planned.plan,
                model.workload,
                network.topology,
                overheads=overheads,
                slowdown=network.slowdown,
            )
            yield SimulatedRun(
                model=model,
                network=network,
                planned=planned,
                step_s=found.step_s,
                compute_s=found.compute_s,
                exposed_s=found.exposed_s,
                codec_s=found.codec_s,
                sent_bytes=max(found.sent_bytes),
                simulator=simulator,
            )


def _network(rng: random.Random) -> NetworkRow:
    num_hosts = rng.choice(_HOSTS)
    num_ranks = rng.choice([ranks for ranks in _RANKS if ranks * num_hosts <= _MOST_RANKS])
    rate, delay_s = rng.choice(_MBIT) * 1.25e5, rng.choice(_DELAYS_S)
    uneven = rng.randrange(num_hosts) if rng.random() < _UNEVEN_SHARE else -1
    rates = [rate / 4 if k == uneven else rate for k in range(num_hosts)]
    hosts = [
        Host(name=f"host{k}", num_ranks=num_ranks, send_bytes_per_s=r, receive_bytes_per_s=r, delay_s=delay_s)
        for k, r in enumerate(rates)
    ]
    slow = 0.5 if rng.random() < _SLOW_SHARE else 0.0
    return NetworkRow(topology=Topology(hosts=tuple(hosts), provenance="drawn at random"), slow_share=slow)
