"""Sparse gradients by the way that sends fewest bytes: all ways give one mean, and far fewer bytes than a dense one."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import pliant
from models import new_ddp
from pliant.algorithms.plans import plan_of
from pliant.comm.recorded import RecordedComm
from pliant.engine import sparse_gradients
from pliant.engine.sparse_gradients import RowAverage
from pliant.layouts import sparse_rows
from pliant.layouts.sparse_rows import cheapest_way
from pliant.simulator import simulate
from pliant.spec import Host, Topology


def gradient(rank, step, num_rows, width, num):
    generator = torch.Generator().manual_seed(100 * rank + step)
    rows = torch.randint(0, num_rows, (num,), generator=generator)  # some twice
    values = torch.randn(num, width, generator=generator)
    return torch.sparse_coo_tensor(rows[None], values, (num_rows, width), check_invariants=False)


CASES = {"gather": (1000, 5, 12), "owners": (40, 8, 30), "dense": (12, 1, 60), "nothing": (10, 3, 0)}
"""Way -> rows of the table, width, and rows of a rank, with repetitions."""


@pytest.mark.parametrize("size", [2, 3, pytest.param(5, marks=pytest.mark.extended)])
@pytest.mark.parametrize("case", CASES)
def test_every_way_gives_the_mean(monkeypatch, case, size):
    taken = set()

    def chosen(*about):
        taken.add(cheapest_way(*about))
        return cheapest_way(*about)

    monkeypatch.setattr(sparse_rows, "_ROUND_BYTES", 0)
    monkeypatch.setattr(sparse_gradients, "cheapest_way", chosen)
    num_rows, width, num = CASES[case]

    def body(place):
        average, comm, found = RowAverage(), RecordedComm(place.comm), []
        for step in range(3):
            g = gradient(place.rank, step, num_rows, width, num if place.rank or step else num // 2)
            assert average(g, place.rank - 1, comm) == list(range(-1, size - 1))
            assert g.is_coalesced()
            found.append(g.to_dense())
        return found

    found = pliant.run_world(size, body)
    for step in range(3):
        nums = [num if rank or step else num // 2 for rank in range(size)]
        own = [gradient(rank, step, num_rows, width, n).to_dense().double() for rank, n in enumerate(nums)]
        for each in found:
            torch.testing.assert_close(each[step].double(), torch.stack(own).mean(0), rtol=1e-5, atol=1e-6)
            assert torch.equal(each[step], found[0][step])
    assert case in taken or case == "nothing" or size == 2


@pytest.mark.parametrize(("num", "gathers"), [(30, 0), (60_000, 2)])
def test_few_rows_go_straight_and_many_around_a_ring(num, gathers):
    """Indices and values in two gathers each; what is told before them is always short."""

    def body(place):
        average, comm = RowAverage("gather"), RecordedComm(place.comm)
        for step in range(3):
            average(gradient(place.rank, step, 1_000_000, 8, num), -1, comm)
        return comm.calls["all_gather"] / 3

    assert pliant.run_world(4, body) == [gathers] * 4


def test_each_way_is_taken_where_it_pays():
    assert cheapest_way([4000] * 4, 1.0, 10**6, 256) == "gather"
    assert cheapest_way([4000] * 4, 0.3, 10**6, 256) == "owners"
    assert cheapest_way([999_000] * 4, 0.3, 10**6, 4) == "dense"
    assert cheapest_way([10] * 4, 0.3, 10, 4) == "gather"  # too little to be worth more rounds


class Words(nn.Module):
    """A model that is nearly all embedding."""

    def __init__(self, sparse):
        super().__init__()
        self.words = nn.EmbeddingBag(3000, 16, mode="sum", sparse=sparse)
        self.head = nn.Linear(16, 4)

    def forward(self, ids):
        return self.head(self.words(ids))


@pytest.mark.parametrize("what", ["allreduce", "sharded_optimizer"])
def test_an_embedding_sends_a_fifth_of_dense_bytes_at_most(what):
    def train(place, sparse, how):
        ddp = new_ddp(place, model=lambda: Words(sparse))
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        with pliant.relax(ddp, optimizer, how, timeout_s=20, agreement_every=0) as run:
            for step in range(4):
                generator = torch.Generator().manual_seed(10 * step + place.rank)
                ids = (torch.rand(32, 4, generator=generator) ** 4 * 3000).long()  # some words are frequent
                optimizer.zero_grad()
                nn.functional.cross_entropy(ddp(ids), ids[:, 0] % 4).backward()
                optimizer.step()
            sent = run.stats()["sent_bytes"]
        return torch.cat([p.detach().flatten() for p in ddp.parameters()]), sent

    def body(place):
        return train(place, True, what), train(place, False, "allreduce")

    for (sparse, sent), (dense, dense_sent) in pliant.run_world(3, body, timeout_s=60):
        torch.testing.assert_close(sparse, dense, rtol=1e-5, atol=1e-6)
        assert 5 * sent <= dense_sent


def rows_of(rank, num_rows, num, shared, size):
    """Return as many rows of each owner's range: `shared` of them those of all ranks, the others of this one alone."""
    per_owner, own = num_rows // size, num // size
    alone = own - shared
    inside = [*range(shared), *range(shared + rank * alone, shared + (rank + 1) * alone)]
    return torch.tensor([owner * per_owner + k for owner in range(size) for k in inside])


@pytest.mark.parametrize("way", ["gather", "owners", "dense", "auto"])
def test_bytes_of_sparse_rows_are_those_of_the_simulator(way):
    size, num_rows, width, num, shared = 3, 600, 5, 30, 4

    def model():
        return nn.Sequential(nn.EmbeddingBag(num_rows, width, mode="sum", sparse=True), nn.Linear(width, 2))

    plan = replace(plan_of(pliant.allreduce()), sparse=way)

    def body(place):
        ddp = new_ddp(place, model=model)
        optimizer, counts = torch.optim.SGD(ddp.parameters(), lr=0.1), []
        with pliant.relax(ddp, optimizer, plan, timeout_s=20, agreement_every=0) as run:
            for _ in range(3):
                optimizer.zero_grad()
                ddp(rows_of(place.rank, num_rows, num, shared, size)[None]).square().sum().backward()
                optimizer.step()
                run.state_dict()
                counts.append(run.stats()["sent_bytes"])
        return counts[2] - counts[1]

    distinct = (shared + size * (num // size - shared)) / num

    def observed(place):
        ddp = new_ddp(place, model=model)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        with pliant.observe(
            ddp, optimizer, steps=1, warmup_steps=0, gradient_steps=1, group=place.process_group
        ) as seen:
            for _ in range(2):
                optimizer.zero_grad()
                with ddp.no_sync():
                    ddp(rows_of(place.rank, num_rows, num, shared, size)[None]).square().sum().backward()
                optimizer.step()
        return seen.workload()

    work = pliant.run_world(size, observed)[0]
    assert {t.name: (t.sparse_rows, t.distinct) for t in work.tensors}["0.weight"] == (num, pytest.approx(distinct))
    found = simulate(plan, work, Topology(hosts=tuple(Host(name=f"h{k}") for k in range(size))))
    assert [round(x) for x in found.sent_bytes] == pliant.run_world(size, body)
