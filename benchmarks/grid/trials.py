"""The list of trials of the grid, drawn from its settings before any is run. No torch.

``python benchmarks/grid/trials.py``    writes benchmarks/grid/trials_seed1.jsonl

`cell`: a network of four hosts. `step`: step times of an arm in a cell (`steps.py`). `rate`: a training with 16-bit DDP
at one learning rate; `curve`: a training of an arm at the rate that was best; `free`: a training in a cell of an arm at
a free pace, whose curve depends on the network (`curves.py`). `confirm`: a training of an arm in a cell, end to end
(`confirm.py`). Each job takes its trials in the order of the list.
"""

import itertools
import json
import math
import random
from pathlib import Path
from typing import Any

from pliant.cli.emulate import topology_from_flags
from pliant.spec import Link, Topology, from_json, to_json
from pliant.spec.matrices import topology_of_matrices
from pliant_bench.harness.names import LISTED_ARMS

SEED = 1
LIST = Path(__file__).with_name(f"trials_seed{SEED}.jsonl")
HOSTS = 4
SEEDS = (0, 1, 2)
STEPS = 350
"""Length of a training."""
BASE = "ddp-bf16"
FREE = ("async_average", "bounded_staleness", "gossip(free=1)", "choco(free=1)")
"""Arms of which each rank goes at its own pace."""
ARMS = tuple(
    dict.fromkeys(
        (
            *("compute", BASE, "ddp", "ddp-powersgd", "ddp-postlocal", "ddp-adam"),
            *("diloco(averaging=int4)", "diloco", "streaming_diloco", "local_sgd", "choco", "gossip", "powersgd"),
            *(*LISTED_ARMS, *FREE),
        )
    )
)
"""All of `pliant bench`, but for sparse algorithms of other systems; what did best in the grid before goes first."""
UNIFORM = (
    *(("100mbit", 50), ("10mbit", 0), ("1gbit", 0), ("1gbit", 50), ("100mbit", 0), ("10mbit", 50)),
    *(("100mbit", 250), ("1gbit", 250), ("100mbit", 10), ("1gbit", 10), ("10mbit", 10), ("10mbit", 250)),
)
"""Rate of each host's link and round trip in ms. What says most about the whole grid comes first."""
SPECIAL_AFTER = 3
"""Cells before the three special ones, all at 100 Mbit/s: a slow host, uneven pairs, and a pair that loses packets."""
SLOW_SHARE, LOSS = 0.25, 0.01
MESH_MEAN_BYTES_PER_S, MESH_FACTOR = 100e6 / 8, 100
MESH_ROUND_TRIPS_S = (1e-3, 0.1)
LEARNING_RATES = (0.0075, 0.015, 0.03, 0.06, 0.12, 0.24)
CONFIRMED_ARMS = (
    *(BASE, "ddp", "diloco(averaging=int4)", "streaming_diloco", "local_sgd"),
    *("choco", "gossip", "powersgd", "int4", "onebit"),
)
CONFIRMED_CELLS = ("100mbit 50ms", "1gbit 0ms", "100mbit uneven", "100mbit 10ms slow host")
Record = dict[str, Any]


def mesh(chance: random.Random) -> Topology:
    """Return hosts whose ordered pairs all differ: rates and round trips are log-uniform, rates have the mean above."""
    pairs = [[a != b for b in range(HOSTS)] for a in range(HOSTS)]
    rates = [[MESH_FACTOR ** chance.random() * apart for apart in row] for row in pairs]
    scale = MESH_MEAN_BYTES_PER_S * HOSTS * (HOSTS - 1) / sum(map(sum, rates))
    low, high = map(math.log, MESH_ROUND_TRIPS_S)
    trips = [[0.0] * HOSTS for _ in range(HOSTS)]
    for a, b in itertools.combinations(range(HOSTS), 2):
        trips[a][b] = trips[b][a] = math.exp(chance.uniform(low, high))
    return topology_of_matrices([[rate * scale for rate in row] for row in rates], round_trip_s=trips)


def lossy(topology: Topology) -> Topology:
    """Return the hosts with losses both ways between the first and the last."""
    first, last = topology.hosts[0], topology.hosts[-1]
    links = tuple(
        Link(source=a.name, target=b.name, bytes_per_s=0.0, latency_s=b.delay_s, loss=LOSS)
        for a, b in ((first, last), (last, first))
    )
    return Topology(hosts=topology.hosts, links=links, provenance="given")


def cells(seed: int) -> list[Record]:
    """Return all cells, the most informative first."""

    def cell(name: str, topology: Topology, slow_share: float = 0.0) -> Record:
        return {"kind": "cell", "cell": name, "slow_share": slow_share, "topology": json.loads(to_json(topology))}

    def uniform(rate: str, trip_ms: float) -> Topology:
        return topology_from_flags(HOSTS, rate, f"{trip_ms / 2:g}ms", [], 1, 0.0)

    near = uniform("100mbit", 10)
    special = [
        cell("100mbit 10ms slow host", near, SLOW_SHARE),
        cell("100mbit uneven", mesh(random.Random(seed))),
        cell("100mbit 10ms lossy", lossy(near)),
    ]
    found = [cell(f"{rate} {trip}ms", uniform(rate, trip)) for rate, trip in UNIFORM]
    return [*found[:SPECIAL_AFTER], *special, *found[SPECIAL_AFTER:]]


def draw(seed: int) -> list[Record]:
    """Return cells and trials, each job's in its order."""
    networks = cells(seed)
    names = [each["cell"] for each in networks]
    # 16-bit DDP comes once more at the end of each cell, so that one sees whether the machine has drifted.
    steps = [(name, arm, number) for name in names for arm, number in [*((arm, 0) for arm in ARMS), (BASE, 1)]]
    trained = [arm for arm in ARMS if arm not in ("compute", *FREE)]
    return [
        *networks,
        *({"kind": "step", "cell": name, "arm": arm, "number": number} for name, arm, number in steps),
        *({"kind": "rate", "arm": BASE, "lr": lr, "seed": k} for lr in LEARNING_RATES for k in SEEDS),
        *({"kind": "curve", "arm": arm, "seed": k} for k in SEEDS for arm in trained),
        *({"kind": "free", "cell": name, "arm": arm, "seed": k} for name in names for k in SEEDS for arm in FREE),
        *({"kind": "confirm", "cell": name, "arm": a, "seed": 0} for name in CONFIRMED_CELLS for a in CONFIRMED_ARMS),
    ]


def read(kind: str, path: Path = LIST) -> list[Record]:
    """Return the list's records of one kind."""
    records: list[Record] = [json.loads(line) for line in path.read_text().splitlines()]
    return [record for record in records if record["kind"] == kind]


def topology_of(cell: Record) -> Topology:
    """Return the hosts of a cell, whose limits its trials are measured with."""
    return from_json(Topology, json.dumps(cell["topology"]))


if __name__ == "__main__":
    LIST.write_text("".join(json.dumps(record) + "\n" for record in draw(SEED)))
    print(f"{LIST} is written; commit it before the first result.")
