"""What a search may gain, by prediction: exchanges cost no more than was seen, and trials must save what they cost."""

from dataclasses import replace

import pytest

import pliant
from planner.made_up_ratios import ratio_row, table
from pliant.autotune.prospects import Prospects
from pliant.autotune.recall import Conditions
from pliant.autotune.searches import Searches
from pliant.planner import BASELINES, Gene, Genome, Quality, Scale, Space, Trial
from pliant.planner.challenge import SearchStart
from pliant.simulator import CostFeatures, Overheads, simulate_many, workload_named
from pliant.spec import Host, Topology

__all__ = ["table"]

EXACT = Genome(Gene("exact", {"bits": 32}))
WORK = workload_named("vgg16", 0.15)
FOUR = Topology(hosts=tuple(Host(name=name, send_bytes_per_s=5e8, receive_bytes_per_s=5e8) for name in "abcd"))
PREDICTED_S = float(simulate_many([EXACT.plan()], WORK, FOUR)[0])
ADDED_S = PREDICTED_S - WORK.compute_s


def gain_if_seen(step_s: float) -> float:
    quality, seen, searches = Quality(budget=1.1), Trial(genes=EXACT, steps_s=(step_s,)), Searches(pliant.Auto())
    asking = searches.search(
        Space(WORK, FOUR, quality), CostFeatures(WORK, FOUR), {"exact": EXACT}, seen, 1, SearchStart()
    )
    try:
        first, _ = next(asking)
    except StopIteration:  # no plan is predicted to be better
        first = EXACT
    return searches.gain(first, seen, step_s, quality)


def prospects_of(work=WORK, quality=None) -> Prospects:
    conditions = Conditions(work, FOUR, Overheads())
    return Prospects(gain=1.0, conditions=conditions, quality=quality or Quality(), seed=0)


def test_an_exchange_is_taken_to_cost_no_more_than_was_seen():
    as_predicted = gain_if_seen(PREDICTED_S)
    assert as_predicted > 1.5
    shares = [1.0, 0.3, 0.01]
    gains = [as_predicted, *(gain_if_seen(WORK.compute_s + share * ADDED_S) for share in shares[1:])]
    assert gains == sorted(gains, reverse=True)
    for share, gain in zip(shares, gains, strict=True):
        assert 1.0 <= gain <= 1 + share * ADDED_S / WORK.compute_s + 1e-9
    assert gain_if_seen(0.9 * WORK.compute_s) == pytest.approx(1.0)


def test_a_slow_rank_is_in_what_is_predicted():
    factors = (1.0, 1.0, 1.0, 4.0)
    found = prospects_of(replace(WORK, rank_factors=factors))
    expected_s = simulate_many([BASELINES["ddp"].plan()], WORK, FOUR, slowdown=factors)[0]
    assert found.points[0].ddp_s == pytest.approx(expected_s)
    assert expected_s > PREDICTED_S


@pytest.mark.parametrize(
    ("gain", "num_steps", "step_s", "done", "pays"),
    [
        (1.04, 0, 1.0, 0, False),  # below least_gain
        (1.2, 0, 0.001, 10**9, True),  # of a training without a known end
        (1.2, 200, 0.01, 0, True),  # saves 0.33 s
        (1.2, 200, 0.01, 100, False),
        (1.06, 200, 0.01, 0, False),
        (1.06, 200, 0.1, 0, True),
        (1.2, 200, 10.0, 300, False),
    ],
)
def test_trials_must_save_what_they_cost(gain, num_steps, step_s, done, pays):
    auto = pliant.Auto(least_gain=1.05, num_steps=num_steps)
    assert auto.pays(gain, step_s, done) == pays
    assert replace(auto, least_gain=gain + 0.01).pays(gain, step_s, done) is False


def test_local_steps_count_with_the_optimizer_that_they_were_measured_with(table):
    gene = Gene("muloco", {"period": 60, "fragments": 4, "delay_steps": 2, "averaging": "int4"})
    table(ratio_row(gene, "Muon", 1.02, 1.04, tasks=1, parameters=400_000, steps=1000, limit=1.25))
    best = dict[str, float]()
    for optimizer in ("AdamW and Muon", "AdamW"):
        quality = Quality(budget=1.1, optimizer=optimizer, scale=Scale.of(WORK, FOUR))
        found = prospects_of(quality=quality)
        assert ("muloco(" in found.text) == (optimizer != "AdamW")
        best[optimizer] = max(point.speedup for point in found.points if point.limit <= quality.budget)
    assert best["AdamW and Muon"] > best["AdamW"]
