"""Momenta that Muon needs, by differences (EF21-Muon) and in low rank (Dion), against their boxes in NumPy."""

import numpy as np
import pytest
import torch
from torch import nn

import pliant
from models import new_ddp
from pliant.algorithms import algorithm_named
from pliant.algorithms.registry import is_adaptive
from pliant.collectives.lowrank import first_factor
from pliant.spec import CodecSpec, ScatterGather

ROWS, COLUMNS, MU = 24, 20, 0.9
SHAPE = (ROWS, COLUMNS)
SIGN = ScatterGather(codec=CodecSpec(name="sign", settings={"block": 32}), feedback="both")


class Given(nn.Module):
    """A matrix and a vector whose gradients are what the model is called with, and the sums of its columns."""

    def __init__(self):
        super().__init__()
        self.matrix, self.vector = nn.Parameter(torch.zeros(SHAPE)), nn.Parameter(torch.zeros(COLUMNS))

    def forward(self, g):
        return (self.matrix * g).sum() + (self.vector * g.sum(0)).sum()


def gradient(rank, step):
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(100 * step + rank))


def means(size, steps):
    return [np.mean([gradient(rank, step).double().numpy() for rank in range(size)], axis=0) for step in range(steps)]


def sgd(model):
    return [torch.optim.SGD(model.parameters(), lr=0.0)]


def muon(momentum, **settings):
    return lambda model: [
        torch.optim.Muon([model.matrix], lr=0.1, momentum=momentum, **settings),
        torch.optim.AdamW([model.vector], lr=0.1),
    ]


def dion(rank):
    return lambda model: [
        pliant.Dion([model.matrix], lr=0.1, rank=rank, momentum=0.0, weight_decay=0.2),
        torch.optim.AdamW([model.vector], lr=0.1),
    ]


def trained(place, what, steps, optimizers_of=sgd, of=gradient, **options):
    """Return, step by step, the gradient that the matrix's optimizer got, and both weights; and the run's slots."""
    model, got, weights = Given(), [], []
    optimizers = optimizers_of(model)
    given = optimizers if len(optimizers) > 1 else optimizers[0]
    with pliant.relax(model, given, what, group=place.process_group, timeout_s=20, **options) as run:
        for step in range(steps):
            for optimizer in optimizers:
                optimizer.zero_grad()
            run.model(of(place.rank, step)).backward()
            got.append(model.matrix.grad.clone())
            for optimizer in optimizers:
                optimizer.step()
            weights.append((model.matrix.detach().clone(), model.vector.detach().clone()))
        slots = run.state_dict()[f"rank{place.rank}"]["slots"]
        slots = {name: {key: value.clone() for key, value in own.items()} for name, own in slots.items()}
    return torch.stack(got), weights, slots


# - Differences to what all know


@pytest.mark.parametrize("nesterov", [False, True])
def test_without_a_codec_it_is_muon_ddp_step_by_step(nesterov):
    """What comes is the momentum that Muon would have, or look ahead to; AdamW beside it sees the exact mean."""
    exact = pliant.ef21_muon(pliant.allreduce(), momentum=MU, nesterov=nesterov)

    def body(place):
        ours = trained(place, exact, 6, muon(0.0))
        buffers = []

        def watched(model):
            made = muon(MU, nesterov=nesterov)(model)
            made[0].register_step_post_hook(
                lambda optimizer, *_: buffers.append(optimizer.state[model.matrix]["momentum_buffer"].clone())
            )
            return made

        return ours, trained(place, "allreduce", 6, watched), torch.stack(buffers)

    for (got, ours, _), (mean, theirs, _), buffers in pliant.run_world(3, body, timeout_s=60):
        torch.testing.assert_close(got, mean.lerp(buffers, MU) if nesterov else buffers, rtol=1e-4, atol=1e-6)
        for (matrix, vector), (other, other_vector) in zip(ours, theirs, strict=True):
            torch.testing.assert_close(matrix, other, rtol=0, atol=0.03)  # six steps of 0.1, in bfloat16
            torch.testing.assert_close(vector, other_vector, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [2, 3])
def test_it_equals_its_box(size):
    """Each rank's momentum, and what all know of it, kept apart as in the paper; the largest differences travel."""
    kept, steps = 48, 15
    averaging = pliant.topk(ratio=kept / (ROWS * COLUMNS))
    plan = pliant.partition({"matrix": pliant.ef21_muon(averaging, momentum=MU), "*": pliant.allreduce()})
    results = pliant.run_world(size, lambda place: trained(place, plan, steps)[0].numpy(), timeout_s=60)

    momenta, known = np.zeros((size, *SHAPE)), np.zeros((size, *SHAPE))
    mean, wanted = np.zeros(SHAPE), []
    for step in range(steps):
        for rank in range(size):
            momenta[rank] = MU * momenta[rank] + (1 - MU) * gradient(rank, step).double().numpy()
            difference = momenta[rank] - known[rank]
            least = np.sort(np.abs(difference), axis=None)[-kept]
            sent = np.where(np.abs(difference) >= least, difference, 0)
            known[rank] += sent
            mean += sent / size
        wanted.append(mean.copy())
    for found in results:
        np.testing.assert_array_equal(found, results[0])
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)


CODED = {
    "sign": SIGN,
    "int4": pliant.int4(),
    "sigma2": pliant.sigma2(),
    "topk": pliant.topk(0.1),
    "randomk": pliant.randomk(0.1),
    "powersgd": pliant.powersgd(rank=2),
}


@pytest.mark.extended
@pytest.mark.parametrize("name", ["sign", "int4", "topk", "powersgd", "sigma2", "randomk"])
def test_where_gradients_stay_the_estimate_becomes_the_mean_and_a_coded_gradient_does_not(name):
    def body(place):
        def fixed(rank, step):
            return gradient(rank, 0)

        momenta = trained(place, pliant.ef21_muon(CODED[name], momentum=0.8), 300, of=fixed)[0]
        return momenta[-1], trained(place, CODED[name], 20, of=fixed)[0][-1]

    mean = torch.from_numpy(means(3, 1)[0]).float()
    for estimate, coded in pliant.run_world(3, body, timeout_s=100):
        assert float((estimate - mean).norm() / mean.norm()) < 0.01
        assert float((coded - mean).norm() / mean.norm()) > 0.03


def test_one_rank_keeps_its_momentum_whole():
    found = pliant.run_world(1, lambda place: trained(place, pliant.ef21_muon(SIGN, momentum=MU), 5)[0])[0]
    buffer = torch.zeros(SHAPE)
    for step, got in enumerate(found):
        buffer.lerp_(gradient(0, step), 1 - MU)
        torch.testing.assert_close(got, buffer, rtol=1e-5, atol=1e-6)


MOMENTA = {"ef21": pliant.ef21_muon(momentum=MU), "topk": pliant.ef21_muon(pliant.topk(0.1)), "dion": pliant.dion(2)}


@pytest.mark.parametrize("name", MOMENTA)
def test_an_overflow_on_one_rank_is_seen_by_all_and_enters_nothing_that_is_kept(name):
    def body(place):
        def spoiled(rank, step):
            return gradient(rank, step) * (torch.inf if (rank, step) == (1, 2) else 1.0)

        without = trained(place, MOMENTA[name], 2)[2]
        got, _, after = trained(place, MOMENTA[name], 3, of=spoiled, nonfinite="propagate")
        return got.flatten(1).isfinite().all(1).tolist(), without, after

    for finite, without, after in pliant.run_world(3, body, timeout_s=60):
        assert finite == [True, True, False]
        for parameter, own in without.items():
            for slot, tensor in own.items():
                assert torch.equal(after[parameter][slot], tensor), (parameter, slot)


@pytest.mark.parametrize("name", MOMENTA)
def test_hosts_exchange_momenta_of_what_their_ranks_add_up(name):
    """On two hosts of equal gradients inside, what each host's momentum comes to is that of its rank alone."""

    def of_host(rank, step):
        return gradient(rank // 2, step)

    def body(place):
        return trained(place, pliant.between_hosts(MOMENTA[name]), 6, of=of_host, hosts=[[0, 1], [2, 3]])[0]

    alone = pliant.run_world(2, lambda place: trained(place, MOMENTA[name], 6)[0], timeout_s=60)[0]
    results = pliant.run_world(4, body, timeout_s=60)
    for found in results:
        assert torch.equal(found, results[0])
    error = (results[0] - alone).flatten(1).norm(dim=1) / alone.flatten(1).norm(dim=1)
    assert float(error.median()) < 1e-4  # one rounding of a code apart, now and then


# - Low rank


def box(rank, gradients):
    """Yield the weights of Dion's box, all in float64."""
    w, m, q = np.zeros(SHAPE), np.zeros(SHAPE), first_factor(rank, COLUMNS).double().numpy().T
    for g in gradients:
        m += g
        p, _ = np.linalg.qr(m @ q)
        r = m.T @ p
        m -= (1 - MU) * p @ r.T
        q = r / np.linalg.norm(r, axis=0)
        w = (1 - 0.1 * 0.2) * w - 0.1 * np.sqrt(ROWS / COLUMNS) * p @ q.T
        yield w


@pytest.mark.parametrize("size", [1, 2, 3])
def test_dion_of_any_ranks_is_its_box_of_the_mean_gradient(size):
    """Momenta stay with their ranks, and their mean is the one momentum of the box; so do equal gradients show."""
    what = pliant.dion(rank=3, momentum=MU)
    wanted = np.stack(list(box(3, means(size, 12))))
    for got, weights, _ in pliant.run_world(size, lambda place: trained(place, what, 12, dion(3)), timeout_s=60):
        np.testing.assert_allclose(torch.stack([matrix for matrix, _ in weights]).numpy(), wanted, rtol=0, atol=2e-3)
        assert all(torch.linalg.matrix_rank(each, rtol=1e-4) == 3 for each in got)


def test_a_momentum_that_is_no_smaller_as_factors_travels_whole():
    """Then what comes is the mean of all momenta, of matrices as of vectors."""
    found = pliant.run_world(2, lambda place: trained(place, pliant.dion(momentum=MU), 5)[0], timeout_s=60)
    momentum = np.zeros(SHAPE)
    for step, mean in enumerate(means(2, 5)):
        momentum = MU * momentum + mean
        for got in found:
            np.testing.assert_allclose(got[step].numpy(), momentum, rtol=1e-5, atol=1e-5)


def test_bytes_of_factors_are_those_of_the_formula():
    what = pliant.partition({"matrix": pliant.dion(rank=2), "*": pliant.allreduce()})

    def body(place):
        model = Given()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        with pliant.relax(model, optimizer, what, group=place.process_group, timeout_s=20) as run:
            sent = []
            for step in range(2):
                run.model(gradient(place.rank, step)).backward()
                sent.append(run.stats()["sent_bytes"])
        return sent[1] - sent[0]

    vector = 2 * (3 - 1) / 3 * 4 * COLUMNS
    for sent in pliant.run_world(3, body, timeout_s=60):
        assert sent == pytest.approx((3 - 1) * 4 * 2 * (ROWS + COLUMNS) + vector, abs=8)


# - Optimizers


@pytest.mark.parametrize("name", MOMENTA)
def test_optimizers_that_do_not_fit_are_refused_in_a_sentence(name):
    def body(place):
        ddp = new_ddp(place, model=Given)
        optimizers = muon(0.95)(ddp.module)
        with pytest.raises(ValueError, match=r"has momentum 0\.95 and .* give the optimizer momentum 0"):
            pliant.relax(ddp, optimizers, MOMENTA[name])
        for adaptive in (torch.optim.AdamW, torch.optim.RMSprop):
            optimizer, said = adaptive(ddp.parameters(), lr=0.1), f"stepped by {adaptive.__name__}"
            with pytest.raises(ValueError, match=rf"all its parameters are {said}, .*Muon\(matrices, mom"):
                pliant.relax(ddp, optimizer, MOMENTA[name])

    pliant.run_world(1, body)


def test_adaptive_optimizers_are_those_that_divide_by_the_gradients_size():
    optim, matrix = torch.optim, [nn.Parameter(torch.zeros(SHAPE))]
    divide = (optim.Adam, optim.NAdam, pliant.SlowAdamW, optim.Adafactor, optim.RMSprop, optim.Adagrad, optim.Adadelta)
    assert all(is_adaptive(make(matrix)) for make in (*divide, optim.Rprop))
    assert not any(is_adaptive(make(matrix)) for make in (optim.SGD, optim.ASGD, optim.Muon, pliant.Dion))


def test_another_rank_than_that_of_dions_step_is_refused():
    """Of more directions those that are missing would be rounding, and of fewer some would decay without a step."""
    said = r"steps along 3 directions of a matrix, but .* momenta of rank 4: .*; give both one rank"

    def body(place):
        ddp = new_ddp(place, model=Given)
        with pytest.raises(ValueError, match=said):
            pliant.relax(ddp, dion(3)(ddp.module), pliant.dion(rank=4))
        pliant.relax(ddp, dion(3)(ddp.module), pliant.powersgd(rank=4), timeout_s=20).close()

    pliant.run_world(1, body)


def test_by_name_dion_takes_the_rank_of_its_optimizer():
    matrix = nn.Parameter(torch.zeros(SHAPE))
    groups = [{"params": [nn.Parameter(torch.zeros(SHAPE))], "rank": rank} for rank in (8, 4)]
    with pytest.raises(ValueError, match=r"whose groups have 4 and 8; give each its own, as in partition"):
        algorithm_named("dion", pliant.Dion(groups))
    assert algorithm_named("dion", pliant.Dion([matrix], rank=8)) == pliant.dion(rank=8)
    assert algorithm_named("dion", torch.optim.Muon([matrix])) == pliant.dion()


def test_a_switch_ends_momenta_and_owes_nothing():
    def body(place):
        model, found = Given(), []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        for name in MOMENTA:
            with pliant.relax(model, optimizer, MOMENTA[name], group=place.process_group, timeout_s=20) as run:
                for step in range(4):
                    if step == 3:
                        run.switch("allreduce")
                    optimizer.zero_grad()
                    run.model(gradient(place.rank, step)).backward()
                found.append(model.matrix.grad.clone())
        return found

    mean = torch.from_numpy(means(3, 4)[3]).float()
    for found in pliant.run_world(3, body, timeout_s=60):
        for each in found:
            torch.testing.assert_close(each, mean)
