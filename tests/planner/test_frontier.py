"""The frontier: three lines, whatever the optimizer, and no plan that is known to lose without the word.

Plans with local steps are named with the optimizer that they were measured with; else one sentence says what they would
save, and what keeps them out.
"""

import pytest

from planner.made_up_ratios import ratio_row, table
from pliant.planner import (
    BASELINES,
    FRONTIER_LIMITS,
    Gene,
    Genome,
    Quality,
    Scale,
    frontier,
    frontier_text,
    left_out,
    risk_of,
)
from pliant.planner.risk import is_losing
from pliant.simulator import simulate_many, workload_named
from pliant.spec import Host, Topology

__all__ = ["table"]

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
    optimizer, points = found
    quality = Quality(optimizer=optimizer, unmeasured=True, scale=Scale.of(WORKLOAD, FOUR))
    ddp = step_s([BASELINES["ddp"]])[0]
    for p in points:
        assert p.speedup == pytest.approx(ddp / step_s([p.genes])[0] / (quality.ratio(p.genes) or 1))


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
def test_a_plan_that_is_known_to_lose_with_an_optimizer_has_the_word(gene, optimizer, loses, told, table):
    table()
    risk = risk_of(Genome(gene), optimizer)
    assert risk.loses is loses
    assert told in risk.sentence


MULOCO = Gene("muloco", {"period": 60, "fragments": 4, "delay_steps": 2, "averaging": "int4"})
STREAMED = Gene("streaming_diloco", {**MULOCO.settings, "period": 64, "outer_momentum": 0.6})
BOTH = "AdamW and Muon"


def look(optimizer, *rows):
    """Return the frontier with an optimizer, its text, and what it leaves out."""
    points = frontier(WORKLOAD, FOUR, optimizer, step_s, candidates=10)
    quality = Quality(optimizer=optimizer, scale=Scale.of(WORKLOAD, FOUR))
    return points, frontier_text(points, optimizer), left_out(WORKLOAD, FOUR, quality, points, step_s)


def measured(ratio, highest, ranks=4, gene=MULOCO, optimizer="Muon"):
    size = {"ranks": ranks, "parameters": 400_000, "steps": 1000, "limit": 1.25}
    return ratio_row(gene, optimizer, ratio, highest, tasks=1, **size)


def test_a_part_that_did_not_reach_the_loss_is_no_safe_part_of_another(table):
    inside = {"averaging": "ScatterGather(codec=int4, feedback='both')", "outer": "Outer()", "pace": "lockstep"}
    both = Gene("LocalSteps", {"period": 8, "fragments": 1, "delay_steps": 0, **inside})
    assert not is_losing(both, "SGD")
    table(ratio_row(Gene("local", {"every": 8}), "SGD", None, None))
    assert is_losing(both, "SGD")
    risk = risk_of(Genome(both), "SGD")
    assert risk.loses
    assert "the loss not reached" in risk.sentence


def families(points):
    return {gene.family for point in points for gene in point.genes.genes}


@pytest.mark.parametrize(
    ("gene", "optimizer", "other"), [(MULOCO, "Muon", "AdamW"), (MULOCO, BOTH, "AdamW"), (STREAMED, "AdamW", BOTH)]
)
def test_local_steps_are_named_with_the_optimizer_that_they_were_measured_with(table, gene, optimizer, other):
    table(measured(1.02, 1.04, gene=gene, optimizer="AdamW" if gene is STREAMED else "Muon"))
    points, text, left = look(optimizer)
    for point in points[1:]:
        assert point.genes.base.family == gene.family
        assert point.steps_ratio == 1.02
    told = f"1.02 times the steps, measured with 0.4 M parameters on 4 ranks in 1,000 steps, with {optimizer}"
    assert text.count(told) == 2
    assert gene.summary in text
    assert left is None or left.genes.base != gene
    assert gene.family not in families(look(other)[0])


def test_a_ratio_beyond_every_limit_leaves_them_out_with_what_they_would_save(table):
    table(measured(1.6, 1.7))
    points, _, left = look(BOTH)
    assert MULOCO.family not in families(points)
    assert left.genes == Genome(MULOCO)
    assert left.step_s == pytest.approx(step_s([Genome(MULOCO)])[0])
    best_s = min(point.step_s * point.steps_ratio for point in points if not point.risk.loses)
    assert left.speedup == best_s / left.step_s > 1.05
    assert left.sentence.startswith(f"Left out: {MULOCO.summary}; a step of ")
    assert f"would be {left.speedup:.3g}x sooner than the best line if no more steps were needed" in left.sentence
    assert "risk: 1.60 times the steps, measured with 0.4 M parameters on 4 ranks in 1,000 steps" in left.sentence
    table(measured(None, None))
    assert "risk: the loss not reached in 1.25 times the steps" in look(BOTH)[2].sentence


def test_more_ranks_than_were_measured_leave_them_out(table):
    table(measured(1.02, 1.04, ranks=3))
    points, _, left = look(BOTH)
    assert MULOCO.family not in families(points)
    assert left.genes == Genome(MULOCO)
    told = f"nothing was measured on 4 ranks or more with {WORKLOAD.numel / 1e6:.3g} M parameters or fewer."
    assert left.sentence.endswith(told)


def test_what_nobody_has_measured_is_left_out_as_such_and_nothing_that_others_need_is_named(table):
    table(measured(1.02, 1.04))
    left = look("AdamW")[2]
    assert left.genes.base.fits_optimizer("AdamW")
    assert left.genes.base.exchange.timing.pace == "lockstep"  # of others the network decides how often they exchange
    assert left.sentence.endswith("; risk: not measured with AdamW.")
    exact = Quality(optimizer="AdamW", equal_weights=True)
    assert left_out(WORKLOAD, FOUR, exact, look("AdamW")[0], step_s) is None
