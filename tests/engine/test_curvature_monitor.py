"""Algorithms that ask for the curvature: what is written is right, and nothing else of the training changes."""

import copy
import logging
import math
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import pliant
from models import Net, batch, new_ddp, train, weights
from pliant.algorithms import CURVATURE
from pliant.curvature import GaussNewton, LossObjective, block_means, shrink_and_clip
from pliant.engine.curvature_requests import Curvature
from pliant.engine.outputs import OutputWatch
from pliant.engine.samples import batch_size, first_samples
from pliant.spec import CurvatureSpec, Custom
from tables import default_dtype

ESTIMATORS = ("gauss_newton", "hutchinson", "fisher")


@dataclass(frozen=True, kw_only=True)
class Curved:
    """The exact mean, and blocks of 16 whose curvature is felt; 1-D parameters are not looked at."""

    interval: float = 1
    beta: float = 0
    batch_share: float = 0.25
    estimator: float = 0
    asks: float = 1
    bytes_share: float = 1e9

    @property
    def node(self):
        settings = {
            k: getattr(self, k) for k in ("interval", "beta", "batch_share", "estimator", "asks", "bytes_share")
        }
        return Custom(name="curved", settings=settings)

    @property
    def curvature(self):
        if not self.asks:
            return None
        return CurvatureSpec(
            estimator=ESTIMATORS[int(self.estimator)],
            batch_share=self.batch_share,
            beta=self.beta,
            interval=int(self.interval),
            max_interval=int(self.interval),
            time_share=1e9,
            bytes_share=self.bytes_share,
        )

    def blocks(self, shape):
        numel = torch.Size(shape).numel()
        return tuple(min(16, numel - k) for k in range(0, numel, 16)) if len(shape) > 1 else ()

    def slots(self, shape, comm):
        num = len(self.blocks(shape)) if self.asks else 0
        return {CURVATURE: (num,)} if num else {}

    def prepare(self, bucket, comm):
        return None

    def on_ready(self, bucket, state, comm, context):
        comm.all_reduce(bucket.flat).wait()
        bucket.flat.mul_(1 / comm.size)


pliant.register("curved", Curved)


def relax(place, what, model=Net, lr=0.05, **options):
    ddp = new_ddp(place, model=model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=lr, momentum=0.9)
    return ddp, optimizer, pliant.relax(ddp, optimizer, what, timeout_s=20, agreement_every=1, **options)


def request(run, place):
    slots = run.state_dict()[f"rank{place.rank}"]["slots"]
    return {name: own[CURVATURE].clone() for name, own in slots.items() if CURVATURE in own}


@pytest.mark.parametrize("size", [1, 2, 3])
def test_it_is_the_mean_over_ranks_of_what_each_has_felt(size):
    own = Curved()

    def body(place):
        ddp, optimizer, run = relax(place, own)
        with run:
            train(ddp, optimizer, place.rank, range(2))
            return request(run, place), copy.deepcopy(ddp.module), run.curvature.history

    results = pliant.run_world(size, body, timeout_s=60)
    _, model, history = results[0]  # weights after the second step, and a look of that moment
    wanted = {}
    for rank in range(size):
        task = LossObjective(model=model, args=(batch(rank, 1)[0][:2],))
        found = GaussNewton().diagonal(task, torch.Generator().manual_seed(2 * size + rank))
        for name, p in model.named_parameters():
            if p.dim() > 1:
                means = block_means(found[name], own.blocks(tuple(p.shape)))
                wanted[name] = wanted.get(name, 0) + means / size
    for slots, _, own_history in results:
        assert set(slots) == set(wanted)
        for name, x in slots.items():
            numels = own.blocks(tuple(model.get_parameter(name).shape))
            assert torch.allclose(x, shrink_and_clip(wanted[name], numels, shrink=0.5, clip=50), rtol=1e-4)
            assert torch.equal(x, results[0][0][name])
            whole = float(wanted[name] @ torch.tensor(numels, dtype=torch.float32)) / sum(numels)
            assert own_history[-1].means[name] == pytest.approx(whole, rel=1e-4)
        assert [look.step for look in own_history] == [1, 2]
        assert [(k.ranks, k.next_steps) for k in own_history] == [(k.ranks, k.next_steps) for k in history]


def test_looks_are_averaged_without_the_bias_of_the_start():
    seen = []

    def body(place):
        ddp, optimizer, run = relax(place, Curved(beta=0.5), lr=0.0)
        with run:
            for step in range(3):
                train(ddp, optimizer, place.rank, [step])
                seen.append(request(run, place))
            return ddp.module

    (model,) = pliant.run_world(1, body, timeout_s=60)
    name, own, mean = "hidden.weight", Curved(), 0.0
    for look in range(3):
        task = LossObjective(model=model, args=(batch(0, look)[0][:2],))
        found = GaussNewton().diagonal(task, torch.Generator().manual_seed(look + 1))[name]
        numels = own.blocks(tuple(found.shape))
        mean = 0.5 * mean + 0.5 * block_means(found, numels)
        wanted = shrink_and_clip(mean / (1 - 0.5 ** (look + 1)), numels, shrink=0.5, clip=50)
        assert torch.allclose(seen[look][name], wanted, rtol=1e-4)


def watchers(ddp):
    return getattr(vars(ddp).get("_run_ddp_forward"), "watchers", [])


@pytest.mark.parametrize("estimator", range(3), ids=ESTIMATORS)
def test_training_is_the_same_bit_for_bit(estimator):
    def body(place):
        ends = []
        for what in (Curved(estimator=estimator), Curved(asks=0)):
            ddp, optimizer, run = relax(place, what)
            with run:
                losses = train(ddp, optimizer, place.rank, range(5))
                stats = run.stats()
                assert len(run.curvature.history) == (5 if what.asks else 0)
                assert (stats["curvature_s"] > 0) == bool(what.asks)
                assert stats["exchanges"] == 5
                assert all(p.grad is not None for p in ddp.parameters())
            ends.append((weights(ddp), losses, [b.clone() for b in ddp.module.buffers()]))
            assert not watchers(ddp)
        (w, losses, buffers), (w2, losses2, buffers2) = ends
        return torch.equal(w, w2), losses == losses2, all(map(torch.equal, buffers, buffers2))

    assert pliant.run_world(2, body, timeout_s=60) == [(True, True, True)] * 2


@pytest.mark.extended
def test_in_every_combination():
    own = Curved()
    wholes = {
        "every": pliant.every(2, own),
        "delayed": pliant.delayed(own),
        "after": pliant.after(2, own, then=pliant.bf16()),
        "then": pliant.after(2, pliant.bf16(), then=own),
        "hosts": pliant.between_hosts(own),
        "local": pliant.diloco(2, averaging=own),
        "some": pliant.partition({"head.*": pliant.bytegrad(), "*": own}),
    }

    def body(place):
        ddp, optimizer, run = relax(place, "allreduce", hosts=[[0, 1], [2]])
        seen = {}
        with run:
            train(ddp, optimizer, place.rank, [0])
            assert not run.curvature.history
            for k, (name, what) in enumerate(wholes.items()):
                run.switch(what)
                train(ddp, optimizer, place.rank, range(3 * k, 3 * k + 3))
                slots = run.state_dict()[f"rank{place.rank}"]["slots"].items()
                found = {n: t for n, s in slots for slot, t in s.items() if slot.endswith(CURVATURE)}
                assert all(t.gt(0).all() for t in found.values())
                seen[name] = found
                assert len(run.curvature.history) == 3 * (k + 1)
            run.switch("allreduce")
            assert not watchers(ddp)
        return {name: {n: t.sum().item() for n, t in found.items()} for name, found in seen.items()}

    results = pliant.run_world(3, body, timeout_s=90)
    for name in wholes:
        kept = [r[name] for r in results if r[name]]
        assert all(k == kept[0] for k in kept)
        assert len(kept) == (2 if name == "hosts" else 3)  # there, only leaders exchange
        assert ("head.weight" in kept[0]) == (name != "some")


def test_what_was_felt_passes_to_a_plan_that_asks_for_the_same():
    what = Curved(interval=5, beta=0.9)

    def body(place):
        ddp, optimizer, run = relax(place, what)
        with run:
            train(ddp, optimizer, place.rank, range(3))
            before = request(run, place)
            run.switch(pliant.every(2, what))
            same = all(torch.equal(x, before[n]) for n, x in request(run, place).items())
            train(ddp, optimizer, place.rank, range(3, 7))
            run.switch(Curved(interval=5, beta=0.5))
            fresh = not any(x.any() for x in request(run, place).values())
            train(ddp, optimizer, place.rank, range(7, 9))
            return same, fresh, [look.step for look in run.curvature.history]

    assert pliant.run_world(2, body, timeout_s=60) == [(True, True, [1, 6, 8])] * 2


def test_save_load_continue_is_uninterrupted(tmp_path):
    what = Curved(interval=3, beta=0.9)

    def body(place):
        ddp, optimizer, run = relax(place, what)
        with run:
            train(ddp, optimizer, place.rank, range(5))
            saved = {"model": ddp.module.state_dict(), "optimizer": optimizer.state_dict(), "run": run.state_dict()}
            torch.save(saved, tmp_path / f"{place.rank}.pt")
            train(ddp, optimizer, place.rank, range(5, 12))
            one = request(run, place), [look.step for look in run.curvature.history]
        loaded = torch.load(tmp_path / f"{place.rank}.pt", weights_only=True)
        again, other, run = relax(place, what)
        with run:
            again.module.load_state_dict(loaded["model"])
            other.load_state_dict(loaded["optimizer"])
            run.load_state_dict(loaded["run"])
            train(again, other, place.rank, range(5, 12))
            two = request(run, place), [look.step for look in run.curvature.history]
        same = all(torch.equal(one[0][name], two[0][name]) for name in one[0])
        return same, torch.equal(weights(ddp), weights(again)), one[1], two[1]

    assert pliant.run_world(2, body, timeout_s=60) == [(True, True, [1, 4, 7, 10], [7, 10])] * 2


def test_a_look_that_fails_on_one_rank_is_the_last_on_all(caplog):
    caplog.set_level(logging.WARNING, "pliant")

    class Moody(Net):
        moods = None

        def forward(self, x):
            if self.moods == "bad" and len(x) == 2:
                raise ArithmeticError("not with two")
            return super().forward(x)

    def body(place):
        ddp, optimizer, run = relax(place, Curved(), model=Moody)
        with run:
            train(ddp, optimizer, place.rank, [0])
            ddp.module.moods = "bad" if place.rank == 1 else None
            train(ddp, optimizer, place.rank, range(1, 4))
            return [look.step for look in run.curvature.history], any(x.any() for x in request(run, place).values())

    assert pliant.run_world(3, body, timeout_s=30) == [([1], False)] * 3
    (record,) = caplog.records
    assert "on rank 1 a look has failed: ArithmeticError: not with two" in record.getMessage()


class Outputs(nn.Module):
    """One hidden layer, and an output in any form."""

    def __init__(self, width, form):
        super().__init__()
        self.hidden, self.head, self.form = nn.Linear(16, 24), nn.Linear(24, width), form

    def forward(self, x):
        return self.form(self.head(torch.relu(self.hidden(x.flatten(1)))))


@dataclass
class Answer:
    """An output that is no tensor."""

    values: torch.Tensor


def plain(z):
    return z


def mean_square(z):
    return z.square().mean()


CROSS = nn.CrossEntropyLoss()
BINARY = nn.BCEWithLogitsLoss()
FORMS = {  # width, form, loss of output and labels, whether it is recognized
    "softmax": (5, plain, CROSS, True),
    "tuple": (5, lambda z: (z, None), lambda z, y: CROSS(z[0], y), True),
    "dict": (5, lambda z: {"logits": z}, lambda z, y: CROSS(z["logits"], y), True),
    "binary": (1, plain, lambda z, y: BINARY(z, (y > 2).float()[:, None]), True),
    "flat": (1, lambda z: z.squeeze(-1), lambda z, y: BINARY(z, (y > 2).float()), True),
    "labels": (5, plain, lambda z, y: BINARY(z, nn.functional.one_hot(y, 5).float()), True),
    "one number": (1, plain, lambda z, y: (z - y[:, None]).square().mean(), False),
    "numbers": (5, plain, lambda z, y: (z - y[:, None]).square().mean(), False),
    "loss": (5, mean_square, lambda z, y: z, False),
    "loss in a dict": (5, lambda z: {"loss": mean_square(z)}, lambda z, y: z["loss"], False),
    "dataclass": (5, Answer, lambda z, y: mean_square(z.values), False),
    "not trained on": (5, lambda z: (z, 2 * z), lambda z, y: CROSS(z[1], y), False),
}


def looked_at(place, width, form, loss, algorithm, read=lambda run: None, optimizer=torch.optim.SGD):
    ddp = new_ddp(place, model=lambda: Outputs(width, form))
    optimizer = optimizer(ddp.parameters(), lr=0.01)
    with pliant.relax(ddp, optimizer, algorithm, timeout_s=20, agreement_every=1) as run:
        read(run)
        for step in range(4):
            x, y = batch(place.rank, step, num=16)
            optimizer.zero_grad()
            loss(ddp(x), y).backward()
            optimizer.step()
        return run.curvature.history, weights(ddp), bool(run.curvature.unsampled)


@pytest.mark.parametrize("name", FORMS)
def test_it_is_felt_where_the_loss_is_recognized_and_said_once_where_not(name, caplog):
    caplog.set_level(logging.WARNING, "pliant")
    width, form, loss, known = FORMS[name]
    algorithm = pliant.tasc(0.3, block=16)
    results = pliant.run_world(2, lambda place: looked_at(place, width, form, loss, algorithm))
    (looks, ours, unfelt), (_, others, _) = results
    assert unfelt != known
    assert torch.equal(ours, others)
    assert len(looks) == (1 if known else 0)
    assert [r.levelname for r in caplog.records] == ([] if known else ["WARNING"])
    assert all("run.curvature.reads(loss=" in r.getMessage() for r in caplog.records)
    if not known:  # then it is what it is with p=0, to the bit
        sized = pliant.tasc(0.3, block=16, power=0)
        for (_, ours, _), (_, other, _) in zip(
            results, pliant.run_world(2, lambda place: looked_at(place, width, form, loss, sized)), strict=True
        ):
            assert torch.equal(ours, other)


def test_a_loss_may_be_told(caplog):
    width, form, loss, _ = FORMS["numbers"]
    tell = lambda run: run.curvature.reads(loss="squared_error")  # noqa: E731
    for looks, _, unfelt in pliant.run_world(2, lambda p: looked_at(p, width, form, loss, Curved(), tell)):
        assert len(looks) == 4
        assert not unfelt
        assert all(mean > 0 for look in looks for mean in look.means.values())
    assert not caplog.records
    with pytest.raises(ValueError, match="the loss is 'hinge', but curvature knows cross_entropy, binary"):
        Curvature().reads(loss="hinge")


def test_nobody_looks_where_it_would_not_count(caplog):
    width, form, loss, _ = FORMS["numbers"]
    algorithm, adam = pliant.tasc(0.3, block=16), torch.optim.AdamW
    for looks, _, unfelt in pliant.run_world(1, lambda p: looked_at(p, width, form, loss, algorithm, optimizer=adam)):
        assert not looks
        assert not unfelt
    assert not caplog.records


def test_a_rank_that_sees_nothing_or_not_finite_counts_for_nothing():
    def body(place):
        ddp, optimizer, run = relax(place, Curved(), lr=0.0)
        with run:
            train(ddp, optimizer, place.rank, [0])
            before = request(run, place)
            optimizer.step()  # no forward pass on any rank: what was known stays
            same = all(torch.equal(x, before[n]) for n, x in request(run, place).items())
            read = run.curvature
            read.reads(logits=lambda z: z * (torch.inf if place.rank else 1.0))
            train(ddp, optimizer, place.rank, [1])
            return same, request(run, place)["head.weight"], ddp.module

    results = pliant.run_world(2, body, timeout_s=30)
    own, model = Curved(), results[0][2]
    found = GaussNewton().diagonal(
        LossObjective(model=model, args=(batch(0, 1)[0][:2],)), torch.Generator().manual_seed(3 * 2)
    )["head.weight"]
    numels = own.blocks(tuple(found.shape))
    for same, values, _ in results:
        assert same
        assert torch.allclose(
            values, shrink_and_clip(block_means(found, numels), numels, shrink=0.5, clip=50), rtol=1e-4
        )


def test_ranks_say_alike_what_they_have_felt_under_another_default_dtype_of_torch():
    """One has felt something, in float32, and the other nothing, of which torch would make what is its default."""

    def body(place):
        generator = torch.Generator().manual_seed(place.rank)
        x, y = torch.randn(8, 1, 4, 4, dtype=torch.float32, generator=generator), torch.arange(8) % 5
        ddp, optimizer, run = relax(place, Curved(), model=lambda: Net().float(), lr=0.0)
        with run:
            run.curvature.reads(logits=lambda z: z * (torch.inf if place.rank else 1.0))
            for _ in range(2):
                optimizer.zero_grad()
                cross_entropy(ddp(x), y).backward()
                optimizer.step()
            return request(run, place)

    with default_dtype(torch.bfloat16):
        first, second = pliant.run_world(2, body, timeout_s=30)
    assert all(torch.equal(values, second[name]) and bool(values.any()) for name, values in first.items())


def test_rows_of_an_output_are_chosen_alike_under_any_default_dtype_of_torch():
    layer = nn.Linear(4, 3)
    watch = OutputWatch(None, layer, lambda: True)
    x, y = torch.randn(300, 4), torch.randint(0, 3, (300,))  # of which the last row has no number in bfloat16
    with default_dtype(torch.bfloat16):
        cross_entropy(layer(x), y).backward()
    assert watch.loss() == ("cross_entropy", "")
    watch.close()


def test_refusals():
    both = pliant.partition({"head.*": Curved(beta=0.5), "*": Curved()})

    def body(place):
        with pytest.raises(ValueError, match=r"'conv.weight' asks.*'head.weight' as.*same settings"):
            relax(place, both)
        with pytest.raises(ValueError, match="free pace, at which they have none in common"):
            relax(place, pliant.async_average(2, averaging=Curved()))
        ddp, optimizer, run = relax(place, Curved())
        with run:
            train(ddp, optimizer, place.rank, [0])
            with pytest.raises(ValueError, match="same settings"):
                run.switch(both)
            train(ddp, optimizer, place.rank, [1])  # nothing has changed
            assert len(run.curvature.history) == 2
        return True

    assert pliant.run_world(2, body, timeout_s=30) == [True] * 2


def test_under_autocast_and_with_a_loss_of_ones_own():
    def body(place):
        ddp, optimizer, run = relax(place, Curved(estimator=1))
        with run:
            dtypes = []
            run.curvature.reads(loss=lambda z: (dtypes.append(z.dtype), z.float().square().mean())[1])
            x, _ = batch(place.rank, 0)
            with torch.autocast("cpu", torch.bfloat16):
                loss = ddp(x).float().square().mean()
            loss.backward()
            optimizer.step()
            return set(dtypes), all(t.isfinite().all() and t.any() for t in request(run, place).values())

    assert pliant.run_world(2, body, timeout_s=30) == [({torch.bfloat16}, True)] * 2


class Many(nn.Module):
    """Takes nested inputs by name."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)
        self.seen = []

    def forward(self, scale, *, batch):
        self.seen.append((len(batch["x"][0]), batch["x"][1].shape, batch["name"]))
        return (self.head(batch["x"][0]) * scale + batch["x"][1].sum(),)


def test_inputs_may_be_nested_and_evaluation_is_not_looked_at():
    def body(place):
        ddp, optimizer, run = relax(place, Curved(), model=Many)
        with run:
            x, y = torch.randn(16, 4), torch.randint(0, 3, (16,))
            given = {"x": (x, torch.zeros(3)), "name": "text"}
            cross_entropy(ddp(torch.tensor(2.0), batch=given)[0], y).backward()
            ddp.eval()
            ddp(torch.tensor(2.0), batch={**given, "x": (x[:1], torch.zeros(3))})
            ddp.train()
            with torch.no_grad():
                ddp(torch.tensor(2.0), batch={**given, "x": (x[:9], torch.zeros(3))})
            optimizer.step()
            return [n for n, *_ in ddp.module.seen], request(run, place)["head.weight"].any().item()

    assert pliant.run_world(1, body, timeout_s=30) == [([16, 1, 9, 4], True)]


def test_the_first_samples():
    x, y = torch.arange(8.0).view(8, 1).requires_grad_(), torch.arange(8)
    assert batch_size(((), {"a": None}, [{"b": torch.tensor(1.0)}, x])) == 8
    assert batch_size(("text", {})) == 0
    first, rest = first_samples((x, {"y": [y, torch.zeros(3)]}), 8, 2)
    assert first.shape == (2, 1)
    assert not first.requires_grad
    assert first.data_ptr() == x.data_ptr()
    assert rest["y"][0].tolist() == [0, 1]
    assert rest["y"][1].shape == (3,)


def test_looks_stay_within_their_share_of_the_bytes():
    own = Curved(bytes_share=0.02)  # blocks of 16: a look sends a sixteenth of a step's bytes or a little more

    def body(place):
        ddp, optimizer, run = relax(place, own)
        with run:
            train(ddp, optimizer, place.rank, range(8))
            blocks = [own.blocks(tuple(p.shape)) for p in ddp.parameters() if p.dim() > 1]
            return [(look.step, look.next_steps) for look in run.curvature.history], blocks

    history, blocks = pliant.run_world(2, body, timeout_s=60)[0]
    least = math.ceil(sum(map(len, blocks)) / (0.02 * sum(map(sum, blocks))))
    assert least > 3
    assert history[0] == (1, least)
    assert [step for step, _ in history] == list(range(1, 9, least))
