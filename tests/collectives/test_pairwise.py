"""Exact reduce-scatter and all-gather of parts of any lengths, all at once and one after the other."""

import pytest
import torch

from pliant.collectives import pairwise
from pliant.collectives.scratch import Scratch
from pliant.comm import InOrderQueues, RecordedComm, run_world

AT_ONCE, ALONE = 1 << 30, 0


@pytest.mark.parametrize("alone_bytes", [AT_ONCE, ALONE], ids=["at once", "one after the other"])
@pytest.mark.parametrize("numels", [[5, 5], [7, 0, 3], [0, 0, 0, 9], [4, 4, 4, 4]])
def test_parts_are_averaged_and_gathered(numels, alone_bytes, monkeypatch):
    monkeypatch.setattr(pairwise, "ALONE_BYTES", alone_bytes)
    size, queues = len(numels), InOrderQueues()
    whole = torch.randn(size, sum(numels), dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def body(place):
        comm = RecordedComm(queues.wrap(place.comm))
        parts = [part.clone() for part in whole[place.rank].split(numels)]
        out = torch.empty(numels[place.rank], dtype=torch.float64)
        pairwise.mean_of_parts(parts, out, comm, Scratch(torch.device("cpu")))
        parts[place.rank].copy_(out)
        pairwise.gather_parts(parts, comm)
        return torch.cat(parts), comm.sent_bytes

    for rank, (found, sent_bytes) in enumerate(run_world(size, body, timeout_s=20)):
        torch.testing.assert_close(found, whole.mean(0), rtol=1e-12, atol=1e-12)
        assert sent_bytes == 8 * (sum(numels) - numels[rank] + (size - 1) * numels[rank])


def test_large_parts_go_one_after_the_other_on_all_ranks_alike():
    numels = [pairwise.ALONE_BYTES // 4, 1, 1]

    def body(place):
        comm = RecordedComm(place.comm)
        pairwise.gather_parts([torch.zeros(numel) for numel in numels], comm)
        return comm.calls["exchange"]

    assert run_world(3, body, timeout_s=20) == [2, 2, 2]
