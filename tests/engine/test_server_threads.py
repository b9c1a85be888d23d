"""Owners at a free pace: bounded staleness, over real connections."""

import contextlib
import threading
from types import SimpleNamespace

import pytest
import torch
from test_owner_step import OPTIMIZERS
from torch import nn

import pliant
from models import Net, batch, ended_equal, new_ddp, train, weights
from pliant.codecs import MinMax8, Sign, TopK
from pliant.engine.messages import Message
from pliant.engine.server_state import WAIT_ON, SharedShard
from pliant.engine.server_threads import ServerThreads
from waiting import Scripted, dawdle, until

sizes = pytest.mark.parametrize("size", [1, 3, *(pytest.param(size, marks=pytest.mark.extended) for size in (2, 4))])


@contextlib.contextmanager
def served(place, found, *, staleness=1, timeout_s=20, optimizer=OPTIMIZERS["sgd"]):
    """Yield a rank's model and optimizer while owners step for it; note the CommError that it meets."""
    ddp = new_ddp(place)
    made = optimizer(ddp.parameters())
    try:
        with pliant.relax(ddp, made, pliant.bounded_staleness(staleness), timeout_s=timeout_s):
            yield ddp, made
    except pliant.CommError as error:
        found[place.rank] = error


def threads_left():
    return [t.name for t in threading.enumerate() if t.name.startswith("pliant-owner")]


@sizes
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("plain", [False, True])
def test_staleness_zero_equals_synchronous_training(size, optimizer, plain):
    def body(place):
        found = []
        for what in (pliant.bounded_staleness(0), "allreduce"):
            ddp = new_ddp(place)
            model = ddp.module if plain and what != "allreduce" else ddp
            made = OPTIMIZERS[optimizer](model.parameters())
            schedule = torch.optim.lr_scheduler.ExponentialLR(made, 0.97)
            with pliant.relax(model, made, what, group=place.process_group, timeout_s=20) as run:
                for step in range(20):
                    train(run.model, made, place.rank, [step])
                    schedule.step()
            found.append(weights(model).clone())
        return found

    results = pliant.run_world(size, body, timeout_s=60)
    for served, exact in results:
        torch.testing.assert_close(served, exact, rtol=1e-4, atol=2e-5)
        assert torch.equal(served, results[0][0])
    assert not threads_left()


@pytest.mark.parametrize("staleness", [1, 3])
def test_ranks_are_never_further_apart_and_a_slow_one_holds_nobody_within_the_bound(staleness):
    """Rank 0 waits before its 6th gradient: the others come exactly as far as the bound lets them, and no further."""
    size, slow_from, done = 3, 5, [0] * 3
    seen, early = [], {}

    def body(place):
        ddp = new_ddp(place)
        made = OPTIMIZERS["sgd"](ddp.parameters())
        with pliant.relax(ddp, made, pliant.bounded_staleness(staleness), timeout_s=20) as run:
            for step in range(12):
                if place.rank == 0 and step == slow_from:
                    until(lambda: done[1:] == [slow_from + staleness] * 2, lambda: done)
                    dawdle(0.3)  # so that they could go further
                    early.update(enumerate(done))
                train(ddp, made, place.rank, [step])
                done[place.rank] += 1
                seen.append((done[place.rank], min(done)))
            return run.stats()

    results = pliant.run_world(size, body, timeout_s=60)
    assert early == {0: slow_from, 1: slow_from + staleness, 2: slow_from + staleness}
    assert all(own - slowest <= staleness + 1 for own, slowest in seen)  # done is counted after the step, not at once
    assert [r["steps"] for r in results] == [12] * size
    numel = sum(p.numel() for p in Net().parameters())
    sent = sum(r["sent_bytes"] for r in results)
    assert 0.9 < sent / (12 * 2 * (size - 1) * 4 * numel) < 1.01


@pytest.mark.parametrize("staleness", [0, 1, 4])
def test_ranks_of_different_speed_and_length_learn_and_end_equal(staleness):
    def body(place):
        ddp = new_ddp(place)
        made = OPTIMIZERS["sgd"](ddp.parameters())
        with pliant.relax(ddp, made, pliant.bounded_staleness(staleness), timeout_s=20):
            losses = []
            for step in range(20 + 3 * place.rank):
                dawdle(0.002 * place.rank)
                losses += train(ddp, made, place.rank, [step % 2])
        return weights(ddp), losses, made.state_dict()["state"]

    results = pliant.run_world(3, body, timeout_s=60)
    for found, losses, state in results:
        assert torch.equal(found, results[0][0])
        assert sum(losses[-2:]) < sum(losses[:2])
        assert len(state) == 10
        assert all(torch.equal(state[k]["momentum_buffer"], own["momentum_buffer"]) for k, own in results[0][2].items())
    assert not threads_left()


@pytest.mark.parametrize("staleness", [0, 1])
def test_ranks_with_two_optimizers_may_make_different_numbers_of_steps(staleness):
    """Who has made its own leaves the owners of both, before it waits for anybody."""

    def body(place):
        ddp = new_ddp(place)
        parameters = list(ddp.parameters())
        first, second = OPTIMIZERS["sgd"](parameters[:4]), OPTIMIZERS["adamw"](parameters[4:])
        with pliant.relax(ddp, [first, second], pliant.bounded_staleness(staleness), timeout_s=20):
            for step in range(4 + 3 * place.rank):
                train(ddp, first, place.rank, [step], before_step=second.step)
                second.zero_grad()
        return weights(ddp)

    ended_equal(3, body)
    assert not threads_left()


def test_switching_to_an_all_reduce_and_back():
    def body(place):
        ddp = new_ddp(place)
        made = OPTIMIZERS["sgd"](ddp.parameters())
        with pliant.relax(ddp, made, pliant.bounded_staleness(2), timeout_s=20) as run:
            for k, what in enumerate(
                (
                    "allreduce",
                    pliant.bounded_staleness(1),
                    "sharded_optimizer",
                    pliant.local_sgd(2),
                    pliant.bounded_staleness(0),
                )
            ):
                train(ddp, made, place.rank, range(4 * k, 4 * k + 4))
                run.switch(what)
                mean = run.consolidate()
                if what == "allreduce":
                    same = torch.cat([mean[name].flatten() for name, _ in ddp.module.named_parameters()])
                    assert torch.equal(same, weights(ddp))
            train(ddp, made, place.rank, range(20, 24))
        return weights(ddp)

    ended_equal(3, body)
    assert not threads_left()


def test_save_load_continue_at_staleness_zero(tmp_path):
    def body(place):
        ddp = new_ddp(place)
        made = OPTIMIZERS["adamw"](ddp.parameters())
        with pliant.relax(ddp, made, pliant.bounded_staleness(0), timeout_s=20) as run:
            train(ddp, made, place.rank, range(4))
            state = {"optimizer": made.state_dict(), "run": run.state_dict()}
            torch.save(state, tmp_path / f"{place.rank}.pt")
            train(ddp, made, place.rank, range(4, 8))
        loaded = torch.load(tmp_path / f"{place.rank}.pt", weights_only=True)
        again = new_ddp(place, seed=5)
        other = OPTIMIZERS["adamw"](again.parameters())
        with pliant.relax(again, other, pliant.bounded_staleness(0), timeout_s=20) as run:
            run.load_state_dict(loaded["run"])
            train(again, other, place.rank, range(4, 8))
        return weights(ddp), weights(again)

    for found, again in pliant.run_world(3, body, timeout_s=60):
        assert torch.equal(again, found)


@pytest.mark.parametrize("staleness", [0, 2])
def test_an_error_on_one_rank_ends_all_and_names_it(staleness):
    found = {}

    def body(place):
        try:
            with served(place, found, staleness=staleness, timeout_s=300) as (ddp, made):  # it is not what ends them
                for step in range(30):
                    if place.rank == 1 and step == 4:
                        raise KeyError("the user's own")
                    train(ddp, made, place.rank, [step])
        except KeyError:
            until(lambda: len(found) == 3)  # keeps its connections: it is the message that ends the others

    pliant.run_world(4, body, timeout_s=60)
    assert set(found) == {0, 2, 3}
    for error in found.values():
        assert error.lost == (1,)
        assert "rank 1 no longer takes part" in str(error)


def test_a_silent_rank_is_named_after_the_timeout():
    found = {}

    def body(place):
        with served(place, found, timeout_s=2) as (ddp, made):
            for step in range(10):
                if place.rank == 2 and step == 4:
                    until(lambda: len(found) == 2)
                train(ddp, made, place.rank, [step])

    pliant.run_world(3, body, timeout_s=60)
    assert found[0].lost == found[1].lost == (2,)
    assert "sent nothing" in str(found[0]) or "sent nothing" in str(found[1])


def test_an_optimizer_that_raises_in_the_server_ends_all():
    found = {}

    def body(place):
        class Breaks(torch.optim.SGD):
            def step(self, closure=None):
                if place.rank == 0 and any(p.grad is not None for p in self.param_groups[0]["params"]):
                    raise ArithmeticError("no")
                return super().step(closure)

        with served(place, found, optimizer=lambda parameters: Breaks(parameters, lr=0.1)) as (ddp, made):
            train(ddp, made, place.rank, range(8))

    pliant.run_world(3, body, timeout_s=60)
    assert {error.lost for error in found.values()} == {(0,)}
    assert len(found) == 3
    assert "ArithmeticError: no" in str(found[0])


def test_a_gradient_that_is_not_finite_is_not_sent():
    def body(place):
        module = nn.Linear(3, 2)
        made = torch.optim.SGD(module.parameters(), lr=0.1)
        with pliant.relax(module, made, "bounded_staleness", group=place.process_group, timeout_s=20) as run:
            (run.model(torch.ones(1, 3)).sum() * float("nan")).backward()
            with pytest.raises(pliant.NonFiniteGradientError, match="rank"):
                made.step()
        return module.weight.isfinite().all()

    assert all(pliant.run_world(2, body, timeout_s=30))


@pytest.mark.parametrize("codec", [Sign(), TopK(ratio=0.25), MinMax8()], ids=lambda codec: codec.name)
def test_what_a_codec_drops_stays_with_the_worker_and_is_not_lost(codec):
    """With SGD, the way of the weights and the mean residual together are the sum of all gradients."""
    lr, steps, size = 0.5, 9, 3

    def body(place):
        module = nn.Linear(64, 4, bias=False)
        with torch.no_grad():
            module.weight.zero_()
        made = torch.optim.SGD(module.parameters(), lr=lr)
        given = torch.zeros(4, 64)
        what = pliant.bounded_staleness(0, codec=codec)
        with pliant.relax(module, made, what, group=place.process_group, timeout_s=20) as run:
            for step in range(steps):
                x = torch.randn(4, 64, generator=torch.Generator().manual_seed(10 * step + place.rank))
                made.zero_grad()
                (run.model(torch.eye(64)) * x.t()).sum().backward()  # whose gradient is x
                given += x
                made.step()
            residual = run.state_dict()[f"rank{place.rank}"]["slots"]["weight"]["residual"].clone()
            return module.weight.detach().clone(), given, residual

    moved, given, residual = map(torch.stack, zip(*pliant.run_world(size, body, timeout_s=60), strict=True))
    assert (moved == moved[0]).all()
    assert residual.abs().max() > 0
    torch.testing.assert_close(moved[0], -lr * (given - residual).mean(0), rtol=0, atol=1e-4)


def test_servers_with_different_codecs_are_refused():
    with pytest.raises(ValueError, match="ParameterServers with different codecs, sign and another"):
        pliant.partition({"a": pliant.bounded_staleness(codec=Sign()), "*": pliant.bounded_staleness()})


def test_coded_gradients_need_as_many_bytes_as_their_payloads():
    codec, size, steps = Sign(), 3, 6

    def body(place):
        ddp = new_ddp(place)
        made = OPTIMIZERS["sgd"](ddp.parameters())
        with pliant.relax(ddp, made, pliant.bounded_staleness(1, codec=codec), timeout_s=20) as run:
            train(ddp, made, place.rank, range(steps))
            return run.stats()["sent_bytes"]

    numel = sum(p.numel() for p in Net().parameters())
    sent, both = sum(pliant.run_world(size, body, timeout_s=60)), 4 * numel + codec.nbytes(numel)
    assert 0.6 < sent / (steps * (size - 1) * both) < 1.05  # the last answers are on their way; blocks are padded


class TwoWays(nn.Module):
    """Uses one of two layers, as it is told."""

    def __init__(self):
        super().__init__()
        self.ways, self.way = nn.ModuleList(nn.Linear(16, 40) for _ in range(2)), 0

    def forward(self, x):
        return self.ways[self.way](x.flatten(1))


def train_two_ways(place, what, ways, *, plain):
    """Train with the layer that is named for each step; return the weights of both."""
    ddp = new_ddp(place, model=TwoWays, find_unused_parameters=True)
    held = ddp.module if plain else ddp
    made = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    with pliant.relax(held, made, what, group=place.process_group if plain else None, timeout_s=20):
        for step, way in enumerate(ways):
            ddp.module.way = way
            train(held, made, place.rank, [step])
    return [weights(each) for each in ddp.module.ways]


@pytest.mark.parametrize("plain", [False, True])
def test_parameters_that_no_rank_has_used_are_left_alone(plain):
    """A momentum and a decay of weights would move them without a gradient."""
    ways = [0, 0, 1, 1, 0, 1, 0, 0]

    def body(place):
        served = train_two_ways(place, pliant.bounded_staleness(0), ways, plain=plain)
        return torch.cat(served), torch.cat(train_two_ways(place, "allreduce", ways, plain=False))

    for served, exact in pliant.run_world(3, body, timeout_s=60):
        torch.testing.assert_close(served, exact, rtol=1e-4, atol=1e-5)


def test_parameters_that_are_never_used_stay_as_they_are_at_any_pace():
    def body(place):
        begun = weights(new_ddp(place, model=TwoWays).module.ways[1])
        return begun, train_two_ways(place, pliant.bounded_staleness(2), [0] * 6, plain=True)[1]

    for begun, ended in pliant.run_world(3, body, timeout_s=60):
        assert torch.equal(begun, ended)


def test_a_parameter_that_one_rank_alone_uses_is_stepped():
    """With the mean over all ranks, of which the others' part is zero."""

    def body(place):
        ways = [place.rank % 2] * 6
        served = train_two_ways(place, pliant.bounded_staleness(0), ways, plain=True)
        return torch.cat(served), torch.cat(train_two_ways(place, "allreduce", ways, plain=False))

    for served, exact in pliant.run_world(2, body, timeout_s=60):
        torch.testing.assert_close(served, exact, rtol=1e-4, atol=1e-5)


def test_more_ranks_than_parameters():
    def body(place):
        module = nn.Linear(3, 2)
        made = torch.optim.SGD(module.parameters(), lr=0.1)
        with pliant.relax(module, made, pliant.bounded_staleness(1), group=place.process_group, timeout_s=20) as run:
            for step in range(5):
                x, _ = batch(place.rank, step)
                made.zero_grad()
                run.model(x.flatten(1)[:, :3]).square().mean().backward()
                made.step()
        return weights(module)

    ended_equal(4, body, timeout_s=30)


@pytest.mark.parametrize(("lost", "named"), [((), 1), ((1,), 1), ((0,), 0), ((0, 1), 1)])
def test_who_hangs_up_for_another_is_not_the_one_that_is_named(lost, named):
    """Rank 1's connection broke; whether rank 1 began it, is said by who gives no sign of life."""

    def breaks(*_, **__):
        raise pliant.CommError("it broke", rank=2, op="exchange", lost=lost)

    found = []
    server = SimpleNamespace(
        _numel=4,
        _shard=SimpleNamespace(num_bytes=16),
        _device=torch.device("cpu"),
        _asks=SimpleNamespace(exchange=breaks),
        _shared=SimpleNamespace(fail=lambda rank, why: found.append(rank)),
    )
    ServerThreads._serve(server, 1)
    assert found[0] == named


def test_an_error_in_a_thread_that_serves_is_this_ranks_own():
    """Such as a payload that cannot be decoded: the rank says so at its next step, and tells the others."""

    def broken(*_):
        raise ArithmeticError("no")

    found = []
    server = SimpleNamespace(
        _comm=SimpleNamespace(rank=0),
        _numel=4,
        _shard=SimpleNamespace(num_bytes=16),
        _device=torch.device("cpu"),
        _asks=SimpleNamespace(exchange=lambda *_, **__: SimpleNamespace(wait=lambda: None)),
        _shared=SimpleNamespace(serve=broken, fail=lambda rank, why: found.append((rank, why))),
    )
    ServerThreads._serve(server, 1)
    assert found == [(0, "its thread raised ArithmeticError: no")]


@pytest.mark.parametrize("others", ["train", "are silent"])
def test_who_is_done_waits_as_long_as_the_others_train(others):
    gradient = torch.zeros(4, dtype=torch.uint8)
    shard = SimpleNamespace(add=lambda *_: None, step=lambda *_: None, read=lambda *_: None)
    shared = SharedShard(shard, SimpleNamespace(rank=0, size=2, timeout_s=10.0), staleness=1)
    shared.note(0, gradient)
    epoch = shared.note(0, None)  # it leaves
    trains = [lambda: shared.note(1, gradient)] * 5
    shared._changed = Scripted(*trains, (lambda: shared.note(1, None)) if others == "train" else lambda: None)
    shared.answer(0, epoch, answer := Message(4, torch.device("cpu")))
    assert not shared._changed.events
    assert int(answer.head) == (-1 if others == "train" else 1)
    assert others == "train" or "has sent nothing while rank 0 waited for it for 9s" in shared.failure[1]


@pytest.mark.parametrize("others", ["train", "are silent"])
def test_who_is_done_and_owns_nothing_is_told_as_long_as_the_others_train(others):
    """It hears of no message itself, and its own receive has the timeout."""
    gradient = torch.zeros(4, dtype=torch.uint8)
    shard = SimpleNamespace(add=lambda *_: None, step=lambda *_: None, read=lambda *_: None)
    shared = SharedShard(shard, SimpleNamespace(rank=0, size=2, timeout_s=10.0), staleness=1, owners=[0])
    shared.note(0, gradient)
    trains = [lambda: shared.note(0, gradient)] * 3
    shared._changed = Scripted(*trains, (lambda: shared.note(0, None)) if others == "train" else lambda: None)
    answer = Message(4, torch.device("cpu"))
    assert [int(answer.head) for _ in shared.serve(1, None, answer)] == [*[WAIT_ON] * 3, -1 if others == "train" else 0]
    assert not shared._changed.events


def test_answers_that_only_say_that_others_train_are_followed_by_others():
    heads = {0: [WAIT_ON, WAIT_ON, -1], 2: [-1]}
    numels = {rank: nn.Parameter(torch.zeros(2)) for rank in heads}

    def exchange(sends, receives):
        ((rank, raw),) = receives
        return SimpleNamespace(wait=lambda: raw[:8].view(torch.int64).fill_(heads[rank].pop(0)))

    server = SimpleNamespace(
        _comm=SimpleNamespace(rank=1),
        _answers=SimpleNamespace(exchange=exchange),
        _in={rank: Message(8, torch.device("cpu")) for rank in heads},
        _held={rank: [SimpleNamespace(parameter=p, views=lambda p: [p.data])] for rank, p in numels.items()},
        _shared=SimpleNamespace(taking=False),
    )
    server._settle = lambda: ServerThreads._settle(server)
    server._asked = [exchange([], [(rank, message.bytes)]) for rank, message in server._in.items()]
    ServerThreads._take(server)
    assert heads == {0: [], 2: []}


@pytest.mark.extended
def test_a_rank_that_owns_nothing_ends_long_before_the_others():
    def body(place):
        ddp = new_ddp(place)
        made = OPTIMIZERS["sgd"](ddp.parameters())
        with pliant.relax(ddp, made, pliant.bounded_staleness(1, owners=(0,)), timeout_s=3):
            for step in range(2 if place.rank else 14):
                dawdle(0.0 if place.rank else 0.4)
                train(ddp, made, place.rank, [step])
        return weights(ddp)

    first, *others = pliant.run_world(3, body, timeout_s=60)
    assert all(torch.equal(first, each) for each in others)
    assert not threads_left()


def test_who_is_done_asks_its_own_shard_before_messages_that_have_a_timeout():
    order = []
    server = SimpleNamespace(
        _comm=SimpleNamespace(rank=0, size=1),
        _in={0: None},
        _epoch=0,
        _shared=SimpleNamespace(answer=lambda *_: order.append("own shard")),
        _take=lambda: order.append("messages"),
    )
    ServerThreads.finish(server)
    assert order == ["own shard", "messages"]
