"""Tables as a part of a model: under DDP, compiled, beside an optimizer of torch."""

import pytest
import torch
from torch import nn

from pliant.comm import run_world
from pliant.recsys import ShardedEmbeddingBag
from pliant.spec import TableLayout
from recsys.embedding.test_beside_torch import PLAIN, everything
from recsys.embedding.test_module import compare
from recsys.embedding.whole import first_weights, inputs_of, plan_of
from waiting import COMPILES_IN_THREADS


class Model(nn.Module):
    def __init__(self, bags):
        super().__init__()
        self.bags = bags
        self.dense = nn.Linear(9, 1)

    def forward(self, inputs):
        return self.dense(torch.cat(self.bags(inputs), 1))


def test_inside_a_model_of_ddp():
    plan = plan_of(TableLayout(kind="rows"), 2, tables=PLAIN)
    start = nn.Linear(9, 1).state_dict()

    def be(place):
        model = Model(ShardedEmbeddingBag(plan, place.comm, lr=0.1, weights=first_weights(PLAIN)))
        model.dense.load_state_dict(start)
        ddp = nn.parallel.DistributedDataParallel(model, process_group=place.process_group)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        for step in range(3):
            optimizer.zero_grad()
            ddp(everything(place.rank, step)[:2]).square().mean().backward()
            optimizer.step()
            model.bags.step()
        assert list(model.state_dict()) == ["dense.weight", "dense.bias"]
        model.load_state_dict(model.state_dict())
        return model.bags.full_weights(), model.dense.weight.detach()

    a, b = run_world(2, be)
    compare(a[0], b[0], exact=True)
    assert torch.equal(a[1], b[1])
    whole = [w.clone().requires_grad_() for w in first_weights(PLAIN)]
    dense = nn.Linear(9, 1)
    dense.load_state_dict(start)
    optimizer = torch.optim.SGD([*whole, *dense.parameters()], lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        for rank in range(2):
            out = [
                nn.functional.embedding_bag(ids, w, offsets, mode=t.pooling, padding_idx=t.padding_id)
                for t, w, (ids, offsets) in zip(PLAIN, whole, everything(rank, step), strict=True)
            ]
            (dense(torch.cat(out, 1)).square().mean() / 2).backward()
        optimizer.step()
    compare(a[0], [w.detach() for w in whole], exact=False)


def test_one_rank_alone_saves_the_model_around_the_tables():
    plan = plan_of(TableLayout(kind="replicated"), 2, tables=PLAIN, every=3)

    def be(place):
        model = Model(ShardedEmbeddingBag(plan, place.comm, lr=0.1))
        out = model(everything(place.rank, 0)[:2])
        if place.rank == 0:
            assert list(model.state_dict()) == ["dense.weight", "dense.bias"]
        out.sum().backward()
        model.bags.step()
        if place.rank == 0:  # while gradients of replicas wait
            assert list(model.state_dict()) == ["dense.weight", "dense.bias"]
        assert model.bags.age == 1

    run_world(2, be, timeout_s=5.0)


class Sharing(nn.Module):
    """Tables in the midst of what is compiled."""

    def __init__(self, bags):
        super().__init__()
        self.bags = bags
        self.scale = nn.Parameter(torch.ones(9))

    def forward(self, inputs, following):
        x = torch.cat(self.bags(inputs), 1) * self.scale
        self.bags.prefetch(following)
        return x.tanh().square().mean()


# Torch looks at the `grad` of what a graph gets from outside, and warns that there is none.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@COMPILES_IN_THREADS
@pytest.mark.parametrize("form", ["wrapped", "in place", "the module itself"])
def test_a_compiled_model_trains_to_the_bit_as_it_does_uncompiled(form):
    plan = plan_of(TableLayout(kind="rows"), 1, tables=PLAIN)

    def be(place, form):
        bags = ShardedEmbeddingBag(plan, place.comm, lr=0.1, weights=first_weights(PLAIN))
        if form == "the module itself":
            bags.compile(backend="eager")
        model = called = Sharing(bags)
        if form == "wrapped":
            called = torch.compile(model, backend="eager")
        elif form == "in place":
            model.compile(backend="eager")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batches = [inputs_of(PLAIN, place.rank, step) for step in range(4)]
        for step in range(3):
            optimizer.zero_grad()
            called(batches[step], batches[step + 1]).backward()
            optimizer.step()
            bags.step()
        bags(batches[3])
        full = bags.full_weights()
        bags.close()
        return [*full, model.scale.detach()]

    (plain,) = run_world(1, lambda place: be(place, "plain"))
    try:
        (found,) = run_world(1, lambda place: be(place, form))
    finally:
        torch.compiler.reset()
    compare(found, plain, exact=True)


def test_who_steps_an_optimizer_but_not_the_tables_is_told_once():
    plan = plan_of(TableLayout(kind="rows"), 1, tables=PLAIN)

    def be(place):
        model = Model(ShardedEmbeddingBag(plan, place.comm, lr=0.1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(4):
            model(inputs_of(PLAIN, place.rank, step)).sum().backward()
            if step % 2:  # two passes before a step
                optimizer.step()
                model.bags.step()
        model(inputs_of(PLAIN, place.rank, 4)).sum().backward()
        optimizer.step()
        return model, optimizer

    def forget(place):
        model, _ = be(place)
        model(inputs_of(PLAIN, place.rank, 5)).sum().backward()

    run_world(1, be)  # silent: warnings are errors here
    with pytest.raises(UserWarning, match=r"call the step\(\) of ShardedEmbeddingBag"):
        run_world(1, forget)


@pytest.mark.parametrize("first", ["optimizer", "tables"])
def test_a_scaler_is_refused_on_all_ranks(first):
    """Before its step where the optimizer steps first, and else at the next."""
    plan = plan_of(TableLayout(kind="rows"), 2, tables=PLAIN)

    def be(place):
        model = Model(ShardedEmbeddingBag(plan, place.comm, lr=0.1, weights=first_weights(PLAIN)))
        optimizer = torch.optim.SGD(model.dense.parameters(), lr=0.1)

        def step(scaler):
            optimizer.zero_grad()
            scaler.scale(model(everything(place.rank, 0)[:2]).square().mean()).backward()
            if first == "tables":
                model.bags.step()
            scaler.step(optimizer)
            scaler.update()
            if first == "optimizer":
                model.bags.step()

        step(torch.amp.GradScaler("cpu", enabled=False))
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        if first == "tables":
            step(scaler)
        with pytest.raises(ValueError, match=r"a GradScaler with a scale of 1024 .* train in bfloat16"):
            step(scaler)
        place.comm.barrier()  # a rank that leaves would close the group while the other still reads from it
        return True

    assert run_world(2, be) == [True, True]
