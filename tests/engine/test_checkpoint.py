"""A run that is saved goes on as if nothing had happened, or says what is missing."""

import copy
import random
import threading
import warnings

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import pliant
from models import new_ddp, train, weights
from pliant.engine.background_average import BackgroundAverage
from pliant.engine.weight_exchange import WeightExchange
from tables import ALGORITHMS, BETWEEN_STEPS, NETWORK_DECIDES, optimizer_for, sampled

EVERY_ALGORITHM = {**ALGORITHMS, **BETWEEN_STEPS}
RESUMED = [name for name in EVERY_ALGORITHM if name not in NETWORK_DECIDES]
HOSTS = [[0], [1]]
_one_at_a_time = threading.Lock()


def adam_for(name, parameters):
    """An optimizer with a state that ranks do not share where weights are exchanged."""
    if name in ("onebit_adam", "decoupled_momentum", "demo-mean"):
        return optimizer_for(name, parameters)  # these allow no other
    if name in BETWEEN_STEPS or name.startswith(("owner", "sharded_optimizer")):
        return torch.optim.AdamW(parameters, lr=1e-2)
    corrects = any(getattr(node, "momentum", 0.0) for node in EVERY_ALGORITHM[name].walk())  # with its own
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.0 if corrects else 0.9)


def relaxed(place, name, seed=0, make=adam_for):
    ddp = new_ddp(place, seed=seed)
    optimizer = make(name, ddp.parameters())
    return ddp, optimizer, pliant.relax(ddp, optimizer, EVERY_ALGORITHM[name], hosts=HOSTS, timeout_s=20)


def whole_state(ddp, optimizer, run):
    model, of_optimizer = get_state_dict(ddp, optimizer)
    return {"model": model, "optim": of_optimizer, "pliant": run.state_dict()}


class Folder:
    """Stands in for DCP between processes: what ranks have under one name is kept once, the last one's."""

    def __init__(self, path, size):
        self.path, self.states, self.all_came = path, {}, threading.Barrier(size)

    def save(self, state, place):
        self.states[place.rank] = state
        self.all_came.wait(60)
        if place.rank == 0:
            merged = {}
            for _, each in sorted(self.states.items()):
                merge(merged, each)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that there is one process
                dcp.save(merged, checkpoint_id=self.path, no_dist=True)
        self.all_came.wait(60)

    def load(self, state):
        with _one_at_a_time, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dcp.load(state, checkpoint_id=self.path, no_dist=True)


def merge(into, other):
    for key, value in other.items():
        if isinstance(value, dict):
            merge(into.setdefault(key, {}), value)
        else:
            into[key] = value


@pytest.mark.parametrize("name", sampled(RESUMED))
def test_the_idiom_of_torch_resumes_to_the_bit(name, tmp_path):
    """get_state_dict, dcp.save; dcp.load, set_state_dict: whose optimizer is kept for all ranks does not matter."""
    folder = Folder(tmp_path / "saved", 2)

    def body(place):
        ddp, optimizer, run = relaxed(place, name)
        with run:
            train(ddp, optimizer, place.rank, range(4))
            optimizer.zero_grad()
            folder.save(whole_state(ddp, optimizer, run), place)
            losses = train(ddp, optimizer, place.rank, range(4, 8))
            mine = weights(ddp).clone()
        again, other, run = relaxed(place, name, seed=5)
        with run:
            state = whole_state(again, other, run)
            folder.load(state)
            set_state_dict(again, other, model_state_dict=state["model"], optim_state_dict=state["optim"])
            run.load_state_dict(state["pliant"])
            assert run.steps == 4
            return train(again, other, place.rank, range(4, 8)) == losses and torch.equal(mine, weights(again))

    assert pliant.run_world(2, body, timeout_s=100) == [True] * 2


def test_an_optimizer_loaded_with_another_ranks_parts_is_refused_until_the_run_is_loaded():
    """Each rank's parts of cut parameters have keys of that rank, so that no rank overwrites another's."""

    def body(place):
        ddp, optimizer, run = relaxed(place, "sharded_optimizer")
        with run:
            train(ddp, optimizer, place.rank, range(1))
            saved = copy.deepcopy((optimizer.state_dict(), run.state_dict()))
            cut = [held for state in saved[0]["state"].values() if isinstance(held := state["exp_avg"], dict)]
            assert {tuple(held) for held in cut} == {(f"rank{place.rank}",)}
            others = copy.deepcopy(saved[0])
            for state in others["state"].values():
                for held in [held for held in state.values() if isinstance(held, dict)]:
                    held[f"rank{1 - place.rank}"] = held.pop(f"rank{place.rank}")
            optimizer.load_state_dict(others)
            told = f"the part of rank{1 - place.rank} of .* but rank {place.rank} owns .* load the run after the optim"
            with pytest.raises(ValueError, match=told):
                optimizer.step()
            run.load_state_dict(saved[1])
            torch.testing.assert_close(optimizer.state_dict()["state"], saved[0]["state"], rtol=0, atol=0)
            train(ddp, optimizer, place.rank, range(1, 2))
        whole = {p.shape == x.shape for p, s in optimizer.state.items() for x in s.values() if x.dim()}
        plain = not any(isinstance(x, dict) for s in optimizer.state_dict()["state"].values() for x in s.values())
        return bool(cut) and whole == {True} and plain

    assert pliant.run_world(2, body, timeout_s=30) == [True] * 2


CODE_BUCKETS = ("onebit", "qsgd4", "topk", "every-exact", "late-onebit", "tasc-local")
"""One of each kind of algorithm whose result depends on what lies in which bucket."""


@pytest.mark.parametrize("when", ["after the first pass", "before a pass in settled buckets", "static graph"])
@pytest.mark.parametrize("name", CODE_BUCKETS)
def test_the_buckets_of_the_next_pass_are_saved(name, when):
    """DDP lays them out anew after its first pass, and they stay so when a plan or a run takes the place of another."""

    def body(place):
        options = {"static_graph": when == "static graph"}
        ddp = new_ddp(place, **options)
        optimizer = adam_for(name, ddp.parameters())
        if when == "before a pass in settled buckets":
            with pliant.relax(ddp, optimizer, pliant.allreduce(), timeout_s=20):
                train(ddp, optimizer, place.rank, range(3))
        ends = []
        with pliant.relax(ddp, optimizer, EVERY_ALGORITHM[name], hosts=HOSTS, timeout_s=20) as run:
            if when == "static graph":
                train(ddp, optimizer, place.rank, [8])
                with pytest.raises(ValueError, match="static_graph=True lays out its buckets after its second pass"):
                    run.state_dict()
            train(ddp, optimizer, place.rank, range(0 if when == "before a pass in settled buckets" else 1))
            saved = copy.deepcopy((ddp.module.state_dict(), optimizer.state_dict(), run.state_dict()))
            train(ddp, optimizer, place.rank, range(1, 5))
            ends.append(weights(ddp))
        again = new_ddp(place, seed=5, **options)
        other = adam_for(name, again.parameters())
        with pliant.relax(again, other, EVERY_ALGORITHM[name], hosts=HOSTS, timeout_s=20) as run:
            again.module.load_state_dict(saved[0])
            other.load_state_dict(saved[1])
            run.load_state_dict(saved[2])
            train(again, other, place.rank, range(1, 5))
            ends.append(weights(again))
        return torch.equal(*ends)

    assert pliant.run_world(2, body, timeout_s=60) == [True] * 2


def own(state):
    return next(iter(state.values()))


def tensors_of(ddp, optimizer, run):
    state = whole_state(ddp, optimizer, run)
    return state["model"], state["optim"]["state"], state["pliant"]


def without(*keys):
    def spoil(state):
        for key in keys:
            own(state).pop(key)

    return spoil


def put(path, value):
    def spoil(state):
        *way, last = path
        at = own(state)
        for key in way:
            at = at[key]
        at[last] = value(at[last]) if callable(value) else value

    return spoil


def nan_like(tensor):
    return torch.full_like(tensor, torch.nan, dtype=torch.float32)


def backwards(counters):
    return counters - torch.tensor([1, 1, 0, 0, 0])


REFUSED = {
    "an earlier Pliant's": ("onebit", without("optimizer", "random"), "lacks optimizer, random.*earlier Pliant"),
    "no optimizer of ranks": ("gossip", without("optimizer"), "each rank has an optimizer state of its own"),
    "optimizer in part": (
        "gossip",
        put(["optimizer", "state"], {}),
        "nothing of this rank's optimizer for conv.weight",
    ),
    "another optimizer's": (
        "gossip",
        put(["optimizer", "state", "head.bias"], {"momentum_buffer": torch.zeros(5)}),
        "another optimizer's 'momentum_buffer' for head.bias",
    ),
    "a shape": ("onebit", put(["slots", "head.bias", "residual"], torch.zeros(3)), r"head\.bias residual.*\(3,\)"),
    "a type": ("onebit", put(["slots", "head.bias", "residual"], torch.Tensor.double), "torch.float64 of shape"),
    "a slot": ("onebit", put(["slots", "head.bias"], {}), "not this run's"),
    "NaN counters": ("onebit", put(["counters"], nan_like), "counters is torch.float32"),
    "NaN work": ("local_sgd", put(["weights", "work"], lambda t: t * torch.nan), "work is counted"),
    "exchanges to come": ("local_sgd", put(["weights", "counters"], lambda t: t + 99), "damaged: exchanges"),
    "looks below 0": (
        "tasc-curved",
        put(["curvature", "counters"], lambda t: t * 0 - 1),
        "looks at the curvature are counted",
    ),
    "a negative step": ("onebit", put(["counters"], lambda t: t - 99), "99 ranks|counts -|ranks, this run"),
    "a bucket below 0": ("onebit", put(["layout"], lambda t: t.index_fill(0, torch.tensor([2]), -5)), "its layout"),
    "a place without those before": ("onebit", put(["layout"], lambda t: t + torch.tensor([0, 1])), "its layout"),
    "two at one place": ("onebit", put(["layout"], lambda t: t * 0), "its layout"),
    "no tensors": ("onebit", put(["slots"], 3), "not this run's"),
    "a debt lost": ("onebit", put(["counters"], lambda t: t + torch.tensor([0, 0, 0, 0, 1])), "0 of 1 gradients"),
    "one step less": ("randomk", put(["counters"], backwards), "rank 0 is at step 3, rank 1 is at step 4"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_does_not_fit_on_one_rank_is_refused_on_all_before_anything_is_changed(what):
    name, spoil, sentence = REFUSED[what]

    def body(place):
        ddp, optimizer, run = relaxed(place, name)
        with run:
            train(ddp, optimizer, place.rank, range(4))
            state = copy.deepcopy(run.state_dict())
            if place.rank == 0:
                spoil(state)
            train(ddp, optimizer, place.rank, range(4, 6))
            before = copy.deepcopy(tensors_of(ddp, optimizer, run))
            with pytest.raises(ValueError, match=sentence):
                run.load_state_dict(state)
            torch.testing.assert_close(tensors_of(ddp, optimizer, run), before, rtol=0, atol=0, equal_nan=True)
            train(ddp, optimizer, place.rank, range(6, 8))  # it goes on
        return True

    assert pliant.run_world(2, body, timeout_s=60) == [True] * 2


def test_an_optimizer_that_was_not_loaded_is_missed():
    def body(place):
        ddp, optimizer, run = relaxed(place, "onebit")
        with run:
            train(ddp, optimizer, place.rank, range(2))
            state = copy.deepcopy(run.state_dict())
        *_, run = relaxed(place, "onebit")
        with run, pytest.raises(ValueError, match="load the optimizer before the run"):
            run.load_state_dict(state)

    pliant.run_world(2, body)


def test_what_a_switch_has_left_to_be_paid_is_saved():
    def body(place):
        ends = []
        for resumed in (False, True):
            ddp, optimizer, run = relaxed(place, "onebit", make=optimizer_for)
            with run:
                train(ddp, optimizer, place.rank, range(3))
                run.switch("allreduce")
                if resumed:
                    state = copy.deepcopy(run.state_dict())
                    model = copy.deepcopy(ddp.module.state_dict())
                    train(ddp, optimizer, place.rank, [8, 9])
                    ddp.module.load_state_dict(model)
                    run.load_state_dict(state)
                train(ddp, optimizer, place.rank, range(3, 5))
            ends.append(weights(ddp))
        return torch.equal(*ends)

    assert pliant.run_world(2, body) == [True] * 2


class WithTable(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(20, 8, sparse=True)
        self.head = torch.nn.Linear(8, 200)

    def forward(self, ids):
        return self.head(self.table(ids))


@pytest.mark.parametrize("when", [1, 3])
def test_sparse_gradients_resume_too(when):
    def made(place, seed):
        ddp = new_ddp(place, seed=seed, model=WithTable)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
        return ddp, optimizer, pliant.relax(ddp, optimizer, pliant.onebit(), timeout_s=20)

    def train_ids(place, ddp, optimizer, steps):
        for step in steps:
            optimizer.zero_grad()
            ids = torch.randint(20, (16,), generator=torch.Generator().manual_seed(10 * step + place.rank))
            ddp(ids).square().mean().backward()
            optimizer.step()
        return weights(ddp)

    def body(place):
        ddp, optimizer, run = made(place, 0)
        with run:
            train_ids(place, ddp, optimizer, range(when))
            saved = copy.deepcopy((ddp.module.state_dict(), run.state_dict()))
            wanted = train_ids(place, ddp, optimizer, range(when, 6))
        ddp, optimizer, run = made(place, 5)
        with run:
            ddp.module.load_state_dict(saved[0])
            run.load_state_dict(saved[1])
            return torch.equal(train_ids(place, ddp, optimizer, range(when, 6)), wanted)

    assert pliant.run_world(2, body) == [True] * 2


def test_random_generators_go_on_where_they_stood():
    def draw():
        with_spare = [random.gauss(0, 1), np.random.standard_normal()]  # whose second number is kept for later
        return [torch.rand(3).tolist(), random.random(), np.random.rand(), *with_spare]

    def body(place):
        *_, run = relaxed(place, "gossip")
        with run:
            draw()
            state = copy.deepcopy(run.state_dict())
            first = draw()
            draw()
            run.load_state_dict(state)
            return first == draw()

    before = torch.get_rng_state()
    assert pliant.run_world(1, body) == [True]
    torch.set_rng_state(before)


@pytest.mark.parametrize("stateless", [False, True])
def test_making_an_optimizers_state_is_no_step(stateless):
    """get_state_dict steps with a rate and gradients of zero; on one rank alone it must not make others wait."""

    def body(place):
        ddp = new_ddp(place)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.0 if stateless else 0.9)
        with pliant.relax(ddp, optimizer, pliant.gossip(), timeout_s=20) as run:
            if place.rank == 0:
                get_state_dict(ddp, optimizer)
            assert run.steps == 0
            train(ddp, optimizer, place.rank, range(3))
            optimizer.zero_grad()
            if place.rank == 1:
                get_state_dict(ddp, optimizer)
            assert run.steps == 3

    pliant.run_world(2, body)


@pytest.mark.parametrize(
    ("what", "spoil", "sentence"),
    [
        ("randomk", lambda run: setattr(run._dispatcher, "num_backwards", 7), "rank 1 is after exchange 8"),
        ("bytegrad", lambda run: setattr(run._dispatcher, "step", 7), "rank 0 is at step 1, rank 1 is at step 8"),
        ("allreduce", lambda run: setattr(run, "_plan_number", 7), "has another plan than the majority"),
        ("local_sgd", lambda run: run._executor.of(WeightExchange)[0].spoil(), "rank 1 is after exchange of weights 8"),
        (
            "async_average",
            lambda run: setattr(run._executor.of(BackgroundAverage)[0], "rounds", [7]),
            "rank 1 is after exchange of weights 7",
        ),
    ],
)
def test_ranks_that_do_not_do_the_same_find_out_in_the_first_step(what, spoil, sentence, monkeypatch):
    def make_spoilt(weights):
        weights._parts[0].round += 7

    monkeypatch.setattr("pliant.engine.weight_exchange.WeightExchange.spoil", make_spoilt, raising=False)

    def body(place):
        ddp = new_ddp(place)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
        algorithm = {**EVERY_ALGORITHM, "local_sgd": pliant.local_sgd(1)}[what]
        run = pliant.relax(ddp, optimizer, algorithm, timeout_s=20)
        if place.rank == 1:
            spoil(run)
        with pytest.raises(pliant.ReplicasDisagreeError, match=sentence), run:
            train(ddp, optimizer, place.rank, range(2))

    pliant.run_world(2, body, timeout_s=60)
