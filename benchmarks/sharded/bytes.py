"""Bytes that sharded models send in a step, as their hosts' interfaces count them, as runs do, and as is predicted.

``python benchmarks/sharded/bytes.py --jsonl out.jsonl --md out.md``            what has no line yet, and the table
``python benchmarks/sharded/bytes.py --jsonl out.jsonl --md out.md --table``    the table alone

On a mesh of one dimension there are four emulated hosts with a rank each, on one of two dimensions two with two ranks
each: shards inside a host, replicas between. Links have no limit, since nothing is timed. One line a setting. Needs
root, for network namespaces.
"""

import argparse
import json
import math
import shlex
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from journal import Lines, place, run_ranks, show
from predicted import divided
from settings import BYTES, HSDP, MODELS

from pliant.cli.emulate import topology_from_flags
from pliant.network import emulate_cluster
from pliant.simulator import simulate
from pliant.spec import Match, Rule, Sharded, SyncPlan, TensorSpec, Topology, Workload, from_json

KEY = ("mesh", "model", "setting")
MESHES = {"4 hosts": (4, 1), "2 x 2": (2, 2)}
TWICE, ONCE = "bf16, gathered twice", "bf16, gathered once"
WANTED = {"int8 / int8": (2.9, 1.9), "int4 / int4 differences": (5.0, 3.4), "onebit / int4 differences": (8.0, 5.5)}
"""Setting -> how many times fewer bytes than bf16 both ways, gathered twice and once."""
OF_REPLICAS = {"onebit": 25.0, "streaming_diloco": 200.0}
"""Setting -> how many times fewer bytes between replicas than torch's all-reduce."""


def measure(lines: Lines, models: list[str]) -> None:
    """Count what has no line."""
    for mesh, (hosts, each) in MESHES.items():
        names = [setting.name for setting in (HSDP if each > 1 else BYTES)]
        for model in models:
            left = [name for name in names if not lines.has(mesh, model, name)]
            if left:
                with emulate_cluster(topology_from_flags(hosts, "none", "0ms", [], each, 0.0), check=False) as cluster:
                    take = partial(keep, lines, {"mesh": mesh, "model": model})
                    run_ranks(cluster, "bytes_rank.py", [model, str(hosts if each > 1 else 0), *left], take)


def keep(lines: Lines, named: dict[str, str], said: dict[str, Any]) -> None:
    """Write down what rank 0 says."""
    lines.add({**said, **named, **place()})
    print(f"{named['mesh']}, {named['model']}, {said['setting']}: {said['wire_bytes'] / 1e6:.3f} MB", flush=True)


def predicted_bytes(record: Mapping[str, Any]) -> float:
    """Return what the simulator says that a rank sends in a step; among replicas on a mesh of two dimensions."""
    plan = from_json(SyncPlan, json.dumps(record["plan"]))
    num_hosts, num_shards = MESHES[record["mesh"]]
    shapes = {name: tuple(shape) for name, shape in record["shapes"].items()}
    if num_shards > 1:
        plan = of_replicas(plan, shapes)
        shapes = {name: (math.ceil(shape[0] / num_shards), *shape[1:]) for name, shape in shapes.items()}
    named = reversed(shapes.items())
    tensors = tuple(
        TensorSpec(name=name, shape=shape, dtype="float32", layer="Linear", ready_s=k * 1e-3)
        for k, (name, shape) in enumerate(named)
    )
    whole = Workload(name=record["model"], tensors=tensors, forward_s=0.1, backward_s=0.2)
    workload = divided(whole, 1 if num_shards > 1 else num_hosts)  # between replicas only, or among all
    hosts: Topology = topology_from_flags(num_hosts, "1gbit", "0ms", [], 1, 0.0)
    return max(simulate(plan, workload, hosts).sent_bytes)


def of_replicas(plan: SyncPlan, shapes: Mapping[str, tuple[int, ...]]) -> SyncPlan:
    """Return what replicas do with each parameter, by its name: rules by size go by whole parameters, not by shards."""
    nodes = {name: plan.exchange_for(name, "", math.prod(shape)) for name, shape in shapes.items()}
    among = {name: node.replicas for name, node in nodes.items() if isinstance(node, Sharded)}
    rules = [Rule(match=Match(pattern=name), exchange=node) for name, node in among.items() if node is not None]
    return replace(plan, rules=(*rules, Rule()))


def rows(lines: Lines, mesh: str, model: str) -> list[str]:
    """Return the rows of a mesh and a model."""
    mine = {r["setting"]: r for r in lines.records.values() if (r["mesh"], r["model"]) == (mesh, model)}
    each, found = MESHES[mesh][1], []
    for name, record in mine.items():
        wire = record["wire_bytes"] / each
        cells = [f"{mesh}, {model}, {name}", f"{wire / 1e6:.3f}"]
        if record["plan"] is None:
            cells += ["", "", ""]
        else:
            own = record["sent_bytes"]
            cells += [f"{own / 1e6:.4f}", f"{predicted_bytes(record) / own:.6f}", f"{wire / own:.3f}"]
        bases = ("plain HSDP",) if each > 1 else (TWICE, ONCE, "torch's bf16")
        cells += [_times_fewer(mine, name, base) for base in (*bases, "", "")[:3]]
        found.append("| " + " | ".join(cells) + " |")
    return found


def _ratio(one: Mapping[str, Any], base: Mapping[str, Any]) -> float:
    """Return how many times more a baseline sends: by own counts if both have some, else by interfaces."""
    what = "wire_bytes" if None in (one["sent_bytes"], base["sent_bytes"]) else "sent_bytes"
    return base[what] / one[what]


def _times_fewer(mine: Mapping[str, Any], name: str, base: str) -> str:
    return f"{_ratio(mine[name], mine[base]):.2f}" if base in mine else ""


def verdicts(lines: Lines, model: str) -> list[str]:
    """Return what was wanted of a model, and what came."""
    found = {(r["mesh"], r["setting"]): r for r in lines.records.values() if r["model"] == model}
    told = []
    for name, wanted in WANTED.items():
        for base, least in zip((TWICE, ONCE), wanted, strict=True):
            if {("4 hosts", name), ("4 hosts", base)} <= found.keys():
                ratio = _ratio(found["4 hosts", name], found["4 hosts", base])
                told.append(_verdict(f"{model}: {name} against {base}", ratio, least))
    for name, least in OF_REPLICAS.items():
        if {("2 x 2", name), ("2 x 2", "plain HSDP")} <= found.keys():
            ratio = _ratio(found["2 x 2", name], found["2 x 2", "plain HSDP"])
            told.append(_verdict(f"{model}: {name} between replicas, against torch's all-reduce", ratio, least))
    return told


def _verdict(what: str, ratio: float, least: float) -> str:
    return f"- {what}: {ratio:.2f} times fewer, wanted at least {least:g}: {'yes' if ratio >= least else 'NO'}"


def table(lines: Lines, command: str) -> str:
    """Return the results as Markdown."""
    last = list(lines.records.values())[-1]
    head = [
        "# Bytes of sharded models in a step",
        "",
        f"`{command}`",
        "",
        f"Commit {last['commit']}; {last['software']}; load {last['load']} at the end, {last['at']}, and nothing was "
        "timed. A GPT whose blocks are sharded one by one, AdamW.",
        "",
        "MB that a rank sends in a step, the busiest one: by its host's interface, with all headers, and as the run "
        "counts them. On 2 x 2 both are those between hosts. Ratios say how many times fewer bytes than a baseline: "
        "by own counts if both have some, else by interfaces. The weights of the root module, which torch does not "
        "give up after forward, are gathered once in all rows.",
        "",
        "| mesh, model, gradients / weights | interface | own count | predicted over own | interface over own | fewer "
        "than bf16 twice, or plain HSDP | than bf16 once | than torch's bf16 |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    body = [row for mesh in MESHES for model in MODELS for row in rows(lines, mesh, model)]
    return "\n".join([*head, *body, "", "Wanted:", "", *(v for model in MODELS for v in verdicts(lines, model)), ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jsonl", type=Path, required=True)
    parser.add_argument("--md", type=Path)
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--table", action="store_true", help="write the table alone")
    given = parser.parse_args()
    lines = Lines(given.jsonl, KEY)
    if not given.table:
        measure(lines, given.models)
    show(table(lines, shlex.join(["python", *sys.argv])), given.md)


if __name__ == "__main__":
    main()
