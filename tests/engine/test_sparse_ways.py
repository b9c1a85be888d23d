"""Sparse gradients by the way that sends fewest bytes: all ways give one mean, and far fewer bytes than a dense one."""

import pytest
import torch
from torch import nn

import pliant
from models import new_ddp
from pliant.comm.recorded import RecordedComm
from pliant.engine import sparse_gradients
from pliant.engine.sparse_gradients import RowAverage, cheapest_way


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

    monkeypatch.setattr(sparse_gradients, "_ROUND_BYTES", 0)
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
