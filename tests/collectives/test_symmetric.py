"""One all-to-all and one all-gather come to what messages between pairs come to: the same bits, and the same bytes."""

import pytest
import torch

from exchanges import DENSE
from pliant import codecs as c
from pliant.collectives import CompressedAverage
from pliant.comm import InOrderQueues, RecordedComm, run_world
from pliant.comm.wrapped import WrappedComm

CPU = torch.device("cpu")
EVEN = 4 * 3 * 4 * 2048
"""Elements that four or three ranks own in equal parts of whole blocks, four of them in a piece."""


class Symmetric(WrappedComm):
    """A comm as over NCCL, which prefers one collective to messages."""

    prefers_collectives = True


def averaged(place, codec, numel, wrap, *, bad=None, feedback=True, chunk_bytes=1 << 15):
    comm = RecordedComm(wrap(place.comm))
    average = CompressedAverage(codec, numel, comm, chunk_bytes=chunk_bytes, owner_feedback=feedback, device=CPU)
    residual, found = torch.zeros(numel), []
    for step in range(3):
        x = torch.randn(numel, generator=torch.Generator().manual_seed(10 * step + place.rank))
        if bad is not None and step == 1 and place.rank == 0:
            x[bad] = torch.nan
        average(x, step, residual if feedback else None)
        found += [x, residual.clone()]
    return torch.stack(found).nan_to_num(nan=3.0), comm.sent_bytes, comm.calls


def both(size, *arguments, **settings):
    """Return what each rank has come to, over collectives and over messages of pairs."""
    return [
        run_world(size, lambda place, wrap=wrap: averaged(place, *arguments, wrap, **settings), timeout_s=20)
        for wrap in (Symmetric, lambda comm: comm)
    ]


@pytest.mark.parametrize("codec", DENSE, ids=str)
@pytest.mark.parametrize("numel", [EVEN, 5000, 3])
@pytest.mark.parametrize("feedback", [True, False])
def test_results_are_those_of_pairs_to_the_bit(codec, numel, feedback):
    found, wanted = both(3, codec, numel, feedback=feedback)
    for (x, _, calls), (y, _, _) in zip(found, wanted, strict=True):
        assert torch.equal(x, y)
        assert calls == {"all_to_all": 3, "all_gather": 3}


@pytest.mark.parametrize("codec", [c.MinMax8(), c.Int4(), c.Sign()], ids=str)
@pytest.mark.parametrize(("numel", "more"), [(EVEN, 0.0), (EVEN + 777, 0.5)])
def test_bytes_are_those_of_pairs_where_parts_are_alike(codec, numel, more):
    sent, least = (sum(num_bytes for _, num_bytes, _ in ranks) for ranks in both(4, codec, numel))
    assert least <= sent <= (1 + more) * least


def test_what_is_not_finite_is_poisoned_alike():
    found, wanted = both(3, c.Int4(), 5000, bad=4000)
    assert all(torch.equal(x, y) for (x, *_), (y, *_) in zip(found, wanted, strict=True))


def test_an_empty_vector_stays_empty():
    for (x, sent_bytes, _), (y, _, _) in zip(*both(2, c.Int4(), 0), strict=True):
        assert x.shape == y.shape == (6, 0)
        assert sent_bytes == 0


def test_they_keep_the_order_of_accelerators():
    queues = InOrderQueues()
    run_world(3, lambda p: averaged(p, c.MinMax8(), 5000, lambda x: Symmetric(queues.wrap(x))), timeout_s=20)
