"""A host or a rank alone: nothing travels, so that nothing is coded or left behind; and what hosts count by."""

import pytest
import torch

import pliant
from models import Inner, new_ddp, train, weights
from pliant.spec import LocalSteps

HOST = [[0, 1]]
LOSSY = {
    "bf16": pliant.bf16(),
    "topk": pliant.topk(0.05),
    "chunktopk": pliant.chunktopk(),
    "randomk": pliant.randomk(0.05),
    "powersgd": pliant.powersgd(1),
    "tasc": pliant.tasc(0.05, block=16, power=0),
    "tasc-local": pliant.tasc(0.05, block=16, power=0, agreement="local"),
    "every": pliant.every(1, pliant.topk(0.05)),
    "after": pliant.after(1, pliant.topk(0.05), then=pliant.randomk(0.05)),
    "sparse_loco": pliant.sparse_loco(1),
    "dcd": pliant.dcd(),
}
"""What loses something, or keeps it for later, where there is another host."""


def trained(place, what, **options):
    ddp = new_ddp(place)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    with pliant.relax(ddp, optimizer, what, timeout_s=20, **options):
        train(ddp, optimizer, place.rank, range(4))
    return weights(ddp)


@pytest.mark.parametrize("name", LOSSY)
def test_on_one_host_sums_are_exact_whatever_goes_between_hosts(name):
    def body(place):
        what, exact = (pliant.between_hosts(each) for each in (LOSSY[name], pliant.allreduce()))
        return trained(place, what, hosts=HOST), trained(place, exact, hosts=HOST)

    for found, exact in pliant.run_world(2, body, timeout_s=60):
        torch.testing.assert_close(found, exact, rtol=0, atol=1e-6)


@pytest.mark.parametrize("averaging", [pliant.topk(0.05), pliant.chunktopk(), pliant.powersgd(1), pliant.bf16()])
def test_one_rank_takes_its_change_whole(averaging):
    def body(place):
        return [trained(place, pliant.diloco(2, averaging=each)) for each in (averaging, pliant.allreduce())]

    for found, exact in pliant.run_world(1, body):
        assert torch.equal(found, exact)


@pytest.mark.parametrize("what", [pliant.delayed(), pliant.every(3, pliant.allreduce())], ids=["delayed", "every"])
def test_a_gradient_of_one_rank_that_is_not_finite_is_refused_before_its_step_and_once(what):
    def body(place):
        ddp = new_ddp(place)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
        with pliant.relax(ddp, optimizer, what, timeout_s=20):
            train(ddp, optimizer, 0, [0])
            before = weights(ddp).clone()
            hurt = ddp.module.head.bias.register_hook(lambda g: g * torch.nan)
            with pytest.raises(pliant.NonFiniteGradientError, match=r"rank 0.*head\.bias.*No weight was changed"):
                train(ddp, optimizer, 0, [1])
            hurt.remove()
            assert torch.equal(weights(ddp), before)
            train(ddp, optimizer, 0, [1, 2])
            assert weights(ddp).isfinite().all()

    pliant.run_world(1, body)


@pytest.mark.parametrize("hosts", [[[0], [1, 2]], [[0, 1], [2, 3]]])
def test_a_host_counts_by_the_work_of_all_of_its_ranks(hosts):
    """Also where hosts are of unequal size, or their ranks report unequal work: shares add up to the whole."""
    work, size = [4.0, 1.0, 1.0, 3.0], sum(map(len, hosts))
    gradients = torch.randn(2, size, 5, generator=torch.Generator().manual_seed(0))

    def body(place):
        model = Inner(5)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        what = pliant.between_hosts(LocalSteps(period=2, weighted=True))
        with pliant.relax(model, optimizer, what, group=place.process_group, hosts=hosts, timeout_s=20) as run:
            for of_step in gradients:
                optimizer.zero_grad()
                run.model(of_step[place.rank]).backward()
                run.count(work[place.rank])
                optimizer.step()
            return model.weight.detach().clone()

    changes = [gradients[:, ranks].mean(1).sum(0) for ranks in hosts]
    counted = [sum(work[rank] for rank in ranks) for ranks in hosts]
    wanted = -sum(w * d for w, d in zip(counted, changes, strict=True)) / sum(counted)
    for found in pliant.run_world(size, body, timeout_s=60):
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
