"""A start that comes to nothing ends with a sentence that says who has not come, or what to do."""

import threading

import pytest
import torch
from torch.distributed import HashStore

import pliant
from pliant.comm.private_comm import new_comm

CPU = torch.device("cpu")


@pytest.mark.parametrize("what", ["bytegrad", "local_sgd", "auto"])
def test_a_script_that_is_started_alone_is_told_what_to_do(what):
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"is in no process group.*start it by torchrun"):
        pliant.relax(model, optimizer, what)
    with pytest.raises(ValueError, match=r"is in no process group.*start it by torchrun"):
        pliant.load_run("nowhere", model, optimizer)


@pytest.mark.parametrize(
    ("come", "message"),
    [
        ((0, 1), r"rank \d: all ranks have come, but not at the same time.*call relax\(\) again.*Cause: refused"),
        ((0,), "rank 0: rank 1 has not come within 2s; it may have failed, or start slowly: raise start_timeout_s"),
    ],
)
def test_a_start_that_comes_to_nothing_says_what_to_do(come, message, monkeypatch):
    store, all_have_come = HashStore(), threading.Barrier(len(come))

    def refuse(_):
        all_have_come.wait(20)
        raise RuntimeError("refused")

    monkeypatch.setattr("pliant.comm.private_comm.liveness_store", lambda *_: store)
    monkeypatch.setattr("pliant.comm.private_comm.group_factory", lambda *_: refuse)

    def body(place):
        if place.rank not in come:
            place.comm.barrier()
            return
        with pytest.raises(pliant.CommError, match=message):
            new_comm(place.process_group, 10.0, 2.0)
        if len(come) == 1:
            place.comm.barrier()

    pliant.run_world(2, body, timeout_s=20)


def test_the_limit_of_the_start_ends_with_it_also_for_what_was_made_in_it():
    """Gloo ends a collective after the limit of its group, whatever limit a wait for it has."""

    def body(place):
        comm = new_comm(place.process_group, 200.0, 100.0)
        comm.reconnect(2)
        part = comm.split([[0], [1]])
        comm.split([[0, 1]]).close()
        comm.with_timeout(200.0)
        groups = [*comm._groups, *part._groups]
        limits_s = [group._get_backend(CPU).options._timeout.total_seconds() for group in groups]
        comm.close()
        return limits_s

    assert pliant.run_world(2, body) == [[200.0] * 4] * 2


def test_nobody_goes_on_from_a_new_group_before_all_have_connected():
    """A rank that hung up at once would break the connections of those that still connect."""
    at_barrier, returned = threading.Event(), threading.Event()

    def body(place):
        comm = place.comm
        make_group, barrier = comm._make_group, comm.barrier

        def slowly(ranks):
            group = make_group(ranks)
            assert at_barrier.wait(60), "the other rank has not waited"
            assert not returned.is_set()
            return group

        def noted():
            at_barrier.set()
            barrier()

        if place.rank == 0:
            comm._make_group = slowly
        else:
            comm.barrier = noted
        part = comm.split([[0, 1]])
        returned.set()
        return part.size

    assert pliant.run_world(2, body) == [2, 2]
