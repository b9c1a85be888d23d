"""NoLoCo: outer optimizers of pairs, against the authors' equations, and what stays with each rank."""

import random
from copy import deepcopy

import pytest
import torch
from torch import nn

import pliant
from models import Inner, new_ddp, train, weights
from pliant.algorithms.plans import plan_of
from pliant.simulator import simulate
from pliant.spec import Graph, Host, LocalSteps, NeighborMean, Outer, TensorSpec, Topology, Workload

NUMEL, PERIOD, ROUNDS = 40, 2, 6
A, B = 0.5, 0.7


def change(rank, step):
    return torch.randn(NUMEL, generator=torch.Generator().manual_seed(100 * step + rank))


def begun(place, what):
    model = Inner(NUMEL)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    run = pliant.relax(model, optimizer, what, group=place.process_group, agreement_every=0, timeout_s=20)
    return model, optimizer, run


def step(place, optimizer, run):
    optimizer.zero_grad()
    run.model(change(place.rank, run.steps)).backward()
    optimizer.step()


def points(size, what, steps=PERIOD * ROUNDS):
    """Return where ranks set out after each round, (rounds, size, NUMEL), and the bytes that each has sent by then."""

    def body(place):
        model, optimizer, run = begun(place, what)
        with run:
            found, sent = [], []
            for _ in range(steps // PERIOD):
                for _ in range(PERIOD):
                    step(place, optimizer, run)
                found.append(model.weight.detach().clone())
                sent.append(run.stats()["sent_bytes"])
            return torch.stack(found), sent

    ranks = pliant.run_world(size, body, timeout_s=60)
    return torch.stack([found for found, _ in ranks], 1).double(), [sent for _, sent in ranks]


def pairs_of(size, round_):
    """Return the partner of each rank in a round, itself if it has none."""
    ranks, partner = list(range(size)), list(range(size))
    random.Random(f"0 {round_}").shuffle(ranks)
    for i, j in zip(ranks[::2], ranks[1::2], strict=False):
        partner[i], partner[j] = j, i
    return partner


def oracle(size, pull, a=A, b=B):
    """Yield theta of all ranks after each round, by the authors' equations, with c = b pull."""
    theta, delta = torch.zeros(size, NUMEL).double(), torch.zeros(size, NUMEL).double()
    for round_ in range(ROUNDS):
        steps = range(PERIOD * round_, PERIOD * (round_ + 1))
        d = torch.stack([sum(change(rank, t).double() for t in steps) for rank in range(size)])  # theta - x
        partner = pairs_of(size, round_)
        delta = a * delta - b * (d + d[partner]) / 2 - b * pull * (theta - (theta + theta[partner]) / 2)
        theta = theta + delta
        yield theta


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("pull", [1.0, 0.4])
def test_no_loco_equals_its_oracle(size, pull):
    found, _ = points(size, pliant.no_loco(PERIOD, pull=pull))
    wanted = torch.stack(list(oracle(size, pull)))
    torch.testing.assert_close(found, wanted, rtol=0, atol=3e-5)
    if size > 2:
        assert (wanted[-1, 0] - wanted[-1, 1:]).abs().amax(1).min() > 0.1


@pytest.mark.parametrize("size", [3, 4])
def test_the_mean_over_all_ranks_is_that_of_one_outer_optimizer(size):
    """Who is paired with whom changes nothing of it, and no more does the pull."""
    found, _ = points(size, pliant.no_loco(PERIOD, pull=0.6))
    theta = nn.Parameter(torch.zeros(NUMEL).double())
    optimizer = torch.optim.SGD([theta], lr=B, momentum=A)
    for round_ in range(ROUNDS):
        steps = range(PERIOD * round_, PERIOD * (round_ + 1))
        theta.grad = sum(change(rank, t).double() for t in steps for rank in range(size)) / size
        optimizer.step()
        torch.testing.assert_close(found[round_].mean(0), theta.detach(), rtol=0, atol=3e-5)


def test_a_pair_is_equal_where_nothing_is_left_of_earlier_rounds():
    found, _ = points(5, pliant.no_loco(PERIOD, outer_lr=1.0, outer_momentum=0.0))
    for round_ in range(ROUNDS):
        partner = pairs_of(5, round_)
        torch.testing.assert_close(found[round_], found[round_][partner], rtol=0, atol=1e-5)
        assert len({min(i, j) for i, j in enumerate(partner)}) == 3  # a rank is alone


def test_plain_momentum_uses_what_it_has_gathered_once():
    """N equal rounds that share a rate are one step of torch's SGD; only all ranks together average here."""
    changes = torch.stack([change(0, k) for k in range(3)])

    def body(place):
        model, optimizer, run = begun(
            place, LocalSteps(period=1, outer=Outer(lr=0.7 / 4, momentum=0.9, every=4, nesterov=False))
        )
        with run:
            found = []
            for g in changes.repeat_interleave(4, 0):
                optimizer.zero_grad()
                run.model(g).backward()
                optimizer.step()
                found.append(model.weight.detach().clone())
            return torch.stack(found[3::4])

    theta = nn.Parameter(torch.zeros(NUMEL))
    optimizer = torch.optim.SGD([theta], lr=0.7, momentum=0.9)
    for theta.grad, found in zip(changes, pliant.run_world(1, body)[0], strict=True):
        optimizer.step()
        torch.testing.assert_close(found, theta.detach())


@pytest.mark.parametrize("size", [4, 5])
def test_bytes_are_one_vector_to_the_partner_and_those_predicted(size):
    _, sent = points(size, pliant.no_loco(PERIOD))
    partners = [pairs_of(size, round_) for round_ in range(ROUNDS)]
    for rank in range(size):
        of_rounds = [later - before for before, later in zip(sent[rank], sent[rank][1:], strict=False)]
        assert of_rounds == [4 * NUMEL * (partner[rank] != rank) for partner in partners[1:]]
    tensors = (TensorSpec(name="weight", shape=(NUMEL,), dtype="float32", layer="Inner", ready_s=0.0),)
    workload = Workload(name="one", tensors=tensors, forward_s=0.1, backward_s=0.1, step_s=0.01)
    topology = Topology(hosts=tuple(Host(name=f"h{k}") for k in range(size)))
    found = simulate(plan_of(pliant.no_loco(PERIOD)), workload, topology)
    turns = range(found.period // PERIOD)
    for rank, predicted in enumerate(found.sent_bytes):
        met = sum(pairs_of(size, turn)[rank] != rank for turn in turns)
        assert predicted == pytest.approx(4 * NUMEL * met / found.period)


def test_a_saved_run_goes_on_where_each_rank_stood():
    """Points and momenta are each rank's own, and the round of the matching goes on."""
    what, steps = pliant.no_loco(PERIOD), 2 * PERIOD + 1

    def body(place):
        model, optimizer, run = begun(place, what)
        with run:
            for _ in range(steps):
                step(place, optimizer, run)
            saved = deepcopy(run.state_dict())
            momentum = saved[f"rank{place.rank}"]["slots"]["weight"]["momentum"]
            at = model.weight.detach().clone()
            for _ in range(steps, PERIOD * ROUNDS):
                step(place, optimizer, run)
            wanted = model.weight.detach().clone()
        return saved, momentum, at, wanted

    before = pliant.run_world(4, body, timeout_s=60)
    momenta = torch.stack([momentum for _, momentum, _, _ in before])
    assert (momenta[0] - momenta[1:]).abs().max() > 0.1

    def resumed(place):
        saved, _, at, wanted = before[place.rank]
        model, optimizer, run = begun(place, what)
        with run:
            run.load_state_dict(saved)
            with torch.no_grad():
                model.weight.copy_(at)
            for _ in range(steps, PERIOD * ROUNDS):
                step(place, optimizer, run)
            assert torch.equal(model.weight, wanted)

    pliant.run_world(4, resumed, timeout_s=60)


@pytest.mark.parametrize("then", ["allreduce", "diloco(2)", "no_loco(2)"])
def test_a_switch_sets_out_from_the_mean(then):
    def body(place):
        ddp = new_ddp(place)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
        with pliant.relax(ddp, optimizer, pliant.no_loco(3), agreement_every=2, timeout_s=20) as run:
            assert "does not look ahead. Each rank has one of its own, and averages with neighbours" in run.explain()
            train(run.model, optimizer, place.rank, range(7))
            before = weights(ddp).clone()
            run.switch(then)
            after = weights(ddp).clone()
            train(run.model, optimizer, place.rank, range(7, 13))
        return before, after, weights(ddp)

    ranks = pliant.run_world(3, body, timeout_s=60)
    before, after, ends = (torch.stack(each) for each in zip(*ranks, strict=True))
    assert (before[0] - before[1]).abs().max() > 1e-4
    torch.testing.assert_close(after, before.mean(0).expand_as(after))
    assert torch.equal(after[0], after[1])
    assert torch.equal(ends[0], ends[1])


def test_between_hosts_pairs_are_of_hosts_and_ranks_of_a_host_stay_equal():
    def body(place):
        ddp = new_ddp(place)
        optimizer, what = torch.optim.SGD(ddp.parameters(), lr=0.05), pliant.between_hosts(pliant.no_loco(2))
        with pliant.relax(ddp, optimizer, what, hosts=[[0, 1], [2, 3], [4]], timeout_s=20) as run:
            train(run.model, optimizer, place.rank, range(8))
            return weights(ddp).clone()

    found = pliant.run_world(5, body, timeout_s=60)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[2], found[3])
    assert len({tuple(each.tolist()) for each in found}) == 3


def test_neighbours_may_be_those_of_any_graph():
    """With all ranks as neighbours, and all of the pull, every rank goes to the mean, as with local SGD."""
    mean = NeighborMean(pull=1.0, graph=Graph(kind="complete"))
    found, _ = points(4, LocalSteps(period=PERIOD, averaging=mean))
    wanted, _ = points(4, pliant.local_sgd(PERIOD))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
