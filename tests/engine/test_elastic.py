"""Ranks that are lost and that come, as threads: nothing hangs, and who is there goes on alike."""

import random
import re
import threading

import pytest
import torch
from torch import nn
from torch.distributed import HashStore

import pliant
from models import Net, batch, new_ddp, weights
from pliant.comm.elastic import ElasticGroup
from pliant.comm.process_group import ProcessGroupComm
from pliant.comm.rendezvous import Rendezvous
from pliant.engine import elastic_run
from pliant.engine.epoch_sync import average_members
from pliant.network.store_host import reserve_port
from pliant.spec import LocalSteps, Outer

PLANS = {
    "gossip": pliant.gossip(),
    "gossip-free": pliant.gossip(free=True),
    "choco": pliant.choco(gamma=0.3),
    "dcd": pliant.dcd(),
    "local_sgd": pliant.local_sgd(3),
    "diloco": pliant.diloco(4, averaging=pliant.int4()),
    "streaming_diloco": pliant.streaming_diloco(6, fragments=3, delay_steps=2),
    "sparse_loco": pliant.sparse_loco(3, averaging=pliant.topk(0.2)),
    "no_loco": pliant.no_loco(3),
    "outer-every": LocalSteps(period=2, outer=Outer(lr=0.7, momentum=0.6, every=4)),
    "des_loc": pliant.des_loc(3, first=2, first_states=("momentum_buffer",), second_states=()),
    "des_loc-late": pliant.des_loc(3, first=1, first_states=("momentum_buffer",), second_states=(), delay_steps=2),
    "async_average": pliant.async_average(),
    "delayed_nesterov": pliant.delayed_nesterov(1, outer_momentum=0.5),
    "decoupled_diloco": pliant.decoupled_diloco(2, outer_momentum=0.5),
    "halos": pliant.halos(2, region_ranks=2, arrivals=2),
}
SIZE = 4
_one_at_a_time = threading.Lock()


class LostError(Exception):
    """What ends a rank."""


def new_run(place, what, seed=0, **settings):
    with _one_at_a_time:  # threads share torch's generator
        torch.manual_seed(seed)
        model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    settings = {"elastic": pliant.Elastic(regroup_s=10), "timeout_s": 10, **settings}
    return optimizer, pliant.relax(model, optimizer, what, group=place.process_group, **settings)


def step(place, optimizer, run):
    x, y = batch(place.rank, run.steps)
    optimizer.zero_grad()
    nn.functional.cross_entropy(run.model(x), y).backward()
    optimizer.step()


def train(place, optimizer, run, until, lost_at=-1):
    while run.steps < until:
        if run.steps == lost_at:
            raise LostError
        step(place, optimizer, run)


def survive(what, victims, until=20):
    """Train with victims, rank -> step at which it is lost; return what the others end with, by rank."""

    def body(place):
        optimizer, run = new_run(place, what)
        try:
            with run:
                train(place, optimizer, run, until, victims.get(place.rank, -1))
                members = run.members
        except LostError:
            return None
        return weights(run.model).clone(), run.steps, members

    return {r: found for r, found in enumerate(pliant.run_world(SIZE, body, timeout_s=30)) if found is not None}


@pytest.mark.parametrize("seed", [2, *(pytest.param(seed, marks=pytest.mark.extended) for seed in range(2))])
@pytest.mark.parametrize("what", PLANS)
def test_a_rank_is_lost_at_any_step(what, seed):
    chance = random.Random(f"{what} {seed}")
    victims = {chance.randrange(SIZE): chance.randrange(20)}
    if seed == 2:
        victims[chance.randrange(SIZE)] = chance.randrange(20)
    found = survive(PLANS[what], victims)
    assert set(found) == set(range(SIZE)) - set(victims)
    first = next(iter(found.values()))[0]
    assert first.isfinite().all()
    for own, steps, _ in found.values():
        assert torch.equal(own, first)
        assert steps >= 20


@pytest.mark.parametrize("what", PLANS)
def test_a_rank_comes_back_and_ends_with_the_same_model(what):
    back = threading.Event()

    def body(place):
        optimizer, run = new_run(place, PLANS[what])
        if place.rank == 2:
            with pytest.raises(LostError), run:
                train(place, optimizer, run, 40, lost_at=7)
            optimizer, run = new_run(place, PLANS[what], seed=1)
            joined_at = run.steps
            back.set()
        with run:
            while not back.wait(0.01) or run.steps < 40:
                step(place, optimizer, run)
            train(place, optimizer, run, 60)
            steps, members = run.steps, run.members
        if place.rank == 2:
            assert joined_at > 0  # at a free pace the others may be behind where it was lost
            assert optimizer.state[next(run.model.parameters())]["momentum_buffer"].any()
        return weights(run.model).clone(), steps, members

    results = pliant.run_world(SIZE, body, timeout_s=30)
    assert all(torch.equal(own, results[0][0]) for own, *_ in results)
    assert results[0][0].isfinite().all()
    assert all(sorted(members) == [0, 1, 2, 3] for *_, members in results)


@pytest.mark.parametrize("what", ["choco", "local_sgd", "streaming_diloco"])
def test_nobody_waits_for_a_rank_that_regroups_though_its_connections_are_held(what, monkeypatch):
    """Rank 1 sees first that the epoch is over, and the others are already in the next exchange."""
    over, held, said = ElasticGroup.is_over, [], []
    report, connect = ProcessGroupComm.failure, ProcessGroupComm.__init__
    lone = {1: 6}

    def is_over(party):
        return over.fget(party) or (party.epoch.number == 0 and lone.get(party.rank) == steps[party.rank])

    def hold(comm, group, **settings):
        held.append(group)
        connect(comm, group, **settings)

    def failure(comm, op, error, *more):
        said.append(str(error))
        return report(comm, op, error, *more)

    monkeypatch.setattr(ElasticGroup, "is_over", property(is_over))
    monkeypatch.setattr(ProcessGroupComm, "__init__", hold)
    monkeypatch.setattr(ProcessGroupComm, "failure", failure)
    steps = dict.fromkeys(range(3), 0)

    def body(place):
        optimizer, run = new_run(place, PLANS[what])
        with run:
            while run.steps < 20:
                steps[place.rank] = run.steps + 1
                step(place, optimizer, run)
            return run.members

    assert pliant.run_world(3, body, timeout_s=30) == [(0, 1, 2)] * 3
    assert not [text for text in said if "Timed out" in text]


def held_when_a_rank_has_joined(what):
    """Return weights, steps, slots and members of each rank once rank 0 was lost and has come back as a new one."""
    held, joined = {}, threading.Event()

    def slots(run, place):
        kept = run.state_dict()[f"rank{run.members.index(place.rank)}"]["slots"]
        return {name: {slot: t.clone() for slot, t in own.items()} for name, own in kept.items()}

    def body(place):
        optimizer, run = new_run(place, PLANS[what])
        if place.rank == 0:
            with pytest.raises(LostError), run:
                train(place, optimizer, run, 99, lost_at=8)
            optimizer, run = new_run(place, PLANS[what], seed=1)
            joined.set()
        else:
            while run.members != (1, 2, 3, 0):  # those that hold a state come first
                step(place, optimizer, run)
        with run:
            held[place.rank] = weights(run.model).clone(), run.steps, slots(run, place), run.members
            assert joined.wait(10)

    pliant.run_world(SIZE, body, timeout_s=30)
    mean, steps, _, members = held[0]
    assert members == (1, 2, 3, 0)
    for other, at, _, _ in held.values():
        assert torch.equal(mean, other)
        assert at == steps
    return {rank: slots_here for rank, (_, _, slots_here, _) in held.items()}


@pytest.mark.parametrize("what", ["gossip", "dcd", "streaming_diloco"])
def test_a_new_rank_sets_out_from_the_mean_and_the_outer_state(what):
    """What it holds when it has joined is what the others hold, to the bit."""
    held = held_when_a_rank_has_joined(what)
    own = held[0]
    for theirs in held.values():
        for name, slots_here in theirs.items():
            for slot, tensor in slots_here.items():
                if slot.startswith(("anchor", "momentum", "replica")) and slot in own[name]:
                    assert torch.equal(tensor, own[name][slot]), (name, slot)


def test_a_new_rank_has_no_part_of_outer_momenta_that_are_a_ranks_own():
    """All set out from the mean, and those that stayed keep theirs."""
    held = held_when_a_rank_has_joined("no_loco")
    own, here, there = (held[rank] for rank in (0, 1, 2))
    for name, slots in own.items():
        assert torch.equal(slots["anchor"], here[name]["anchor"])
        assert not slots["momentum"].any()
    assert any(slots["momentum"].any() for slots in here.values())
    assert any(slots["momentum"].any() for slots in there.values())


def test_ranks_that_make_fewer_steps_leave_and_the_others_go_on():
    def body(place):
        optimizer, run = new_run(place, PLANS["local_sgd"])
        with run:
            train(place, optimizer, run, 5 * (place.rank + 1))
            return run.members

    found = pliant.run_world(SIZE, body, timeout_s=30)
    assert found == [(0, 1, 2, 3), (1, 2, 3), (2, 3), (3,)]


def test_without_a_loss_an_elastic_run_is_the_plain_one():
    def body(place, elastic):
        settings = {"elastic": pliant.Elastic()} if elastic else {"elastic": None}
        optimizer, run = new_run(place, PLANS["diloco"], **settings)
        with run:
            train(place, optimizer, run, 12)
            mean = run.consolidate()
        return weights(run.model).clone(), torch.cat([mean[name].flatten() for name, _ in run.model.named_parameters()])

    plain, elastic = (pliant.run_world(3, lambda p, e=e: body(p, e), timeout_s=30) for e in (False, True))
    for a, b in zip(plain, elastic, strict=True):
        torch.testing.assert_close(a[0], b[0])
        assert torch.equal(a[1], b[1])


def test_ranks_that_cannot_reach_each_other_at_the_end_try_again_together(monkeypatch):
    """All close; the group for it does not come about on one rank, and so on none."""
    connect, closes, failed = ElasticGroup.connect, threading.Event(), []

    def fails_once(party):
        if closes.is_set() and party.rank == 1 and not failed:
            failed.append(party.rank)
            raise pliant.CommError("there is no way", rank=1, op="connect")
        return connect(party)

    monkeypatch.setattr(ElasticGroup, "connect", fails_once)

    def body(place):
        optimizer, run = new_run(place, PLANS["diloco"], timeout_s=2)
        train(place, optimizer, run, 10)
        place.comm.barrier()
        closes.set()
        run.close()
        return weights(run.model).clone()

    first, *others = pliant.run_world(3, body, timeout_s=30)
    assert failed == [1]
    assert all(torch.equal(first, other) for other in others)


def test_no_rank_leaves_before_all_have_met(monkeypatch):
    """All close; what the others have answered last does not come to one rank, which still has weights of its own."""
    closes, failed = threading.Event(), []

    def fails_once(module, optimizer, comm, party, device):
        own = [parameter.detach().clone() for parameter in module.parameters()]
        average_members(module, optimizer, comm, party, device)
        if closes.is_set() and party.rank == 1 and not failed:
            failed.append(party.rank)
            with torch.no_grad():
                for parameter, value in zip(module.parameters(), own, strict=True):
                    parameter.copy_(value)
            raise pliant.CommError("the last answer did not come", rank=1, op="regroup")

    monkeypatch.setattr(elastic_run, "average_members", fails_once)

    def body(place):
        # The others are in an exchange for so long: longer than they are waited for in training.
        optimizer, run = new_run(place, PLANS["diloco"], timeout_s=3, elastic=pliant.Elastic(regroup_s=1))
        train(place, optimizer, run, 10)
        place.comm.barrier()
        closes.set()
        run.close()
        return weights(run.model).clone()

    first, *others = pliant.run_world(3, body, timeout_s=30)
    assert failed == [1]
    assert all(torch.equal(first, other) for other in others)


def test_consolidating_outlives_a_loss():
    def body(place):
        optimizer, run = new_run(place, PLANS["local_sgd"])
        try:
            with run:
                train(place, optimizer, run, 10)
                if place.rank == 1:
                    raise LostError
                return run.consolidate()["head.weight"], run.members
        except LostError:
            return None

    a, _, *others = pliant.run_world(SIZE, body, timeout_s=30)
    assert all(torch.equal(a[0], b[0]) for b in others)
    assert a[1] == (0, 2, 3)


def test_who_has_given_up_a_start_calls_relax_again():
    given_up = threading.Event()

    def body(place):
        if place.rank == 1:
            message = r"after 0\.5s ranks? (0, )?2 had not come .*may call relax\(\) again"
            with pytest.raises(pliant.CommError, match=message):
                new_run(place, PLANS["local_sgd"], start_timeout_s=0.5)
            given_up.set()
        elif place.rank == 2:
            assert given_up.wait(20)
        optimizer, run = new_run(place, PLANS["local_sgd"])
        with run:
            train(place, optimizer, run, 10)
            return run.members

    assert pliant.run_world(3, body, timeout_s=30) == [(0, 1, 2)] * 3


@pytest.mark.parametrize(
    ("rank", "message"),
    [
        (0, r"rank 0: .* after 1s rank 1 had not come \(here: 0\)"),  # hosts the store, and is not held up in it
        (1, r"nobody hosts the store .* after 1s.*lost or late: rank 0.*longer start_timeout_s"),
    ],
)
def test_a_process_that_is_alone_at_the_start_says_who_is_missing(rank, message, monkeypatch):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with reserve_port() as held:
        port = str(held.getsockname()[1])
        here = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": str(rank), "WORLD_SIZE": "2"}
        for name, value in here.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(pliant.CommError, match=message):
            pliant.relax(model, optimizer, "gossip", start_timeout_s=1.0, elastic=pliant.Elastic(regroup_s=2))


def test_too_few_end_with_a_sentence():
    def body(place):
        elastic = pliant.Elastic(min_ranks=3, regroup_s=1)
        optimizer, run = new_run(place, PLANS["gossip"], elastic=elastic)
        with run:
            train(place, optimizer, run, 30, lost_at={0: 5, 1: 9}.get(place.rank, -1))

    def outcome(place):
        try:
            body(place)
        except (LostError, pliant.CommError) as error:
            return str(error)

    for text in pliant.run_world(SIZE, outcome, timeout_s=30)[2:]:
        assert re.search(r"[12] are left after 1s \(ranks .*but min_ranks is 3", text)


def test_another_plan_or_model_is_refused_before_it_disturbs_anybody():
    gone = threading.Event()

    def body(place):
        if place.rank == 1:
            optimizer, run = new_run(place, "gossip")
            with pytest.raises(LostError), run:
                train(place, optimizer, run, 9, lost_at=3)
            with pytest.raises(ValueError, match=r"another plan or another model \(plan .*start it with the same"):
                new_run(place, "local_sgd")
            gone.set()
            return None
        optimizer, run = new_run(place, "gossip")
        with run:
            while not gone.is_set():
                step(place, optimizer, run)
            return run.members

    assert pliant.run_world(3, body, timeout_s=30) == [(0, 2), None, (0, 2)]


@pytest.mark.parametrize(
    ("what", "wrapped", "message"),
    [
        ("allreduce", False, "exchanges gradients, whose mean is not known without the lost rank"),
        ("post_local_sgd", False, "exchanges gradients"),
        ("gossip", True, "needs a plain module, but got a DistributedDataParallel"),
        (pliant.gossip(pliant.Graph(kind="matrix", rows=((1.0,),))), False, "the mixing matrix is for 1 ranks"),
        (pliant.decoupled_diloco(quorum=1), False, "a quorum of 1 is for one number of ranks, .* set quorum=-1"),
        (pliant.local_sgd(averaging=pliant.allreduce(schedule="auto")), False, "the sums of AllReduce have a schedule"),
    ],
)
def test_what_cannot_be_elastic_says_so(what, wrapped, message):
    def body(place):
        ddp = new_ddp(place)
        model = ddp if wrapped else ddp.module
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        algorithm = pliant.post_local_sgd(5) if what == "post_local_sgd" else what
        with pytest.raises(ValueError, match=message):
            pliant.relax(model, optimizer, algorithm, group=place.process_group, elastic=pliant.Elastic())

    pliant.run_world(1, body, timeout_s=20)


def test_an_elastic_run_keeps_its_plan():
    def body(place):
        _, run = new_run(place, "gossip")
        with run, pytest.raises(ValueError, match="keeps its plan"):
            run.switch("diloco")

    pliant.run_world(2, body, timeout_s=20)


@pytest.mark.parametrize("settings", [{"min_ranks": 0}, {"regroup_s": 0.0}])
def test_impossible_settings_are_refused(settings):
    with pytest.raises(ValueError, match="cannot be"):
        pliant.Elastic(**settings)


@pytest.fixture
def secret(tmp_path):
    path = tmp_path / "run.secret"
    path.write_text("known to all ranks and to nobody else")
    path.chmod(0o600)
    return path


def test_a_run_with_a_secret_loses_a_rank_and_takes_it_back(secret):
    last = []

    def body(place):
        settings = {"elastic": pliant.Elastic(regroup_s=10, secret_file=secret)}
        optimizer, run = new_run(place, PLANS["diloco"], **settings)
        if place.rank == 1:
            with pytest.raises(LostError), run:
                train(place, optimizer, run, 40, lost_at=5)
            optimizer, run = new_run(place, PLANS["diloco"], seed=1, **settings)
            assert run.steps > 0
            last.append(run.steps + 20)
        with run:
            while not last or run.steps < last[0]:
                step(place, optimizer, run)
        return weights(run.model).clone()

    results = pliant.run_world(3, body, timeout_s=60)
    assert all(torch.equal(own, results[0]) for own in results)


@pytest.mark.parametrize(
    "part", [pytest.param("weights and optimizer state", marks=pytest.mark.extended), "outer state"]
)
def test_weights_that_are_not_those_that_were_signed_are_not_loaded(part, monkeypatch):
    """Rank 0 vouches for what it holds, and something else comes."""
    vouch = ElasticGroup.vouch
    monkeypatch.setattr(
        ElasticGroup, "vouch", lambda self, said, digest: vouch(self, said, digest if said != part else "0" * 64)
    )

    def body(place):
        with _one_at_a_time:
            torch.manual_seed(place.rank)
            model = Net()
        own = [p.detach().clone() for p in model.parameters()]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        elastic = pliant.Elastic(regroup_s=5, min_ranks=2)

        def join_and_train():
            settings = {"group": place.process_group, "timeout_s": 2, "elastic": elastic}
            with pliant.relax(model, optimizer, "diloco", **settings) as run:
                train(place, optimizer, run, 10**9)

        with pytest.raises(pliant.CommError) as caught:
            join_and_train()
        return str(caught.value), all(map(torch.equal, own, model.parameters()))

    first, second = pliant.run_world(2, body, timeout_s=60)
    assert "1 are left" in first[0]  # it has met the other anew until that gave up
    assert re.search(f"was sent {part} with the digest .*has signed 000.*were not loaded", second[0])
    assert second[1] == (part != "outer state")


def test_without_a_secret_a_run_stays_on_loopback(monkeypatch):
    elsewhere = Rendezvous(store=HashStore(), beside=HashStore(), rank=0, size=1, loopback=False, host="10.1.2.3")
    monkeypatch.setattr("pliant.comm.elastic.rendezvous_for", lambda *_: elsewhere)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"store is at '10\.1\.2\.3'.*openssl rand .*secret_file="):
        pliant.relax(model, optimizer, "gossip", elastic=pliant.Elastic())
    assert not elsewhere.store.num_keys()  # nothing was said


def test_a_secret_that_others_may_read_is_refused_before_anything_is_said(secret):
    secret.chmod(0o644)

    def body(place):
        with pytest.raises(ValueError, match="may be read or written by others"):
            new_run(place, "gossip", elastic=pliant.Elastic(secret_file=secret))

    pliant.run_world(2, body, timeout_s=20)


def test_a_last_step_that_a_scaler_skips_on_one_rank_is_counted_before_it_leaves(monkeypatch):
    """Else the others wait for it in the exchange after that step, until it hangs up."""
    agree, said = ElasticGroup.agree, []

    def noted(self, *, step, sound, closing):
        if closing:
            said.append((self.rank, step))
        return agree(self, step=step, sound=sound, closing=closing)

    monkeypatch.setattr(ElasticGroup, "agree", noted)

    def body(place):
        optimizer, run = new_run(place, pliant.local_sgd(2), nonfinite="propagate")
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
        with run:
            for k in range(4):
                x, y = batch(place.rank, k)
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(run.model(x), y)
                scaler.scale(loss * torch.inf if place.rank == 1 and k == 3 else loss).backward()
                scaler.step(optimizer)
                scaler.update()
        return weights(run.model)

    one, other = pliant.run_world(2, body, timeout_s=60)
    assert set(said) == {(0, 4), (1, 4)}
    assert torch.equal(one, other)
