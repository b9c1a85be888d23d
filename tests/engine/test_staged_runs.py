"""Whole runs by way of host buffers, as on an accelerator between hosts: the same weights, to the bit."""

import threading

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pliant
from device import Stream
from models import Net, batch
from pliant.autotune.coordination import holds_on_all
from pliant.comm import StagedComm, staged, transport
from pliant.comm.base import duplicate
from pliant.network.rank_places import require_gloo

_one_at_a_time = threading.Lock()
STEPS = 5


def trained(place, what, elastic):
    with _one_at_a_time:  # threads share torch's generator
        torch.manual_seed(3)
        model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    options = {"elastic": pliant.Elastic(regroup_s=20)} if elastic else {}
    given = model if elastic else DistributedDataParallel(model, process_group=place.process_group)
    with pliant.relax(
        given, optimizer, what, group=place.process_group if elastic else None, timeout_s=20, **options
    ) as run:
        kind = type(run._comm.without_counting)
        for step in range(STEPS):
            x, y = batch(place.rank, step)
            optimizer.zero_grad()
            nn.functional.cross_entropy(run.model(x), y).backward()
            optimizer.step()
    return torch.cat([p.detach().view(-1) for p in model.parameters()]), kind


@pytest.fixture
def staging(monkeypatch):
    """Let the CPU count as an accelerator for the transport alone."""
    for module in (staged, transport):
        monkeypatch.setattr(module, "is_accelerator", lambda device: True)
    monkeypatch.setattr(staged, "current_stream", lambda device: Stream())
    monkeypatch.setattr(staged, "pinned", lambda shape, dtype, beside: torch.empty(shape, dtype=dtype))


@pytest.mark.parametrize(
    ("what", "elastic"),
    [
        ("allreduce", False),
        ("bytegrad", False),
        ("bounded_staleness(0)", False),
        ("bounded_staleness(0, codec=sign)", False),
        ("local_sgd(2)", True),
    ],
)
def test_runs_by_way_of_the_host_end_with_the_same_weights(what, elastic, request):
    wanted = pliant.run_world(2, lambda place: trained(place, what, elastic), timeout_s=60)
    request.getfixturevalue("staging")
    found = pliant.run_world(2, lambda place: trained(place, what, elastic), timeout_s=60)
    for (x, kind), (y, before) in zip(found, wanted, strict=True):
        assert torch.equal(x, y)
        assert kind is StagedComm is not before


def test_what_auto_agrees_on_goes_by_way_of_the_host(staging):
    def body(place):
        comm = StagedComm(place.comm)
        require_gloo(comm)
        return holds_on_all(duplicate(comm), place.rank == 0), holds_on_all(comm, mine=True)

    assert pliant.run_world(2, body) == [(False, True)] * 2
