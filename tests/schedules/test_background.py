"""Schedules that are improved beside training: all ranks change in the same call, and back if it was for the worse."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from pliant.comm import run_world
from pliant.netmodel import Overheads
from pliant.schedules import Collective, SolverOptions, SparseAllReduce, background, candidates, merge_blocks
from pliant.schedules.background import BackgroundSolver, SolverJob, SolverProcess
from pliant.schedules.dense import dense_task
from schedules.cases import hosts, random_collective
from schedules.test_execute import bitmap, inputs, true_sum
from waiting import dawdle

NUMELS = [5] * 40
ASKED = SolverOptions(after=3, trials=2, limit_s=1.0)


class Found:
    """In the place of a search: another schedule of the family, said to be faster, a few calls later."""

    made = 0
    takes = 2
    gain = 0.5

    def __init__(self, task):
        Found.made += 1
        assert task.overheads.pause_s > 0  # there is some time between any two calls
        other = candidates(merge_blocks(task.collective), task.topology)[-1]
        faster = tuple(replace(r, wire_s=self.gain * r.wire_s, message_s=0.0, latency_s=0.0) for r in other.cost.rounds)
        self.candidate = replace(other, cost=replace(other.cost, rounds=faster))
        self.asked = 0

    def has_ended(self):
        self.asked += 1
        return self.asked > self.takes

    def result(self):
        return self.candidate

    def close(self):
        pass


def calls(num_ranks, held_by_call, slow, monkeypatch, gain=0.5):
    """Return for each rank the name of the schedule in use in each call; `slow` ones take longer."""
    monkeypatch.setattr(background, "SolverProcess", Found)
    monkeypatch.setattr(Found, "gain", gain)
    Found.made = 0
    timed = SparseAllReduce._run_timed

    def sleepy(self, ready, x):
        timed(self, ready, x)
        return 1.0 + (ready.planned.best.name in slow)

    monkeypatch.setattr(SparseAllReduce, "_run_timed", sleepy)

    def body(place):
        names = []
        like = torch.empty(200)
        summed = SparseAllReduce(NUMELS, hosts([1] * num_ranks), place.comm, like=like, solver=ASKED)
        for held in held_by_call:
            x = inputs(place.rank, held, NUMELS, torch.float32, whole=True)
            names.append(summed(x, held[place.rank]).best.name)
            assert torch.equal(x, true_sum(held, NUMELS, torch.float32))
        summed.close()
        return names

    return run_world(num_ranks, body)


def test_what_is_found_comes_into_use_on_all_ranks_at_once(monkeypatch):
    one, other = bitmap(4, 0.4, 1, 40), bitmap(4, 0.4, 2, 40)
    names, *others = calls(4, [one] * 9 + [other, one], (), monkeypatch)
    assert all(theirs == names for theirs in others)
    first, last = names[0], names[8]
    assert first != last
    changed = names.index(last)
    # Three calls, the one that starts the search, and two for which it is not there.
    assert (changed, names[changed:9]) == (6, [last] * 3)
    assert names[10] == last
    assert Found.made == 1


def test_what_is_slower_goes_again_and_is_not_looked_for_twice(monkeypatch):
    held = bitmap(4, 0.4, 1, 40)
    found = candidates(merge_blocks(Collective.of(held, [20] * 40)), hosts([1] * 4))[-1].name
    names, *others = calls(4, [held] * 14, (found,), monkeypatch)
    assert all(theirs == names for theirs in others)
    assert [name == found for name in names] == [False] * 6 + [True] * ASKED.trials + [False] * 6
    assert Found.made == 1


def test_what_is_predicted_to_be_no_better_is_left_alone(monkeypatch):
    held = bitmap(2, 0.4, 1, 40)
    for names in calls(2, [held] * 12, (), monkeypatch, gain=1000.0):
        assert set(names) == {names[0]}


def test_blocks_that_change_are_not_looked_at(monkeypatch):
    calls(2, [bitmap(2, 0.4, seed, 40) for seed in range(12)], (), monkeypatch)
    assert Found.made == 0


def test_blocks_that_come_no_more_hold_up_no_other_search(monkeypatch):
    """What was found for the first blocks is never tried; the next ones have a search of their own all the same."""
    one, other = bitmap(2, 0.4, 1, 40), bitmap(2, 0.4, 2, 40)
    calls(2, [one] * 6 + [other] * 30, (), monkeypatch)
    assert Found.made == 2


class Vain:
    """In the place of a search that ends at once, with nothing that is faster."""

    def __init__(self, task):
        self.task = task

    def has_ended(self):
        return True

    def result(self):
        return SimpleNamespace(cost=SimpleNamespace(total_s=1.0))

    def close(self):
        pass


def test_many_kinds_of_dense_sums_do_not_keep_each_other_out(monkeypatch):
    """As of a model with many buckets: all come in turn, and each is searched for after so many calls."""
    monkeypatch.setattr(background, "SolverProcess", Vain)
    solver, kinds = BackgroundSolver(ASKED, hosts([1, 1]), Overheads()), [str(k).encode() for k in range(100)]
    for _ in range(ASKED.after + 1):
        assert not solver.has_settled(kinds)
        for kind in kinds:
            assert solver.decide() == "stay"
            solver.note_call(kind, dense_task(1000, 2), lambda _: 1.0, 0.1, pause_s=0.1, is_dense=True)
    assert solver.decide() == "stay"
    assert solver.has_settled(kinds)


def test_a_search_that_fails_holds_up_nobody(monkeypatch):
    class Failed(Found):
        def result(self):
            raise RuntimeError("it has no memory left")

    monkeypatch.setattr(background, "SolverProcess", Failed)
    held = bitmap(2, 0.4, 1, 40)

    def body(place):
        summed = SparseAllReduce(NUMELS, hosts([1, 1]), place.comm, like=torch.empty(200), solver=ASKED)
        for _ in range(12):
            x = inputs(place.rank, held, NUMELS, torch.float32, whole=True)
            summed(x, held[place.rank])
            assert torch.equal(x, true_sum(held, NUMELS, torch.float32))
        summed.close()

    with pytest.warns(UserWarning, match="sums go on as they are: it has no memory left"):
        run_world(2, body)


@pytest.mark.extended
def test_a_real_process_finds_better_owners():
    num_ranks, generator = 4, torch.Generator().manual_seed(0)
    numels = [256] * 128
    topology = hosts([1] * num_ranks, rate=1e6)
    held = (torch.rand(num_ranks, 128, generator=generator) < 0.3).tolist()

    def body(place):
        x = torch.empty(sum(numels))
        settings = SolverOptions(after=2, trials=1, limit_s=2.0)
        free = Overheads(sharing=0.0)  # so that direct sends are best, which owners decide about
        summed = SparseAllReduce(numels, topology, place.comm, like=x, overheads=free, solver=settings)
        x = inputs(place.rank, held, numels, torch.float32, whole=True)
        first = summed(x, held[place.rank]).best
        best, calls = first, 0
        while best is first and calls < 1000:
            x = inputs(place.rank, held, numels, torch.float32, whole=True)
            best = summed(x, held[place.rank]).best
            assert torch.equal(x, true_sum(held, numels, torch.float32))
            calls += 1
            dawdle(0.05)
        summed.close()
        return first, best

    for first, best in run_world(num_ranks, body, timeout_s=100):
        assert best.cost.total_s < first.cost.total_s


def test_a_search_that_fails_says_why():
    collective = random_collective(3, 5, 0.5, 1)
    task = SolverJob(collective=collective, topology=hosts([1, 1]), overheads=Overheads(), limit_s=1.0)
    with pytest.raises(RuntimeError, match=r"ended with 1: ValueError: the collective is over 3 ranks, but"):
        SolverProcess(task).result()
    running = SolverProcess(task)
    running.close()
    seen = BackgroundSolver(SolverOptions(after=1, trials=1), hosts([1, 1]), Overheads())
    with pytest.raises(RuntimeError, match="nothing was found"):
        seen.found()
    seen.close()
    with pytest.raises(ValueError, match="cannot be: use at least 1 trial"):
        SolverOptions(after=1, trials=2)
