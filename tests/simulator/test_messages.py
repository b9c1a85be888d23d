"""Messages of a rank in a step: those that are predicted, and with more ranks no more than there must be."""

import itertools

import pytest
import torch
from cases import cluster
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pliant as p
from pliant.algorithms.plans import plan_of
from pliant.layouts.rounds import rounds_among
from pliant.netmodel import Overheads
from pliant.simulator import simulate, simulate_many
from pliant.spec import TensorSpec, Workload
from tables import ELSEWHERE, REGISTRY, optimizer_for

SHAPE, TENSORS = (32, 32), 128
"""One bucket of DDP's, with something for each of 64 owners."""


def ring(n):
    return 2 * (n - 1)


def few(n):
    """Messages of the few rounds of a gather: all others at once among 4 and 16, two rounds of 7 others among 64."""
    return sum(map(len, rounds_among(n)))


def owners(n):
    """Messages to all owners, of which each gets other bytes, and a gather of what they make of them."""
    return n - 1 + few(n)


def tree(n):
    return (n - 1).bit_length()


SCATTER_GATHER = ("bytegrad", "qsgd", "terngrad", "natural", "int4", "sigma2", "onebit", "onebit_adam", "after")
SCATTER_GATHER += ("ef21_muon",)
GROWTH = {
    **dict.fromkeys(("allreduce", "bf16", "fp16", "randomk", "delayed"), ring),
    **dict.fromkeys(SCATTER_GATHER, owners),
    **dict.fromkeys(("topk", "blocktopk", "chunktopk", "decoupled_momentum"), few),
    "every": lambda n: owners(n) / 2,
    # Among more ranks, both averages of factors are in halves.
    **dict.fromkeys(("powersgd", "dion"), lambda n: 2 * few(n) if n == 4 else 4 * few(n)),
    "tasc": lambda n: 3 * few(n),  # of the leader, whose mask goes to all
    "sharded_optimizer": lambda n: 2 * (n - 1) + few(n),
    **dict.fromkeys(("acco", "bounded_staleness"), ring),
    "gossip": lambda n: 1,
    **dict.fromkeys(("choco", "dcd"), tree),
    **dict.fromkeys(("local_sgd", "post_local_sgd"), lambda n: ring(n) / 8),
    **dict.fromkeys(("diloco", "pier"), lambda n: ring(n) / 32),
    "des_loc": lambda n: (1 + 1 / 3 + 1 / 6) * ring(n) / 32,
    "mt_dao": lambda n: 3 * ring(n) / 32,
    "local_momentum": lambda n: 2 * ring(n) / 10,
    "no_loco": lambda n: 1 / 50,
    "streaming_diloco": lambda n: owners(n) / 8,
    "sparse_loco": lambda n: few(n) / 30,
    "pulse_loco": lambda n: 2 * few(n) / 8,  # numbers of elements, and the elements
    **dict.fromkeys(("async_average", "delayed_nesterov", "decoupled_diloco", "halos"), lambda n: 0),
    # In the step; a thread beside it takes part in averages, or asks a server.
}
"""Row of the registry -> messages of n ranks, of each in a step, where buckets are small."""


def workload(num_tensors=TENSORS, shape=SHAPE):
    tensors = [TensorSpec(name=str(k), shape=shape, dtype="float32", layer="", ready_s=0) for k in range(num_tensors)]
    return Workload(name="small", tensors=tuple(tensors), forward_s=1e-9, backward_s=1e-9, step_s=1e-9)


def sent_in_step(found):
    """Return the messages out of a rank; all of them are on the critical path, and half of those there are sent."""
    return found.counted.get("messages", 0) / 2


def test_messages_grow_no_faster_than_they_must():
    assert REGISTRY.keys() - ELSEWHERE == GROWTH.keys()
    for name, messages in GROWTH.items():
        plan = plan_of(p.parse(SHORT.get(name, REGISTRY[name].example or name)))
        counts = {n: sent_in_step(simulate(plan, workload(), cluster(n))) for n in (4, 16, 64)}
        assert counts == pytest.approx({n: messages(n) for n in counts}), name
    assert [few(n) for n in (4, 16, 64, 256, 1024, 4096)] == [3, 15, 14, 30, 28, 28]


SHORT = {"pulse_loco": "pulse_loco(assumed_density=0.01)", "dion": "dion(rank=4)"}
"""Row -> settings with which its payloads are short, if its own are not."""
COUNTED = ("powersgd", "bf16", "int4", "topk", "sharded_optimizer", "choco")


def model():
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(12, 12, bias=False) for _ in range(28)))


@pytest.mark.parametrize(
    ("size", "names"),
    [
        (28, ("tasc(power=0)", "allreduce(few_rounds=true)")),
        pytest.param(16, COUNTED, marks=pytest.mark.extended),
    ],
)
def test_messages_are_those_of_the_engine(size, names):
    plans = {name: plan_of(p.parse(name)) for name in names}

    def be(place):
        sent = {}
        for name, plan in plans.items():
            ddp, counts = DistributedDataParallel(model(), process_group=place.process_group), []
            optimizer = optimizer_for(name, ddp.parameters(), lr=1e-4)
            with p.relax(ddp, optimizer, plan, agreement_every=0, timeout_s=30) as run:
                for _ in range(2):
                    optimizer.zero_grad()
                    run.model(torch.ones(2, 12)).square().mean().backward()
                    optimizer.step()
                    run.state_dict()  # what is under way ends
                    counts.append(run.stats()["sent_messages"])
            sent[name] = counts[1] - counts[0]
        return sent

    predicted = {
        name: sent_in_step(simulate(plan, workload(28, (12, 12)), cluster(size))) for name, plan in plans.items()
    }
    sent = p.run_world(size, be, timeout_s=60)
    assert {name: max(each[name] for each in sent) for name in names} == pytest.approx(predicted)


@pytest.mark.parametrize("share", [1.0, 0.25])
def test_pieces_behind_another_cost_their_handling(share):
    """Parts of 4 MiB go to three owners and back, in four pieces each: the first of a peer is waited for."""
    costs = Overheads(message_s=1e-3, message_cpu_s=share * 1e-3)
    plan = plan_of(p.parse("int4"))
    found = simulate(plan, workload(1, (4, 1 << 20)), cluster(4, 1.25e9), overheads=costs)
    assert sent_in_step(found) == pytest.approx(2 * 3 * (1 + 3 * share))


@pytest.mark.parametrize("size", [64, 1024])
def test_agreed_blocks_are_never_slower_than_a_ring_of_everything(size):
    """The default of `tasc` beside sums in 16 bits, from 10 Mbit/s to 10 Gbit/s, and from 0.1 to 100 ms of delay."""
    plans = [plan_of(p.tasc()), plan_of(p.bf16())]
    for rate, delay_s in itertools.product((1.25e6, 1.25e8, 1.25e9), (1e-4, 1e-2, 1e-1)):
        blocks_s, ring_s = simulate_many(plans, workload(), cluster(size, rate, delay_s))
        assert blocks_s < ring_s, (rate, delay_s)
