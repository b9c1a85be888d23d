"""Signs of life, as far as no process is needed: who has come, and a store that is lost."""

import threading

import pytest
from torch.distributed import HashStore

from pliant.comm import heartbeat_thread, liveness
from pliant.comm.liveness import HeartbeatMonitor
from waiting import dawdle


class Cut:
    """A store whose connection may be lost."""

    def __init__(self):
        self._store, self.lost = HashStore(), False

    def __getattr__(self, name):
        if self.lost:
            raise RuntimeError("connection was closed")
        return getattr(self._store, name)


class Far:
    """A store whose answers take long, once it is far away."""

    def __init__(self, store):
        self._store, self.answer_s = store, 0.0

    def __getattr__(self, name):
        dawdle(self.answer_s)
        return getattr(self._store, name)


@pytest.fixture
def started():
    lives = []

    def start(store, rank):
        lives.append(HeartbeatMonitor(store, rank, 3))
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


def test_the_host_of_the_store_does_not_say_that_it_is_silent_itself(started):
    store = Cut()
    life = started(store, 0)
    store.lost = True
    assert "store in which ranks give signs of life does not" in life.blame("group", 0.0, 10.0).sentence(0, 10.0)


@pytest.mark.extended
def test_a_store_that_is_slow_to_answer_is_not_taken_for_a_lost_one(started, monkeypatch):
    """Rank 2 needs longer than a dead store is waited for to see that rank 1 is silent."""
    monkeypatch.setattr(liveness, "_LEAST_SILENT_S", 0.6)
    store = HashStore()
    far = Far(store)
    lives = [started(*each) for each in ((store, 0), (store, 1), (far, 2))]
    lives[1].close()
    far.answer_s = 0.3
    assert lives[2].blame("group", waited_s=0.0, limit_s=10.0).gone == (1,)
    far.answer_s = 0.0


def test_a_store_that_answers_heartbeats_is_not_lost_though_the_question_comes_late(started, monkeypatch):
    """On a busy machine the thread that asks may begin later than a dead store is waited for."""
    monkeypatch.setattr(liveness, "_LEAST_SILENT_S", 0.5)
    for module in (liveness, heartbeat_thread):
        monkeypatch.setattr(module, "BEAT_S", 0.01)
    store = HashStore()
    life, *_ = [started(store, rank) for rank in (1, 0, 2)]
    judge = life._judge
    monkeypatch.setattr(life, "_judge", lambda *given: dawdle(2.5) or judge(*given))
    assert life.blame("group", waited_s=0.0, limit_s=10.0).gone == ()


def test_all_who_come_to_a_place_go_on_together(started):
    store = Cut()
    lives = [started(store, rank) for rank in range(3)]
    waiting = threading.Thread(target=lives[0].meet, args=("here", (0, 2), 250.0), daemon=True)
    waiting.start()
    lives[1].meet("there", (1,), 250.0)
    assert waiting.is_alive()
    lives[2].meet("here", (0, 2), 250.0)
    waiting.join(250)
    assert not waiting.is_alive()


def test_who_has_begun_and_is_silent_is_not_waited_for_and_all_name_it(started):
    store = Cut()
    lives = [started(store, rank) for rank in range(3)]
    lives[1].close()
    for rank in (0, 2):
        with pytest.raises(RuntimeError, match=r"\(1,\) (is|are) lost"):
            lives[rank].meet("here", (0, 1, 2), 20.0)
    assert lives[0].verdict == lives[2].verdict
    assert lives[0].verdict.gone == (1,)


def test_who_has_not_begun_is_waited_for_as_long_as_asked(started):
    store = Cut()
    life = started(store, 0)
    with pytest.raises(RuntimeError, match="1 of 2 ranks have come within 1s"):
        life.meet("here", (0, 1), 1.0)
    assert life.verdict is None
