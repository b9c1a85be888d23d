"""Bytes of sharded models: those that the simulator predicts are those that the engine sends, and memory is as said."""

import dataclasses
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from gpt import adamw, build, train
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import init_device_mesh
from worlds import run

import pliant
from pliant.algorithms.sharding import for_shards
from pliant.engine.shard_exchanges import ShardExchanges
from pliant.engine.shard_memory import kept_bytes, require_within_limits
from pliant.netmodel import BucketBatch
from pliant.simulator.traffic import traffic_of
from pliant.spec import Host, Rule, Sharded, SyncPlan, Topology

pytestmark = [pytest.mark.processes]

ROWS = {
    "allreduce": pliant.allreduce(),
    "bytegrad": pliant.bytegrad(),
    "onebit": pliant.onebit(),
    "int8 both ways": pliant.sharded(gradients="bytegrad", weights="bytegrad"),
    "int8 both ways, gathered once": pliant.sharded(gradients="bytegrad", weights="bytegrad", regather=False),
    "int4 differences": pliant.sharded(gradients="int4", weights="differences(int4)"),
    "no residual": pliant.sharded(gradients="int4", residual="none", weights="bf16"),
}
REPLICAS = {
    "onebit": pliant.onebit(),
    "topk": pliant.topk(0.1),
    "powersgd": pliant.powersgd(2),
    "few rounds": pliant.allreduce(few_rounds=True),
}


def predicted(node: Sharded, shapes: list[list[tuple[int, ...]]], topology: Topology) -> list[float]:
    """Return the bytes out of each rank in a step: a group of the root gathers its weights once in any case."""
    sent = np.zeros(topology.num_ranks)
    for k, of_group in enumerate(shapes):
        own = node
        if k == 0 and node.weights is not None and not node.weights.differences:
            own = dataclasses.replace(node, weights=dataclasses.replace(node.weights, regather=False))
        numel = float(sum(np.prod(shape) for shape in of_group))
        batch = BucketBatch(numel=np.array([numel]), itemsize=np.array([4.0]), shapes=(tuple(of_group),))
        sent += sum(r.sent(topology.num_ranks)[0] for r in traffic_of(own, batch, topology).task)
    return sent.tolist()


def counted(rows: dict, width: int, kind: str) -> dict[str, tuple[float, list[list[tuple[int, ...]]]]]:
    found = {}
    for name, what in rows.items():
        if kind == "replicate":
            model = build(replicate, width=width, mesh=init_device_mesh("cpu", (3,), mesh_dim_names=("replicate",)))
        else:
            model = build(width=width)
        groups = [model, *model.blocks]
        inner = {id(p) for block in model.blocks for p in block.parameters()}
        shapes = [
            [tuple(p.shape) for p in group.parameters() if group is not model or id(p) not in inner] for group in groups
        ]
        optimizer = adamw(model)
        with pliant.relax(model, optimizer, what, agreement_every=0, timeout_s=60) as run_:
            train(model, optimizer, 2)
            before = run_.stats()["sent_bytes"]
            train(model, optimizer, 2, first=2)
            found[name] = (run_.stats()["sent_bytes"] - before) / 2, shapes
    return found


SOME = ("allreduce", "int8 both ways, gathered once", "int4 differences")
"""Rows of the first tier."""


@pytest.mark.parametrize(
    ("size", "width", "names"),
    [(3, 34, SOME), *(pytest.param(n, width, (*ROWS,), marks=pytest.mark.extended) for n, width in ((2, 32), (3, 34)))],
)
def test_bytes_are_those_that_the_simulator_predicts(size, width, names):
    topology = Topology(hosts=tuple(Host(name=f"h{k}") for k in range(size)))
    results = run(size, counted, {name: ROWS[name] for name in names}, width, "shards")
    for name in names:
        plan = for_shards(SyncPlan(rules=(Rule(exchange=ROWS[name]),)), has_replicas=False)
        expected = predicted(plan.rules[0].exchange, results[0][name][1], topology)
        assert [found[name][0] for found in results] == expected, name


@pytest.mark.extended
def test_bytes_among_replicas_are_those_that_the_simulator_predicts():
    topology = Topology(hosts=tuple(Host(name=f"h{k}") for k in range(3)))
    results = run(3, counted, REPLICAS, 34, "replicate")
    for name, what in REPLICAS.items():
        expected = predicted(Sharded(replicas=what), results[0][name][1], topology)
        assert [found[name][0] for found in results] == expected, name


def memory() -> tuple[str, int, int, tuple[int, int]]:
    model = build(width=34)
    optimizer = adamw(model)
    what = pliant.sharded(gradients="int4", weights="differences(int4)", limit_bytes=10**8)
    with pliant.relax(model, optimizer, what) as run_:
        train(model, optimizer, 1)
        own = run_.state_dict()
        kept = next(iter(own.values()))["shards"]
        residuals = sum(
            v["residual"].nbytes for group in kept["groups"].values() for v in group.values() if "residual" in v
        )
        (shards,) = run_._executor.of(ShardExchanges)
        halves = [part._half for scatter in shards.scatters for part in scatter._parts]
        payloads = sum(slots.whole.nbytes for half in halves for slots in (*half._sends, *half._receives))
        numel = sum(p.numel() for p in model.parameters())
        kept = kept_bytes(shards._model, shards._nodes, dist.get_rank())
        return run_.explain(), residuals, numel, (payloads, kept["payloads"])


def test_memory_is_what_explain_says():
    for told, residuals, numel, (payloads, counted_payloads) in run(2, memory):
        assert residuals == 4 * numel
        assert payloads == pytest.approx(counted_payloads, rel=0.1)  # blocks of small parameters are shared
        assert f"{counted_payloads / 1e6:.3g} MB of their payloads" in told
        assert f"keeps {residuals / 1e6:.3g} MB of residuals" in told
        assert re.search(rf"residual=full {residuals / 1e6:.3g}, int8 0\.0\d+, none 0\)", told), told


def test_a_limit_is_judged_alike_on_all_ranks_by_what_the_first_one_keeps():
    group = SimpleNamespace(gathered_dtypes={torch.float32}, padded_numels=[128], valid_numels=lambda r: [128 - r // 2])
    model = SimpleNamespace(groups=[group], names_of=lambda _: ["w"], num_shards=3, shard_rank=2)
    node = pliant.sharded(gradients="bytegrad")
    first, last = (sum(kept_bytes(model, {"w": node}, rank).values()) for rank in (0, 2))
    assert first > last
    require_within_limits(model, {"w": dataclasses.replace(node, limit_bytes=first)})
    with pytest.raises(ValueError, match=f"limit_bytes is {last}; use residual"):
        require_within_limits(model, {"w": dataclasses.replace(node, limit_bytes=last)})
