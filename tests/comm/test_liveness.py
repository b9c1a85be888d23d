"""Signs of life, as far as no process is needed: who has come, and a store that is lost."""

import pytest
from torch.distributed import HashStore

from pliant.comm.liveness import Liveness


class Cut:
    """A store whose connection may be lost."""

    def __init__(self):
        self._store, self.lost = HashStore(), False

    def __getattr__(self, name):
        if self.lost:
            raise RuntimeError("connection was closed")
        return getattr(self._store, name)


@pytest.fixture
def started():
    lives = []

    def start(store, rank):
        lives.append(Liveness(store, rank, 3))
        return lives[-1]

    yield start
    for life in lives:
        life.close()


def test_who_has_not_come_to_this_run_is_absent(started):
    store = Cut()
    first = started(store, 0)
    assert first.absent() == (1, 2)
    started(store, 2)
    assert first.absent() == (1,)
    started(store, 1)
    assert first.absent() == ()
    assert started(store, 1).absent() == (0, 2)  # those of the run before are not here


def test_with_the_store_its_host_is_lost_and_nobody_is_said_to_be_absent(started):
    store = Cut()
    life = started(store, 1)
    store.lost = True
    assert life.absent() == ()
    assert life.blame("group", waited_s=0.0, limit_s=10.0).gone == (0,)
