"""Members of a new epoch: those that hold a state give the mean of their weights, and who comes takes it."""

from concurrent.futures import Future
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import pliant
from pliant.engine.epoch_sync import average_members


@pytest.mark.parametrize("sound", [(1, 1, 0), (1, 0, 0), (1, 1, 1), (0, 0, 0)], ids=str)
def test_the_mean_is_that_of_the_members_that_hold_a_state(sound):
    signed = Future()

    def check(_, digest):
        assert digest == signed.result(10)

    def body(place):
        def value(rank):
            return torch.randn(7, dtype=torch.float64, generator=torch.Generator().manual_seed(rank)).float()

        module = nn.ParameterList([value(place.rank), nn.Parameter(value(10 + place.rank), requires_grad=False)])
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
        optimizer.state[module[0]]["momentum_buffer"] = value(20 + place.rank)
        party = SimpleNamespace(
            epoch=SimpleNamespace(members=[SimpleNamespace(sound=bool(each)) for each in sound]),
            vouch=lambda _, digest: signed.set_result(digest),
            require_vouched=check,
        )
        average_members(module, optimizer, place.comm, party, torch.device("cpu"))
        holding = [value(rank).double() for rank, each in enumerate(sound) if each]
        mean = torch.stack(holding).mean(0) if holding else value(0).double()
        torch.testing.assert_close(module[0].detach().double(), mean, rtol=1e-6, atol=1e-6)
        newcomer = place.rank > 0 and not sound[place.rank]
        assert torch.equal(module[1], value(10 + place.rank if all(sound) else 10))
        momentum = optimizer.state[module[0]]["momentum_buffer"]
        assert torch.equal(momentum, value(20 if newcomer else 20 + place.rank))
        return module[0].detach()

    results = pliant.run_world(len(sound), body, timeout_s=20)
    assert all(torch.equal(results[0], other) for other in results)
