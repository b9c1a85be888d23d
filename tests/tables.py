"""The rows of the law tests: every codec and every algorithm as its table has it, and other settings of some."""

from collections.abc import Generator
from contextlib import contextmanager

import pytest
import torch
from hypothesis import strategies as st

import pliant as p
import pliant.codecs as c
from pliant.algorithms import ALGORITHMS as REGISTRY
from pliant.spec import (
    CODECS as FACTS,
    AllReduce,
    CodecSpec,
    CompressedMomentum,
    LocalSteps,
    OptimizerState,
    Outer,
    RegionServers,
    ScatterGather,
    averaged_states,
)

CODECS = [
    *(c.codec_class(name)() for name in FACTS),
    c.MinMax8(block=33),
    c.Qsgd(bits=4, block=64),
    c.Qsgd(bits=2),
    c.Sign(block=32),
    c.Sigma2(block=96),
    c.TopK(ratio=0.1),
    c.TopK(ratio=0.25, sampled=1),
    c.BlockTopK(ratio=0.2, block=16),
    c.ChunkTopK(ratio=0.1, block=33),
    c.ChunkTopK(ratio=0.03, block=512, bits=8),
    c.ChunkTopK(ratio=0.2, block=5000, bits=16),
    c.RandomK(ratio=0.1),
    c.Dct(ratio=0.1),
    c.Dct(ratio=0.3, block=33),
]

SIZES = st.sampled_from([0, 1, 2, 7, 31, 32, 33, 64, 1000, 1024, 1025, 2048, 2049, 5000])
KINDS = st.sampled_from(["normal", "huge", "denormal", "constant", "zero", "offset", "sparse", "tiny range", "least"])


LARGEST = torch.finfo(torch.bfloat16).max  # the next float32 that a bfloat16 cannot hold is not far


@contextmanager
def default_dtype(dtype: torch.dtype) -> Generator[None]:
    """What torch makes tensors of that nobody gives a dtype, in all threads."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def vector(kind: str, numel: int, seed: int) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(numel, generator=g)
    return {
        "normal": x,
        "huge": (x * 2e38).clamp(-LARGEST, LARGEST),
        "denormal": x * 1e-42,
        "constant": torch.full((numel,), 0.5),
        "zero": torch.zeros(numel),
        "offset": 1000 + 5e-4 * x,
        "sparse": x * (torch.rand(numel, generator=g) < 0.05),
        "tiny range": x * 1e-8,
        "least": torch.ldexp(x, torch.randint(-130, -120, (numel,), generator=g)),  # normal or just not
    }[kind]


GIVEN = {
    "allreduce-few": p.allreduce(few_rounds=True),
    "qsgd4": p.qsgd(bits=4),
    "worker-only": ScatterGather(codec=CodecSpec(name="sign"), feedback="worker"),
    "powersgd2": p.powersgd(rank=2),
    "topk": p.topk(ratio=0.1),
    "topk-dgc": p.topk(ratio=0.1, momentum=0.9, ramp_steps=4),
    "blocktopk": p.blocktopk(ratio=0.2, block=8),
    "topk-dynamic": p.with_target(p.topk(ratio=0.1), bytes_per_step=2000),
    "tasc-dynamic": p.with_target(p.tasc(ratio=0.1, block=16), bytes_per_step=2500),
    "randomk": p.randomk(ratio=0.2),
    "chunktopk": p.chunktopk(ratio=0.2, block=64),
    "sigma2-fading": p.sigma2(decay=0.9),
    "topk-fading": p.topk(0.1, decay=0.9, momentum=0.5),
    "decoupled_momentum": p.decoupled_momentum(ratio=0.1, momentum=0.9),
    "demo-mean": p.decoupled_momentum(ratio=0.1, block=48, momentum=0.9, signed=False),
    "ef21_muon": p.ef21_muon(momentum=0.5),
    "ef21-topk": p.ef21_muon(p.topk(0.2), momentum=0.5, nesterov=True),
    "ef21-rank": p.ef21_muon(p.powersgd(rank=2), momentum=0.5),
    "dion": p.dion(rank=2, momentum=0.5),
    "tasc": p.tasc(0.06, block=16, power=0),
    "tasc-dgc": p.tasc(0.06, block=16, power=0, momentum=0.9, ramp_steps=4, rescore=1),
    "tasc-rows": p.tasc(0.4, block=0, power=0, value_bits=16, relief=2),
    "tasc-fresh": p.tasc(0.1, block=64, power=0, agreement="global", rescore=1),
    "tasc-float": p.tasc(0.3, block=16, power=0, agreement="global", value_bits=32),
    "tasc-leader": p.tasc(0.06, block=16, power=0, agreement="leader"),
    "tasc-local": p.tasc(0.06, block=8, power=0, agreement="local"),
    "tasc-difference": p.tasc(0.06, block=16, power=0, feedback="difference", momentum=0.5),
    "tasc-curved": p.tasc(0.06, block=16),
    "every": p.every(2, p.bytegrad()),
    "every-exact": p.every(3, p.allreduce()),
    "after": p.after(2, p.allreduce(), then=p.onebit()),
    "owner-qsgd": p.sharded_optimizer(c.Qsgd(bits=8)),
    "late-onebit": p.delayed(p.onebit(), compensation=0.1),
    "late-ahead": p.delayed(p.allreduce(), lookahead=0.9),
    "onebit_adam": CompressedMomentum(beta=0.9, warmup_steps=3),
    "gossip-matching": p.gossip(p.Graph(kind="matching"), period=2),
    "gossip-free": p.gossip(free=True),
    "choco": p.choco(c.Qsgd(bits=4), gamma=0.3),
    "choco-free": p.choco(graph=p.Graph(kind="ring"), free=True),
    "local_sgd": p.local_sgd(3),
    "local_sgd-delayed": p.local_sgd(1, delay_steps=1),
    "post_local_sgd": p.post_local_sgd(3, 2),
    "diloco": p.diloco(3, averaging=p.int4()),
    "streaming_diloco": p.streaming_diloco(6, fragments=3, delay_steps=2),
    "pier": p.pier(40, 4, warmup_steps=6, outer_momentum=0.6),
    "delayed_nesterov": p.delayed_nesterov(1, every=2, outer_momentum=0.5),
    "no_loco": p.no_loco(3),
    "no_loco-fragments": p.no_loco(4, fragments=2, pull=0.5),
    "decoupled_diloco": p.decoupled_diloco(1, outer_momentum=0.5),
    "halos": p.halos(2, region_ranks=2, region_every=4, arrivals=2),
    "halos-alone": RegionServers(
        period=1, region_ranks=1, region=Outer(), arrivals=1, world=Outer(lr=0.5), pull=1.0, scaled=False
    ),
    "outer-every": LocalSteps(period=2, outer=Outer(lr=0.7, momentum=0.6, every=3)),
    "outer-points": LocalSteps(period=3, outer=Outer(lr_points=((0.5, 0.3), (1.0, 0.1)), total_steps=20)),
    "sparse_loco": p.sparse_loco(3, averaging=p.chunktopk(0.1, block=16, decay=0.95)),
    "sparse_loco-whole": p.sparse_loco(3, averaging=p.topk(0.2)),
    "pulse_loco": p.pulse_loco(3),
    "des_loc": p.des_loc(2, first=2, second=3),
    "des_loc-late": LocalSteps(
        period=4,
        fragments=2,
        delay_steps=1,
        states=(
            OptimizerState(name="exp_avg", period=8),
            OptimizerState(name="exp_avg_sq", period=2, averaging=AllReduce(codec=CodecSpec(name="bf16"))),
        ),
    ),
    "des_loc-delayed": p.des_loc(4, first=1, second=2, delay_steps=3, of_states=p.bf16()),
    "des_loc-warm": p.after(3, p.allreduce(), then=p.des_loc(2, second=3)),
    "mt_dao": p.mt_dao(3),
    "local_momentum": p.local_momentum(4, delay_steps=3, averaging=p.int4(), of_momentum=p.bytegrad()),
    "bounded_staleness": p.bounded_staleness(0),
    "stale-free": p.bounded_staleness(2),
    "stale-coded": p.bounded_staleness(0, codec=c.Sign()),
    "between-hosts": p.between_hosts(p.diloco(3)),
}
"""Settings under which a row of the registry shows on a small model, or others than its own."""
ELSEWHERE = {"between_hosts", "between_racks", "with_target", "sharded", "muloco"}
"""Rows that need more than a DDP model: hosts, racks (engine/test_rack_levels.py), shards (tests/sharded), or Muon
(engine/test_outer.py)."""
ROWS = {n: p.parse(row.example or n) for n, row in REGISTRY.items() if n not in ELSEWHERE} | GIVEN
ALGORITHMS = {name: node for name, node in ROWS.items() if not node.weights_may_diverge}
"""Algorithms that leave all ranks equal after each step; `optimizer_for` gives the optimizer that each needs."""
BETWEEN_STEPS = {name: node for name, node in ROWS.items() if node.weights_may_diverge}
"""Algorithms that exchange weights, and let ranks differ between exchanges."""

NETWORK_DECIDES = {
    *("gossip-free", "choco-free", "async_average", "delayed_nesterov", "decoupled_diloco"),
    *("halos", "halos-alone", "stale-free"),
}
"""Those whose ranks wait for nobody, so that no two runs are alike."""


VARIANTS = {
    *("fp16", "qsgd", "qsgd4", "terngrad", "natural", "int4", "worker-only", "powersgd2", "blocktopk", "demo-mean"),
    *("sigma2", "topk-fading", "sparse_loco-whole", "ef21-topk", "ef21-rank"),
    *("tasc", "tasc-dgc", "tasc-rows", "tasc-fresh", "tasc-float", "tasc-leader", "tasc-difference"),
    *("every-exact", "owner-qsgd", "late-onebit", "late-ahead", "topk-dynamic"),
    *("gossip-matching", "dcd", "local_sgd-delayed", "no_loco-fragments", "stale-free", "outer-points", "des_loc-warm"),
    "halos-alone",
}
"""Other settings of what another row holds already."""


def sampled(names):
    """Return rows of a costly law: variants are left to the second tier."""
    return [pytest.param(name, marks=pytest.mark.extended) if name in VARIANTS else name for name in names]


def optimizer_for(name: str, parameters, lr: float = 0.05) -> torch.optim.Optimizer:
    if name == "onebit_adam":
        return p.OneBitAdam(parameters, lr=1e-2, warmup_steps=3)
    states = averaged_states(ROWS[name]) if name in ROWS else ()
    if {state.name for state in states} == {"momentum_buffer"}:
        return torch.optim.SGD(parameters, lr=lr, momentum=0.9)
    if states:
        return p.SlowAdamW(parameters, lr=1e-2, eps=1e-3)  # a mean or a code of exp_avg alone may be large beside 1e-8
    return torch.optim.SGD(
        parameters, lr=3e-3 if name == "decoupled_momentum" else lr
    )  # a signed step is as long as the rate


def needs_its_optimizer(name: str) -> bool:
    """Say whether a row needs what `optimizer_for` gives it, which takes no sparse gradients."""
    return name == "onebit_adam" or (name in ROWS and bool(averaged_states(ROWS[name])))


def takes_sparse(name: str) -> bool:
    """Say whether a row trains tables whose gradients are sparse, beside others."""
    return not needs_its_optimizer(name) and (name not in ROWS or ROWS[name].kind != "momentum")
