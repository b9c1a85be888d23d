"""What the simulator says that a plan sends is what the engine sends."""

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pliant as p
from pliant.algorithms.plans import plan_of
from pliant.codecs import BlockTopK, Qsgd, spec_of
from pliant.codecs.templates import SparsifyingCodec
from pliant.layouts.payloads import granularity, num_kept, payload_bytes
from pliant.schedules.trees import pack_trees
from pliant.simulator import simulate
from pliant.spec import (
    CodecSpec,
    Host,
    LocalSteps,
    OptimizerState,
    Rack,
    Schedule,
    SyncPlan,
    TensorSpec,
    Topology,
    Workload,
)
from schedules.test_dense import mesh
from tables import ALGORITHMS, BETWEEN_STEPS, CODECS, optimizer_for, sampled

HOSTS = [[0, 1], [2, 3]]
EXTRA = {
    "powersgd-all": p.powersgd(rank=1),
    "hierarchical": p.between_hosts(p.onebit()),
    "hierarchical-exact": p.between_hosts(p.allreduce()),
    "hierarchical-dcd": p.between_hosts(p.dcd(graph=p.Graph(kind="ring"))),
    "gossip-ring": p.gossip(p.Graph(kind="ring")),
    "gossip-complete": p.gossip(p.Graph(kind="complete")),
    "gossip-grid": p.gossip(p.Graph(kind="grid")),
    "gossip-round-robin": p.gossip(p.Graph(kind="round_robin")),
    "gossip-hypercube": p.gossip(p.Graph(kind="hypercube")),
    "late-sparse": p.delayed(p.topk(0.1)),
    "owner-uneven": p.sharded_optimizer(bandwidths=(4.0, 2.0, 1.0, 1.0)),
    "owner-whole": p.sharded_optimizer(cut="whole"),
    "owner-rows": p.sharded_optimizer(Qsgd(bits=8), cut="rows", owners=(3, 0, 1)),
    "owner-hosts": p.between_hosts(p.sharded_optimizer()),
    "stale-parts": p.bounded_staleness(0, max_bytes=9000),
    "post-local-coded": p.diloco(4, averaging=p.powersgd(2)),
}
ROWS = {**ALGORITHMS, **BETWEEN_STEPS, **EXTRA}
FREE = {
    "delayed_nesterov",
    "decoupled_diloco",
    "gossip-free",
    "choco-free",
    "halos",
    "halos-alone",
    "async_average",
    "stale-free",
    "tasc-curved",
    "topk-dynamic",
    "tasc-dynamic",
    "pulse_loco",
}
"""Who exchanges when, how much, or looks at the curvature when, depends on the clock, or on the weights."""
WARMUP = 12
"""Steps after which every warm-up of the rows is over."""


def ways(size: int) -> Schedule:
    """Return trees with relays over ranks, or hosts, whose pairs differ, with roots everywhere."""
    found = pack_trees(mesh(size, 1), owned=[1 / size] * size)
    assert found is not None
    return found


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(40, 120), nn.ReLU(), nn.Linear(120, 300), nn.ReLU(), nn.Linear(300, 7))


def workload_of(module: nn.Module) -> Workload:
    parameters = list(module.named_parameters())[::-1]
    tensors = tuple(
        TensorSpec(name=name, shape=tuple(x.shape), dtype="float32", layer="Linear", ready_s=0.01 * k)
        for k, (name, x) in enumerate(parameters)
    )
    return Workload(name="test", tensors=tensors, forward_s=0.1, backward_s=0.1, step_s=0.01)


def sent_by_engine(name: str, algorithm, period: int, hosts=HOSTS, racks="") -> list[float]:
    """Return the bytes that each rank sends in one period of the plan, after a warm-up; racks have a letter a host."""
    rack_of = {rank: rack for ranks, rack in zip(hosts, racks, strict=False) for rank in ranks}

    def be(place):
        ddp = DistributedDataParallel(model(), process_group=place.process_group)
        optimizer = optimizer_for(name, ddp.parameters(), lr=1e-4)
        counts = []
        where = {"hosts": hosts, "rack": rack_of.get(place.rank, "")}
        plan = algorithm if isinstance(algorithm, SyncPlan) else plan_of(algorithm)
        with p.relax(ddp, optimizer, plan, **where, agreement_every=0, timeout_s=30) as run:
            for step in range(WARMUP + period):
                generator = torch.Generator().manual_seed(100 * step + place.rank)
                optimizer.zero_grad()
                run.model(torch.randn(4, 40, generator=generator)).square().mean().backward()
                optimizer.step()
                if step in (WARMUP - 1, WARMUP + period - 1):
                    run.state_dict()  # what is under way ends
                    counts.append(run.stats()["sent_bytes"])
        return counts[1] - counts[0]

    return p.run_world(sum(map(len, hosts)), be)


@pytest.mark.parametrize("name", sampled(sorted(ROWS.keys() - FREE)))
def test_bytes_are_those_of_the_engine(name):
    algorithm = ROWS[name]
    topology = Topology(hosts=tuple(Host(name=f"h{k}", num_ranks=len(ranks)) for k, ranks in enumerate(HOSTS)))
    found = simulate(plan_of(algorithm), workload_of(model()), topology)
    sent = sent_by_engine(name, algorithm, found.period)
    assert max(sent) > 0
    # At a free pace, settling is one more exchange with the owners.
    is_served = name in ("bounded_staleness", "stale-coded", "stale-parts")
    exchanges = found.period + 1 if is_served else found.period
    assert [round(x * exchanges, 3) for x in found.sent_bytes] == sent


@pytest.mark.parametrize("beside", ["bytegrad", "local_sgd(2)"])
def test_bytes_of_owners_beside_others_are_those_of_the_engine(beside):
    """Of one model, part by owners and part otherwise, in one bucket."""
    plan = p.partition({"2.*": p.sharded_optimizer(bandwidths=(1.0, 1.0, 2.0, 3.0)), "*": p.parse(beside)})
    topology = Topology(hosts=tuple(Host(name=f"h{k}", num_ranks=len(ranks)) for k, ranks in enumerate(HOSTS)))
    found = simulate(plan, workload_of(model()), topology)
    sent = sent_by_engine("mixed", plan, found.period)
    assert [round(x * found.period, 3) for x in found.sent_bytes] == sent


STATES = {
    "between hosts": p.between_hosts(p.des_loc(2, second=3)),
    "late in fragments": LocalSteps(
        period=6, fragments=3, delay_steps=2, states=(OptimizerState(name="exp_avg", period=12),)
    ),
    "late": p.des_loc(6, first=1, second=2, delay_steps=2, of_states=p.bf16()),
    "coded": LocalSteps(
        period=4,
        averaging=p.onebit(),
        states=(
            OptimizerState(name="exp_avg", period=2, averaging=p.bytegrad()),
            OptimizerState(name="exp_avg_sq", period=12, averaging=p.between_hosts(p.bf16())),
        ),
    ),
}


@pytest.mark.parametrize("name", STATES)
def test_bytes_of_states_are_those_of_the_engine(name):
    topology = Topology(hosts=tuple(Host(name=f"h{k}", num_ranks=len(ranks)) for k, ranks in enumerate(HOSTS)))
    found = simulate(plan_of(STATES[name]), workload_of(model()), topology)
    sent = sent_by_engine("des_loc", STATES[name], found.period)
    assert [round(x * found.period, 3) for x in found.sent_bytes] == sent


LEVELS = {
    "helpers": (p.between_hosts(p.onebit()), [[0, 1, 2, 3, 4], [5]], ""),
    "helpers of two": (p.between_hosts(p.allreduce()), [[0, 1], [2, 3, 4, 5, 6]], ""),
    "few rounds": (p.between_hosts(p.allreduce(few_rounds=True)), [[0, 1], [2, 3, 4, 5, 6]], ""),
    "a leader": (p.between_hosts(p.powersgd(1)), [[0, 1, 2, 3], [4, 5]], ""),
    "owners": (p.between_hosts(p.sharded_optimizer(bandwidths=(3, 0.1, 1, 2, 1, 1))), [[0, 1, 2], [3], [4, 5]], ""),
    "owners in codes": (p.between_hosts(p.sharded_optimizer(Qsgd(bits=8), owners=(4, 0, 1))), [[0, 1], [2, 3, 4]], ""),
    "owners of two kinds": (
        p.partition({"2.*": p.sharded_optimizer(), "*": p.between_hosts(p.sharded_optimizer(cut="whole"))}),
        [[0, 1], [2, 3, 4]],
        "",
    ),
    "owners by schedule": (
        p.partition({"2.*": p.sharded_optimizer(schedule=ways(5)), "*": p.sharded_optimizer(cut="whole")}),
        [[0, 1], [2, 3, 4]],
        "",
    ),
    "owners in codes by schedule": (
        p.sharded_optimizer(Qsgd(bits=8), owners=(4, 0, 1), schedule=ways(5)),
        [[0, 1], [2, 3, 4]],
        "",
    ),
    "owners by schedule between hosts": (
        p.between_hosts(p.sharded_optimizer(bandwidths=(3, 0.1, 1, 2, 1, 1), schedule=ways(3))),
        [[0, 1, 2], [3], [4, 5]],
        "",
    ),
    "owners in codes by schedule between hosts": (
        p.between_hosts(p.sharded_optimizer(Qsgd(bits=4), schedule=ways(3))),
        [[0], [1, 2, 3], [4, 5]],
        "",
    ),
    "racks": (p.between_racks(p.onebit()), [[0, 1], [2], [3]], "aba"),
    "hosts and racks": (p.between_hosts(p.between_racks(p.onebit())), [[0, 1], [2, 3], [4, 5, 6], [7]], "baab"),
    "exact": (p.between_hosts(p.between_racks(p.allreduce())), [[0, 1], [2, 3], [4, 5], [6, 7, 8]], "abab"),
    "leaders": (p.between_hosts(p.between_racks(p.powersgd(1))), [[0, 1], [2, 3], [4]], "aab"),
    "weights between racks": (p.between_racks(p.diloco(3)), [[0, 1], [2], [3]], "aba"),
}
"""Name -> algorithm, ranks of each host, rack of each host."""


@pytest.mark.parametrize("name", LEVELS)
def test_bytes_over_levels_are_those_of_the_engine(name):
    algorithm, hosts, racks = LEVELS[name]
    named = tuple(Host(name=f"h{k}", num_ranks=len(ranks)) for k, ranks in enumerate(hosts))
    inside = {rack: tuple(host.name for host, its in zip(named, racks, strict=True) if its == rack) for rack in racks}
    topology = Topology(hosts=named, racks=tuple(Rack(name=rack, hosts=held) for rack, held in sorted(inside.items())))
    plan = algorithm if isinstance(algorithm, SyncPlan) else plan_of(algorithm)
    found = simulate(plan, workload_of(model()), topology)
    sent = sent_by_engine(name, algorithm, found.period, hosts, racks)
    assert [round(x * found.period, 3) for x in found.sent_bytes] == sent


def test_a_level_of_racks_needs_racks():
    hosts = (Host(name="a"), Host(name="b"))
    with pytest.raises(ValueError, match="a level of racks, but the topology has none; give it racks, as --racks"):
        simulate(plan_of(p.between_racks(p.int4())), workload_of(model()), Topology(hosts=hosts))


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_sizes_are_those_of_the_codecs(codec):
    spec = spec_of(codec)
    for numel in [0, *range(1, 300, 7), 1023, 1024, 1025, 4097, 12_345, 1 << 20]:
        assert payload_bytes(spec, numel) == codec.nbytes(numel), numel
        if isinstance(codec, (SparsifyingCodec, BlockTopK)) and numel:
            kept = codec.count(numel) * (codec.block if isinstance(codec, BlockTopK) else 1)
            assert num_kept(spec, numel) == kept
    assert granularity(spec) == codec.granularity


def test_a_codec_without_a_size_is_refused():
    with pytest.raises(ValueError, match=r"no codec .rank."):
        payload_bytes(CodecSpec(name="rank", settings={"rank": 2}), 100)
