"""What a plan asks of the optimizer, by the papers' formulas; applying it, and taking it back."""

import math
from dataclasses import replace

import pytest
import torch

import pliant
from planner.examples import WORKLOAD
from pliant.algorithms import plan_of
from pliant.planner import advise, apply
from pliant.spec import Host, Topology

DDP = plan_of(pliant.allreduce())
WORK = replace(WORKLOAD, batch_size=32)


def scale(plan=DDP, noise=None, optimizer="SGD", ranks=4, tuned_for=0):
    work = replace(WORK, noise_scale=noise)
    return advise(work, ranks, plan, optimizer=optimizer, tuned_for=tuned_for).lr_scale


def test_rates_rise_with_the_batch_and_are_bounded_by_the_noise_scale():
    assert scale() == 4  # linear
    assert scale(optimizer="AdamW") == 2  # its root
    assert scale(optimizer="pliant.OneBitAdam") == 2
    assert scale(optimizer="Muon") == 1
    assert scale(tuned_for=128) == 1
    assert scale(tuned_for=256) == 0.5
    assert scale(noise=1e9) == pytest.approx(4)
    assert scale(noise=128.0) == pytest.approx((1 + 4) / (1 + 1))
    assert scale(noise=0.0) == 1
    assert scale(noise=128.0, optimizer="Adam") == pytest.approx((5 / 2) ** 0.5)


def test_what_is_late_or_summed_divides():
    assert scale(plan_of(pliant.delayed(pliant.allreduce()))) == 2
    assert scale(plan_of(pliant.bounded_staleness(staleness=3))) == 1
    assert scale(plan_of(pliant.every(4, pliant.allreduce()))) == 4


def test_where_weights_are_exchanged_the_rate_stays():
    for plan in (pliant.local_sgd(), pliant.diloco(), pliant.gossip(), pliant.async_average()):
        for tuned_for in (0, 32, 64, 128):
            assert scale(plan_of(plan), tuned_for=tuned_for) == 1
    assert scale(plan_of(pliant.local_sgd()), tuned_for=16) == 2
    assert scale(plan_of(pliant.local_sgd()), tuned_for=256) == 0.5
    said = advise(WORK, 4, plan_of(pliant.diloco()), optimizer="AdamW").paragraph
    assert "momentum 0.9 need hundreds of exchanges" in said
    assert "16 to 109 % worse" in said


def test_the_choice_of_most_elements_decides():
    mixed = pliant.partition({"*LayerNorm*": pliant.delayed(pliant.allreduce()), "*": pliant.allreduce()})
    assert scale(mixed) == 4


def test_beyond_the_noise_scale_large_batch_optimizers_are_named():
    work = replace(WORK, noise_scale=50.0)
    said = advise(work, 4, DDP)
    assert said.optimizer == "LARS"
    assert "pytorch_optimizer.LARS(model.parameters(), lr=...)" in said.paragraph
    assert advise(work, 4, DDP, optimizer="AdamW").optimizer == "Lamb"
    assert advise(work, 4, DDP, optimizer="Lamb").optimizer == ""
    assert advise(work, 1, DDP).optimizer == ""
    assert advise(WORK, 4, DDP).optimizer == ""  # not measured


def test_a_straggler_is_not_waited_for_if_that_pays():
    slow = replace(WORK, rank_factors=(1.0, 1.0, 1.0, 2.0))
    said = advise(slow, 4, DDP)
    assert said.pace == "free"
    assert "1.75 times the steps" in said.paragraph
    assert advise(slow, 4, DDP, optimizer="Adam").pace == "lockstep"
    assert advise(slow, 8, DDP).pace == "lockstep"  # of other ranks
    assert advise(replace(WORK, rank_factors=(1.0, 1.0, 1.0, 1.1)), 4, DDP).pace == "lockstep"
    assert advise(WORK, 4, plan_of(pliant.async_average())).pace == "free"


def test_a_paragraph_says_all_and_why():
    said = advise(replace(WORK, noise_scale=1000.0, rank_factors=(1.0, 1.0, 1.0, 1.1)), 4, DDP)
    assert said.sentence == (
        "Multiply the learning rate by 3.66 (tuned for 32 samples a step), after a warm-up; "
        "let ranks wait for each other."
    )
    assert said.paragraph.startswith(said.sentence)
    assert "arXiv:1706.02677" in said.paragraph
    assert "1000 samples as measured" in said.paragraph
    assert "1.08 times the steps" in said.paragraph
    kept = advise(WORK, 4, DDP, tuned_for=128)
    assert kept.sentence.startswith("Keep the learning rate (tuned for 128 samples a step);")
    unsaid = advise(replace(WORK, batch_size=1), 4, DDP).paragraph
    assert "(tuned for one rank's batch a step)" in unsaid
    assert "An update takes 4 ranks' batches instead of one rank's batch" in unsaid
    with pytest.raises(ValueError, match="give at least one rank"):
        advise(WORK, 0, DDP)


NORMED = replace(WORK, tensors=tuple(replace(t, layer=t.layer.replace("Layer", "Batch")) for t in WORK.tensors))


def links(delay_s):
    return Topology(hosts=tuple(Host(name=f"h{k}", delay_s=delay_s) for k in range(2)))


def test_buffers_stay_with_their_ranks_where_a_round_trip_is_long_beside_a_step():
    given = {"topology": links(0.125), "step_s": 1.0}
    said = advise(NORMED, 2, DDP, **given)
    assert said.sentence.endswith("let ranks wait for each other; give DDP broadcast_buffers=False.")
    assert "a round trip of 250ms where a step takes 1s" in said.paragraph
    for other in ({"step_s": 2.6}, {"step_s": math.nan}, {"topology": None}, {"topology": links(0.0), "step_s": 0.0}):
        assert advise(NORMED, 2, DDP, **{**given, **other}).buffers_reason == ""
    assert advise(WORK, 2, DDP, **given).buffers_reason == ""  # no BatchNorm
    assert advise(replace(NORMED, num_shards=2), 2, DDP, **given).buffers_reason == ""
    assert advise(NORMED, 2, plan_of(pliant.local_sgd()), **given).buffers_reason == ""  # ranks have their own anyway


@pytest.mark.parametrize("kind", [float, torch.tensor])
def test_applying_and_taking_back(kind):
    one, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam([{"params": one.parameters()}, {"params": other.parameters()}], lr=kind(0.5))
    advice = advise(WORK, 4, DDP)
    applied = apply(advice, optimizer)
    assert [float(group["lr"]) for group in optimizer.param_groups] == [2.0, 2.0]
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    optimizer.step()
    schedule.step()
    with pytest.raises(ValueError, match="apply the advice first"):
        apply(advice, optimizer)
    applied.undo()
    applied.undo()
    assert [float(group["lr"]) for group in optimizer.param_groups] == [0.25, 0.25]
    assert [float(group["initial_lr"]) for group in optimizer.param_groups] == [0.5, 0.5]
