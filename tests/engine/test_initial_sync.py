"""What all ranks have of the first one when a run begins, and in how few messages."""

import pytest
import torch
from torch import nn

import pliant
from pliant.comm import ProcessGroupComm, RecordedComm
from pliant.engine.fusing import fuse_tensors
from pliant.engine.initial_sync import broadcast_data, broadcast_differing, broadcast_tensors

TYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64)


def tensors_of(seed):
    """Return tensors of all types: scalars, empty ones, rows that are not contiguous."""
    generator = torch.Generator().manual_seed(seed)
    made = [torch.randint(0, 2, shape, generator=generator) for shape in [(), (0, 2), (4, 5), (7,)] * len(TYPES)]
    return [((seed + 1) * (x.mT if x.dim() == 2 else x)).to(TYPES[k % len(TYPES)]) for k, x in enumerate(made)]


@pytest.mark.parametrize("root", [0, 2])
def test_all_ranks_have_the_values_of_one_in_a_message_for_each_type(root):
    def body(place):
        mine, comm = tensors_of(place.rank), RecordedComm(place.comm)
        broadcast_tensors(mine, comm, root)
        return mine, comm.calls

    for mine, calls in pliant.run_world(3, body):
        assert all(torch.equal(x, y) and x.dtype == y.dtype for x, y in zip(mine, tensors_of(root), strict=True))
        assert calls["broadcast"] == len(TYPES)


def test_only_what_is_not_equal_on_all_ranks_is_sent():
    """Scalars of all types, empty ones, rows that are not contiguous; of which two are others on the last rank."""

    def body(place):
        mine = tensors_of(0)
        if place.rank == 2:
            for k in (2, 11):
                mine[k].add_(1)
        comm = RecordedComm(place.comm)
        broadcast_differing(mine, comm, torch.device("cpu"))
        equal = comm.calls["broadcast"]
        broadcast_differing(mine, comm, torch.device("cpu"))
        return mine, equal, comm.calls["broadcast"] - equal

    for mine, differing, equal in pliant.run_world(3, body):
        assert all(torch.equal(x, y) for x, y in zip(mine, tensors_of(0), strict=True))
        assert (differing, equal) == (2, 0)


def test_nested_data_comes_in_as_few_messages():
    def body(place):
        mine = {k: {"exp_avg": x, "step": torch.tensor(float(k))} for k, x in enumerate(tensors_of(place.rank))}
        comm = RecordedComm(place.comm)
        theirs = broadcast_data(mine, 0, comm, torch.device("cpu"))
        return [(theirs[k]["exp_avg"], float(theirs[k]["step"])) for k in mine], comm.calls

    for found, calls in pliant.run_world(2, body):
        for k, ((value, step), wanted) in enumerate(zip(found, tensors_of(0), strict=True)):
            assert torch.equal(value, wanted)
            assert step == k
        assert calls["broadcast"] == len(TYPES) + 2  # and the length of a description, and the description


def test_a_start_takes_as_many_messages_for_many_parameters_as_for_few(monkeypatch):
    """On a link with a round trip of 0.3 s each message takes as long."""
    broadcast = ProcessGroupComm.broadcast

    def messages(layers):
        seen = []

        def body(place):
            model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(layers)))
            optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
            with pliant.relax(model, optimizer, "local_sgd", group=place.process_group):
                pass

        def counted(self, x, root):
            seen.append(x)
            return broadcast(self, x, root)

        with monkeypatch.context() as patch:
            patch.setattr(ProcessGroupComm, "broadcast", counted)
            pliant.run_world(2, body)
        return len(seen)

    assert 0 < messages(30) == messages(1)


def test_what_is_large_is_not_copied_and_groups_are_bounded(monkeypatch):
    monkeypatch.setattr("pliant.engine.fusing._FUSED_NUMEL", 10)
    sizes = [4, 4, 4, 25, 1, 9, 3]
    groups = [[len(x) for x in group] for group in fuse_tensors(torch.zeros(size) for size in sizes)]
    assert groups == [[4, 4], [4], [25], [1, 9], [3]]
    assert list(fuse_tensors([])) == []
