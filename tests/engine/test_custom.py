"""The tutorial's algorithm, taken from its page, through what holds for every algorithm."""

import re
import threading
from pathlib import Path

import pytest
import torch

import pliant
from models import new_ddp, train, weights
from pliant.algorithms import algorithm_named, executor_for, node_of
from pliant.algorithms.registry import custom_names
from pliant.spec import Custom, SyncPlan, from_json, to_json

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"


@pytest.fixture(scope="module")
def signum():
    """The class that the page defines and registers; running the page trains with it."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names = {"__name__": "tutorial"}
    exec(compile(code, str(PAGE), "exec"), names)
    cls = re.search(r"class Signum:\n(.*?)\n\n\n", code, re.DOTALL)
    assert cls.group(1).count("\n") <= 30
    return names["Signum"]


def relax(place, what, lr=0.002, **options):
    ddp = new_ddp(place)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=lr)
    return ddp, optimizer, pliant.relax(ddp, optimizer, what, timeout_s=20, **options)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_it_equals_its_oracle(signum, size):
    def body(place):
        ddp, optimizer, run = relax(place, signum(beta=0.8), agreement_every=1)
        with run:
            train(ddp, optimizer, place.rank, range(5))
            stats = run.stats()
        assert size == 1 or stats["last_agreement_step"] >= 4
        models = [new_ddp(place, bucket_cap_mb=25).module for _ in range(size)]
        momenta = [0.0] * size
        plain = [torch.optim.SGD(model.parameters(), lr=0.0) for model in models]
        for t in range(5):
            for rank, model in enumerate(models):
                train(model, plain[rank], rank, [t])
                g = torch.cat([p.grad.flatten() for p in model.parameters()])
                momenta[rank] = 0.8 * momenta[rank] + 0.2 * g
            vote = sum(torch.sign(v) for v in momenta).sign()
            now = weights(models[0]) - 0.002 * vote
            for model in models:
                torch.nn.utils.vector_to_parameters(now.clone(), model.parameters())
        return weights(ddp), weights(models[0]), stats["sent_bytes"]

    for found, wanted, sent in pliant.run_world(size, body, timeout_s=60):
        assert ((found - wanted).abs() < 1e-5).float().mean() > 0.999  # a vote may turn on the last bit of a momentum
        assert (sent > 0) == (size > 1)


def test_the_plan_names_it_in_every_combination(signum):
    own = signum(beta=0.5)
    wholes = [
        own,
        pliant.every(2, own),
        pliant.delayed(own),
        pliant.after(3, pliant.bf16(), then=own),
        pliant.between_hosts(own),
        pliant.diloco(4, averaging=own),
    ]
    for whole in wholes:
        plan = pliant.partition({"head.*": pliant.bytegrad(), "*": whole})
        assert from_json(SyncPlan, to_json(plan)) == plan
        assert executor_for(plan.rules[-1].exchange).node == node_of(whole)
        assert custom_names(plan) == {"signum": True}
        assert "Custom(name='signum', settings={'beta': 0.5})" in str(plan)
    assert algorithm_named("signum", torch.optim.SGD([torch.zeros(1)], lr=1.0)) == signum().node


def test_combinations_train_and_ranks_agree(signum, tmp_path):
    pliant.save(pliant.partition({"head.*": pliant.bytegrad(), "*": signum()}), tmp_path / "plan.json")

    def body(place):
        ddp, optimizer, run = relax(place, "signum", agreement_every=1, hosts=[[0, 1], [2]])
        with run:
            own = signum(beta=0.5)
            more = [pliant.every(2, own), pliant.delayed(own), pliant.between_hosts(own), pliant.local_sgd(2)]
            for k, what in enumerate([*more, tmp_path / "plan.json", own]):
                run.switch(what)
                train(ddp, optimizer, place.rank, range(3 * k, 3 * k + 3))
        return weights(ddp)

    results = pliant.run_world(3, body, timeout_s=60)
    assert all(torch.equal(results[0], r) for r in results)
    assert results[0].isfinite().all()


def test_save_load_continue_is_uninterrupted(signum, tmp_path):
    def body(place):
        ddp, optimizer, run = relax(place, signum())
        with run:
            train(ddp, optimizer, place.rank, range(4))
            torch.save({"model": ddp.module.state_dict(), "run": run.state_dict()}, tmp_path / f"{place.rank}.pt")
            train(ddp, optimizer, place.rank, range(4, 8))
        loaded = torch.load(tmp_path / f"{place.rank}.pt", weights_only=True)
        again, other, run = relax(place, signum())
        with run:
            again.module.load_state_dict(loaded["model"])
            run.load_state_dict(loaded["run"])
            train(again, other, place.rank, range(4, 8))
        return torch.equal(weights(ddp), weights(again))

    assert pliant.run_world(3, body, timeout_s=60) == [True] * 3


def test_an_overflow_is_seen_by_all_and_not_kept(signum):
    def body(place):
        ddp, optimizer, run = relax(place, signum())
        with run:
            train(ddp, optimizer, place.rank, range(2))
            kept = run.state_dict()[f"rank{place.rank}"]["slots"]
            before = weights(ddp).clone()
            hurt = ddp.module.head.bias.register_hook(lambda g: g * (torch.nan if place.rank == 1 else 1))
            with pytest.raises(pliant.NonFiniteGradientError, match=r"rank 1.*head\.bias"):
                train(ddp, optimizer, place.rank, [2])
            hurt.remove()
            sound = all(tensor.isfinite().all() for slots in kept.values() for tensor in slots.values())
            return torch.equal(before, weights(ddp)) and sound

    assert pliant.run_world(3, body, timeout_s=30) == [True] * 3


def test_a_rank_that_does_not_know_it_is_named_on_all(signum, monkeypatch):
    def on_this_thread(plan):
        return {"signum": threading.current_thread().name != "rank1"}

    monkeypatch.setattr("pliant.engine.plan_resolution.custom_names", on_this_thread)

    def body(place):
        with pytest.raises(ValueError, match=r"the set of known algorithms of ranks 1 .*register.* for signum"):
            relax(place, signum())
        return True

    assert pliant.run_world(3, body, timeout_s=30) == [True] * 3


def test_refusals_name_both_sides(signum):
    stranger = Custom(name="stranger")
    with pytest.raises(ValueError, match=r"'stranger'.*pliant.register\('stranger'"):
        executor_for(stranger)
    with pytest.raises(ValueError, match="'bytegrad' is taken"):
        pliant.register("bytegrad", signum)
    with pytest.raises(ValueError, match=r"invalid Custom: period must be .*use Every"):
        Custom(name="signum", period=2)
    with pytest.raises(TypeError, match=r"an algorithm was expected, but got 'signum'"):
        pliant.every(2, "signum")
    with pytest.raises(ValueError, match=r"there is no algorithm 'strange'.*signum"):
        algorithm_named("strange", torch.optim.SGD([torch.zeros(1)], lr=1.0))

    class Forgetful(signum):
        @property
        def node(self):
            return Custom(name="signum")

    with pytest.raises(ValueError, match=r"Custom\(name='signum'\) is meant, .* carries out .*'beta': 0.9"):
        pliant.partition({"*": Forgetful(beta=0.3)})


class Half:
    """Weights half of the way towards everybody's mean: an exchange between steps of the user's own."""

    node = Custom(name="half", exchanges="weights")

    def __eq__(self, other):
        return isinstance(other, Half)

    __hash__ = None

    def slots(self, shape, comm):
        return {"seen": (1,)}

    def prepare(self, bucket, comm):
        return torch.empty(bucket.numel)

    def on_ready(self, bucket, state, comm, context):
        pass

    def reset_reference(self, bucket, state):
        pass

    def exchange_weights(self, bucket, state, comm, context):
        mean = state.workspace.copy_(bucket.flat)
        comm.all_reduce(mean).wait()
        bucket.flat.lerp_(mean.div_(comm.size), 0.5)
        for seen in state.of["seen"].values():
            seen.add_(1)


def test_one_that_exchanges_weights():
    pliant.register("half", Half)

    def body(place):
        ddp, optimizer, run = relax(place, "half", lr=0.0)
        with run, torch.no_grad():
            ddp.module.head.bias.fill_(place.rank)
            optimizer.zero_grad()
            optimizer.step()
            seen = run.state_dict()[f"rank{place.rank}"]["slots"]["head.bias"]["seen"]
            return float(ddp.module.head.bias[0]), float(seen)

    assert pliant.run_world(3, body, timeout_s=30) == [(0.5, 1.0), (1.0, 1.0), (1.5, 1.0)]
