"""Searches after a change of the network: few steps, kept only if better, filed for the next run, and never fatal."""

from types import SimpleNamespace

import pytest

import pliant
from autotune.made_up_runs import FAST, SLOW, Sky, clock, few, network, simulated
from pliant.autotune import plan_search, searches
from pliant.autotune.short_searches import ShortSearches
from pliant.autotune.trials import TrialRunner
from pliant.comm import run_world
from pliant.planner import OWN_EXCHANGE, challenge
from pliant.planner.experience import load_experience

__all__ = ["clock", "few"]

pytestmark = pytest.mark.usefixtures("few")

MIDDLE, SLOWEST = network(700), network(10)
EXACT = OWN_EXCHANGE[False].plan("auto")
AUTO = {"max_trials": 6, "experience": None}


@pytest.fixture
def noted(monkeypatch):
    """Steps at which each search of the first rank has begun and ended, and whether it was a whole one."""
    noted, note = [], ShortSearches.note_search

    def too(self, began, *, anew):
        if self._comm.rank == 0:
            noted.append((began, self._run.steps, anew))
        note(self, began, anew=anew)

    monkeypatch.setattr(ShortSearches, "note_search", too)
    return noted


def flown(clock, network_at, num_flown, switch_s=0.0, **options):
    """Fly a run on two ranks, which do the same; return the first."""

    def body(place):
        return Sky(clock, network_at, switch_s).fly(pliant.Auto(**{**AUTO, **options}), place.comm, num_flown)

    first, second = run_world(2, body)
    assert [(s, p.hash) for s, p in first.log] == [(s, p.hash) for s, p in second.log]
    assert first.tuner.explanation == second.tuner.explanation
    return first


@pytest.mark.extended
@pytest.mark.parametrize("every", [75, 20, 33, 140, 300])
def test_searches_take_at_most_a_tenth_of_the_steps_however_often_the_network_changes(clock, noted, every):
    flown(clock, lambda step: (FAST, SLOW, MIDDLE)[step // every % 3], 1500)
    assert 1 <= sum(anew for *_, anew in noted) <= 2
    assert not noted[-1][2]  # so that there is something to bound
    since = spent = 0
    for began, ended, anew in noted:
        since, spent = (ended, 0) if anew else (since, spent + ended - began)
        assert spent <= (began - since) / 10 or anew


@pytest.mark.parametrize(("num_steps", "trials"), [(59, 0), (60, 1), (119, 1), (120, 2), (600, 10)])
def test_a_trial_that_may_take_six_steps_needs_sixty(num_steps, trials):
    run = SimpleNamespace(steps=7)
    short, found = ShortSearches(run, None, EXACT), 0
    run.steps += num_steps
    while short.has_room(0.3):
        short.note_search(run.steps - short.trials(0.3).num_steps(EXACT), anew=False)
        found += 1
    assert found == trials
    assert short.probe_s(0.3, 2.5) == pytest.approx(min(2.5, max(0.1, 0.3 * short.steps_left)))
    short.note_search(run.steps, anew=True)
    assert short.steps_left == 0


@pytest.mark.parametrize(
    ("after", "quality"),
    [
        *((FAST, 1.0), (SLOWEST, 1.1)),
        *(
            pytest.param(*row, marks=pytest.mark.extended)
            for row in ((FAST, 1.1), (SLOWEST, 1.0), (MIDDLE, 1.0), (MIDDLE, 1.1))
        ),
    ],
)
def test_after_a_change_nothing_is_kept_that_is_slower_than_what_was_in_force(clock, noted, after, quality):
    done = flown(clock, lambda step: SLOW if step < 250 else after, 400, quality=quality)
    before = next(plan for step, plan in reversed(done.log) if step < 250)
    assert len(noted) == 1 or simulated(done.plan, after) <= 1.001 * simulated(before, after)
    assert len(noted) > 1 or after not in (FAST, SLOWEST)


@pytest.mark.parametrize("slow_steps", [12, 20, 28])
def test_a_plan_is_not_left_for_a_slowness_that_is_over(clock, noted, tmp_path, slow_steps):
    """By the time that another plan has been tried, the network is as it was."""
    done = flown(clock, lambda step: SLOWEST if 0 <= step - 250 < slow_steps else SLOW, 400, experience=tmp_path)
    before = next(plan for step, plan in reversed(done.log) if step < 250)
    assert simulated(done.plan, SLOW) <= 1.001 * simulated(before, SLOW)
    (path,) = tmp_path.iterdir()
    assert simulated(load_experience(path).kept.plan("auto"), SLOW) <= 1.001 * simulated(before, SLOW)


def test_what_was_found_after_a_change_is_the_start_of_the_next_run_on_that_network(clock, tmp_path):
    done = flown(clock, lambda step: FAST if step < 250 else SLOW, 400, experience=tmp_path)
    (path,) = tmp_path.iterdir()
    left, probes = load_experience(path), len(clock.probes)
    assert left.topology == SLOW
    assert left.kept.plan("auto").hash == done.plan.hash
    assert left.kept_s == pytest.approx(simulated(done.plan, SLOW), rel=0.01)
    assert left.bytes_per_s == 0.0
    assert left.complete
    again = flown(clock, lambda _: SLOW, 60, experience=tmp_path, watch=False)
    assert len(clock.probes) == probes
    assert again.log[0][1].hash == done.plan.hash
    assert simulated(again.plan, SLOW) <= simulated(done.plan, SLOW)


def test_who_wants_no_answer_to_a_change_gets_none(clock, noted):
    flown(clock, lambda step: FAST if step < 250 else SLOW, 500, watch=False)
    assert len(noted) == len(clock.probes) == 1


@pytest.mark.parametrize("num_steps", [0, 4000])
def test_a_first_search_has_room_for_all_its_turns(clock, monkeypatch, num_steps):
    given, compare = [], TrialRunner.compare
    monkeypatch.setattr(TrialRunner, "compare", lambda self, *asked: (given.append(asked), compare(self, *asked))[1])
    flown(clock, lambda _: MIDDLE, 200, num_steps=num_steps, watch=False)
    assert given
    for plans, _, num_turns, _, most_turns in given:
        assert plans
        assert most_turns >= 2 * num_turns


@pytest.mark.parametrize("switch_s", [0.0, 1.0, 3.0])
def test_turns_wait_until_a_tenth_of_the_time_pays_for_them(clock, monkeypatch, noted, switch_s):
    began, compare = [], TrialRunner.compare

    def too(self, plans, *asked):
        if self._comm.rank == 0:
            began.append((clock.mine.now_s, len(plans), clock.mine.sky.tuner._searches.spent_s))
        return compare(self, plans, *asked)

    monkeypatch.setattr(TrialRunner, "compare", too)
    monkeypatch.setattr(challenge, "_TIE", 1.3)  # more than one plan is tried
    monkeypatch.setattr(challenge, "SHARE", 100.0)
    monkeypatch.setattr(plan_search, "measured_genomes", lambda *_: {})  # of which one is the best by far
    done = flown(clock, lambda _: MIDDLE, 700, switch_s, quality=1.1)
    ((at_s, num, spent_s),) = began
    assert num > 1
    assert spent_s > 0
    assert at_s >= 10 * (spent_s + 2 * num * switch_s)  # two turns of each
    assert len(noted) == 2  # where switches cost nothing too: steps of the slower plans in their trials do
    assert simulated(done.plan, MIDDLE) <= simulated(EXACT, MIDDLE)


def test_limits_follow_the_steps_that_are_left(clock):
    def body(place):
        sky = Sky(clock, lambda _: SLOW)
        sky.steps = 9000  # as an optimizer that goes on from a checkpoint counts
        return sky.fly(pliant.Auto(num_steps=9020, watch=False, **AUTO), place.comm, 10)

    for sky in run_world(2, body):
        assert sky.tuner._searches.limits.max_seconds <= 0.1 * 20 * simulated(EXACT, SLOW)


def fails(*_, **__):
    raise ArithmeticError("broken")


@pytest.mark.parametrize("where", ["Space", "CostFeatures", "challenge_steps"])
def test_a_search_that_fails_on_the_first_rank_ends_no_run(clock, noted, monkeypatch, where):
    whose = searches if where == "challenge_steps" else plan_search
    works = getattr(whose, where)
    monkeypatch.setattr(whose, where, lambda *a, **k: (fails if clock.mine.sky.steps > 250 else works)(*a, **k))
    done = flown(clock, lambda step: FAST if step < 300 else SLOW, 500)
    assert done.steps == 500
    assert len(noted) > 1
    before = next(plan for step, plan in reversed(done.log) if step < 300)
    assert simulated(done.plan, SLOW) <= simulated(before, SLOW)


@pytest.mark.parametrize("num_steps", [100, 250, 1000, 4000])
@pytest.mark.parametrize("network_at", [FAST, SLOW])
def test_turns_of_a_training_of_known_length_end_within_its_tenth(clock, monkeypatch, num_steps, network_at):
    ended, note = {}, ShortSearches.note_search

    def too(self, began, *, anew):
        ended[self._comm.rank] = clock.mine.now_s
        note(self, began, anew=anew)

    monkeypatch.setattr(ShortSearches, "note_search", too)
    done = flown(clock, lambda _: network_at, min(num_steps, 400), num_steps=num_steps, watch=False)
    plain_s, turns = simulated(EXACT, network_at), len(done.tuner.choice.gains)
    one_turn_s = 4 * 19 * max(plain_s, simulated(done.plan, network_at))
    least_s = 0.5 + one_turn_s  # trials begin within half a second, and there is one turn
    assert ended[0] <= max(0.1 * num_steps * plain_s, least_s + 0.06 * num_steps * plain_s)
    assert turns <= 1 or ended[0] <= 0.1 * num_steps * plain_s
