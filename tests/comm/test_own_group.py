"""A start that comes to nothing ends with a sentence that says who has not come, or what to do."""

import threading

import pytest
from torch.distributed import HashStore

import pliant
from pliant.comm.own import own_group


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

    monkeypatch.setattr("pliant.comm.own.liveness_store", lambda *_: store)
    monkeypatch.setattr("pliant.comm.own.maker_of", lambda *_: refuse)

    def body(place):
        if place.rank not in come:
            place.comm.barrier()
            return
        with pytest.raises(pliant.CommError, match=message):
            own_group(place.process_group, 10.0, 2.0)
        if len(come) == 1:
            place.comm.barrier()

    pliant.run_world(2, body, timeout_s=20)
