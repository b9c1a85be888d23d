"""Owners whose hosts add up first: training is that of flat owners, on hosts of any sizes, and a checkpoint goes on."""

import pytest
import torch
from torch import nn

import pliant
from models import new_ddp, weights
from pliant.codecs import Qsgd

HOSTS = {"equal": [[0, 1], [2, 3]], "unequal": [[2], [3, 0, 1]]}
BY_HOSTS = pliant.between_hosts(pliant.sharded_optimizer())


def odd() -> nn.Module:
    return nn.Sequential(nn.Linear(11, 13), nn.Tanh(), nn.Linear(13, 7)).double()


def train(module, optimizer, rank, steps):
    for step in steps:
        optimizer.zero_grad()
        generator = torch.Generator().manual_seed(10 * step + rank)
        module(torch.randn(5, 11, generator=generator, dtype=torch.float64)).square().sum().backward()
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()


def relaxed(place, what, shape):
    ddp = new_ddp(place, model=odd)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=0.01)
    return ddp, optimizer, pliant.relax(ddp, optimizer, what, hosts=HOSTS[shape], timeout_s=20, agreement_every=0)


@pytest.mark.parametrize("shape", [pytest.param("equal", marks=pytest.mark.extended), "unequal"])
def test_training_is_that_of_flat_owners_and_goes_on(shape):
    """In float64, so that only the order of additions differs; after a switch and from a checkpoint as well."""

    def body(place):
        ends = {}
        for name, what in {"flat": pliant.sharded_optimizer(), "by hosts": BY_HOSTS, "sums": "allreduce"}.items():
            ddp, optimizer, run = relaxed(place, what, shape)
            with run:
                train(ddp, optimizer, place.rank, range(3))
                told = run.explain()
                assert ("a part leaves each host once" in told) == (name == "by hosts")
                saved = run.state_dict(), {k: v.clone() for k, v in ddp.state_dict().items()}, optimizer.state_dict()
                run.switch("allreduce" if name == "by hosts" else BY_HOSTS)
                train(ddp, optimizer, place.rank, range(3, 5))
            ends[name] = weights(ddp)
            if name == "by hosts":
                ddp, optimizer, run = relaxed(place, what, shape)
                with run:
                    ddp.load_state_dict(saved[1])
                    optimizer.load_state_dict(saved[2])
                    run.load_state_dict(saved[0])
                    train(ddp, optimizer, place.rank, range(3, 5))
                ends["again"] = weights(ddp)
        return ends

    results = pliant.run_world(4, body, timeout_s=60)
    for ends in results:
        assert all(torch.equal(end, results[0][name]) for name, end in ends.items())
        for end in ends.values():
            torch.testing.assert_close(end, ends["flat"], rtol=1e-12, atol=1e-13)


def test_codes_travel_between_hosts_alone():
    """One host has nobody to send codes to, so that its sums are exact."""

    def body(place):
        ends = []
        for what in (pliant.between_hosts(pliant.sharded_optimizer(Qsgd(bits=2))), "allreduce"):
            ddp = new_ddp(place, model=lambda: odd().float())
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
            with pliant.relax(ddp, optimizer, what, hosts=[[0, 1, 2]], timeout_s=20, agreement_every=0):
                for step in range(2):
                    optimizer.zero_grad()
                    generator = torch.Generator().manual_seed(10 * step + place.rank)
                    ddp(torch.randn(5, 11, generator=generator)).square().mean().backward()
                    optimizer.step()
            ends.append(weights(ddp))
        return ends

    for coded, exact in pliant.run_world(3, body, timeout_s=60):
        torch.testing.assert_close(coded, exact, rtol=1e-5, atol=1e-6)
