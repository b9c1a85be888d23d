"""The frontier: three lines, whatever the optimizer, and no plan that is known to lose without the word."""

import pytest

from pliant.planner import BASELINES, FRONTIER_LIMITS, Gene, Genome, Quality, frontier, frontier_text, risk_of
from pliant.simulator import simulate_many, workload_named
from pliant.spec import Host, Topology

WORKLOAD = workload_named("gpt2", 0.14)
FOUR = Topology(hosts=tuple(Host(name=f"h{k}", send_bytes_per_s=12.5e6, receive_bytes_per_s=12.5e6) for k in range(4)))


def step_s(plans):
    return simulate_many([genes.plan() for genes in plans], WORKLOAD, FOUR).tolist()


@pytest.fixture(scope="module", params=["SGD", "AdamW"])
def found(request):
    return request.param, frontier(WORKLOAD, FOUR, request.param, step_s, candidates=20)


def test_each_limit_has_one_line_and_at_most_one_marked_beside_it(found):
    optimizer, points = found
    assert tuple(p.limit for p in points if not p.risk.loses) == FRONTIER_LIMITS
    assert len([p for p in points if p.risk.loses]) <= len(FRONTIER_LIMITS) - 1
    told = frontier_text(points, optimizer).splitlines()
    assert len(told) == 1 + len(points)
    assert all(("LOSES" in line) == p.risk.loses for line, p in zip(told[1:], points, strict=True))


def test_points_are_within_their_limits_and_none_hides_a_better_one(found):
    _, points = found
    safe = [p for p in points if not p.risk.loses]
    speeds = [p.speedup for p in safe]
    assert all(p.steps_ratio <= p.limit for p in points)
    assert speeds == sorted(speeds)
    assert speeds[-1] > 10  # 500 MB of gradients at 100 Mbit/s
    assert safe[0].steps_ratio == 1
    assert all(gene.family in ("exact", "owner") for gene in safe[0].genes.genes)
    assert all(p.speedup > next(s for s in safe if s.limit == p.limit).speedup for p in points if p.risk.loses)


def test_the_speed_up_is_the_ratio_of_steps_times_over_that_of_steps(found):
    _, points = found
    ddp = step_s([BASELINES["ddp"]])[0]
    for p in points:
        assert p.speedup == pytest.approx(ddp / step_s([p.genes])[0] / (Quality().ratio(p.genes) or 1))


@pytest.mark.parametrize(
    ("gene", "optimizer", "loses", "told"),
    [
        (Gene("exact", {"bits": 32}), "AdamW", False, "none"),
        (Gene("exact", {"bits": 16}), "SGD", False, "rounding to 16 bits"),
        (Gene("local", {"every": 8}), "SGD", False, "1.07 times the steps with SGD"),
        (Gene("local", {"every": 8}), "AdamW", True, "LOSES with AdamW: perplexity was 24 % higher"),
        (Gene("choco", {"bits": 8, "graph": "exponential"}), "AdamW and Muon", True, "16 % higher"),
        (Gene("low_rank", {"rank": 4}), "Muon", False, "not measured with Muon; 1.06 times the steps with SGD"),
        (
            Gene("diloco", {"bits": 4, "delay_steps": 0, "every": 32, "fragments": 1}),
            "SGD",
            True,
            "LOSES: on other models",
        ),
    ],
)
def test_a_plan_that_is_known_to_lose_with_an_optimizer_has_the_word(gene, optimizer, loses, told):
    risk = risk_of(Genome(gene), optimizer)
    assert risk.loses is loses
    assert told in risk.sentence
