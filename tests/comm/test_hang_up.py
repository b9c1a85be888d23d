"""Who hangs up frees whoever waits for it, also when one of its own connections is broken already."""

import threading
from itertools import permutations

import pytest
import torch

import pliant


@pytest.mark.parametrize(("gone", "hangs_up", "waits"), list(permutations(range(3))))
def test_who_has_lost_one_rank_hangs_up_with_all_others(gone, hangs_up, waits):
    closed, freed = threading.Event(), threading.Event()

    def body(place):
        comm = place.comm.split([[0, 1, 2]])
        comm.barrier()
        x, y = torch.zeros(1), torch.zeros(1)
        if place.rank == gone:
            comm.close()
            closed.set()
            return ""
        assert closed.wait(20)
        if place.rank == hangs_up:
            with pytest.raises(pliant.CommError):
                comm.exchange([(gone, x)], [(gone, y)]).wait()
            assert freed.wait(20)  # its group is still held here
            return ""
        try:
            comm.exchange([], [(hangs_up, y)]).wait()
        except pliant.CommError as error:
            return str(error)
        finally:
            freed.set()

    text = pliant.run_world(3, body, timeout_s=10)[waits]
    assert "failed" in text
    assert "Timed out" not in text
