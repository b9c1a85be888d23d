"""The controller on an artificial link: it holds its target when the rate, the compute and the noise change."""

import math
import random
import statistics
from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch
from hypothesis import given, strategies as st

from pliant.algorithms.base import RatioSetting
from pliant.algorithms.control import ControlSample, RatioPolicy, SelectionIntervalPolicy
from pliant.spec import Target

MBIT = 125e3
RATES = [1000 * MBIT, 100 * MBIT, 10 * MBIT, 100 * MBIT]
PHASE = 80
SETTLED = 40
"""Steps after a change of rate by a factor of ten, until the target is held."""
EXPOSED = Target(of="exposed_s", value=0.02)


@dataclass(kw_only=True)
class World:
    """Steps with an exchange of `dense_bytes` at a ratio of 1, of which `hidden_s` lies behind backward."""

    noise: float = 0.0
    hidden_s: float = 0.005
    codec_s: float = 0.001
    compute_s: float = 0.05
    alpha: float = 2e-4
    messages: int = 6
    fixed_bytes: float = 2e3
    dense_bytes: float = 20e6
    bucket: bool = False
    """Whether what is sent while the link would be idle is free, as out of a shaper's bucket."""
    late: float = 0.0
    """Share of steps in which the network takes four times as long."""

    def true(self, rate, ratio):
        """Bytes, seconds on the wire and seconds exposed, without noise."""
        num_bytes = self.fixed_bytes + self.dense_bytes * ratio
        free_s = self.compute_s if self.bucket else 0.0
        wire_s = self.alpha * self.messages + max(0.0, num_bytes / rate - free_s)
        return num_bytes, wire_s, max(0.0, wire_s + self.codec_s - self.hidden_s)

    def window(self, control, rate, chance, left=0.0):
        """Make four steps and let the controller decide; return what was exposed without noise."""
        num_bytes, true_s, exposed_s = self.true(rate, control.ratio)
        rows = []
        for _ in range(4):
            factor = max(0.5, 1 + chance.gauss(0, self.noise)) * (4 if chance.random() < self.late else 1)
            late_s = max(0.0, true_s * factor + self.codec_s - self.hidden_s)
            rows.append((true_s * factor, late_s, self.compute_s + late_s))
        wire_s, seen_s, step_s = (statistics.median(column) for column in zip(*rows, strict=True))
        seen = ControlSample(
            steps=4,
            ratio=control.ratio,
            messages=self.messages,
            num_bytes=num_bytes,
            wire_s=wire_s,
            exposed_s=seen_s,
            step_s=step_s,
            left=left,
        )
        control.decide(seen)
        return exposed_s


def flown(world, target=EXPOSED, rates=RATES, seed=0, ratio=0.01):
    """Return, for each phase, what was exposed in each window."""
    control, chance = RatioPolicy(target, ratio), random.Random(seed)
    return control, [[world.window(control, rate, chance) for _ in range(PHASE // 4)] for rate in rates]


@pytest.mark.parametrize(
    "world",
    [
        World(),
        World(noise=0.05),
        World(noise=0.05, late=0.05),
        World(noise=0.03, hidden_s=0.0),
        World(noise=0.03, codec_s=0.008),
        World(noise=0.03, alpha=1e-3),
        World(noise=0.02, hidden_s=0.02),
        World(noise=0.03, bucket=True, compute_s=0.01, hidden_s=0.0),
    ],
    ids=str,
)
@pytest.mark.parametrize("seed", range(5))
def test_it_holds_its_target_from_1000_to_100_to_10_to_100_mbit(world, seed):
    _, phases = flown(world, seed=seed)
    for rate, exposed in zip(RATES, phases, strict=True):
        settled = exposed[SETTLED // 4 :]
        assert statistics.mean(settled) == pytest.approx(EXPOSED.value, rel=0.1), rate
        assert sum(abs(s / EXPOSED.value - 1) < 0.15 for s in settled) >= 0.9 * len(settled), rate


@pytest.mark.parametrize("seed", range(5))
def test_a_shaper_that_lets_much_pass_for_nothing_takes_longer(seed):
    world = World(noise=0.03, bucket=True, compute_s=0.06, hidden_s=0.0)
    for exposed in flown(world, seed=seed)[1]:
        assert statistics.mean(exposed[-6:]) == pytest.approx(EXPOSED.value, rel=0.1)


def test_without_noise_it_comes_to_rest():
    for exposed in flown(World())[1]:
        assert max(exposed[-5:]) - min(exposed[-5:]) < 1e-9
        assert exposed[-1] == pytest.approx(EXPOSED.value, rel=0.1)


def test_a_share_of_the_computation_is_held_when_the_computation_changes():
    target = Target(of="exposed_share", value=0.2)
    control, chance, world = RatioPolicy(target, 0.01), random.Random(2), World(noise=0.03)
    for compute_s, hidden_s in [(0.1, 0.005), (0.025, 0.001), (0.1, 0.03), (0.05, 0.0)]:
        world.compute_s, world.hidden_s = compute_s, hidden_s
        exposed = [world.window(control, 100 * MBIT, chance) for _ in range(20)]
        assert statistics.mean(exposed[10:]) == pytest.approx(0.2 * compute_s, rel=0.1)


@pytest.mark.parametrize("rate", [1000, 100, 10])
@pytest.mark.parametrize(
    ("before", "after"),
    [((0.001, 0.005), (0.006, 0.005)), ((0.001, 0.005), (0.001, 0.0)), ((0.008, 0.0), (0.001, 0.004))],
)
def test_it_holds_its_target_when_the_same_network_is_hidden_less_or_more(before, after, rate):
    """Seconds of the codec and seconds behind backward: the bracket that was found is of no use then."""
    control, chance, world = RatioPolicy(EXPOSED, 0.01), random.Random(0), World()
    for world.codec_s, world.hidden_s in (before, after):
        exposed = [world.window(control, rate * MBIT, chance) for _ in range(20)]
        assert exposed[10:] == [pytest.approx(EXPOSED.value, rel=0.1)] * 10


@pytest.mark.parametrize("of", ["bytes_per_step", "bytes_per_s"])
def test_bytes_are_held_and_fixed_ones_are_counted_in(of):
    target = Target(of=of, value=3e5 if of == "bytes_per_step" else 5e6)
    control, chance, world = RatioPolicy(target, 0.01), random.Random(2), World(fixed_bytes=1e5)
    for _ in range(12):
        world.window(control, 100 * MBIT, chance)
    num_bytes, _, exposed_s = world.true(100 * MBIT, control.ratio)
    held = num_bytes if of == "bytes_per_step" else num_bytes / (world.compute_s + exposed_s)
    assert held == pytest.approx(target.value, rel=0.05)


def test_it_grows_by_a_quarter_a_step_at_most_and_falls_at_once():
    control, chance, world = RatioPolicy(EXPOSED, 1e-3), random.Random(0), World()
    ratios = [control.ratio]
    for _ in range(4):
        world.window(control, 1000 * MBIT, chance)
        ratios.append(control.ratio)
    assert all(b / a <= 1.25**4 * (1 + 1e-12) for a, b in pairwise(ratios))
    assert ratios[1] == pytest.approx(1.25**4 * ratios[0])
    assert control.bound == "slew"
    for _ in range(10):
        world.window(control, 1000 * MBIT, chance)
    high = control.ratio
    for _ in range(3):
        world.window(control, 10 * MBIT, chance)
    assert control.ratio < high / 50


def test_floor_and_ceiling_bind_and_nothing_winds_up_there():
    target = Target(of="exposed_s", value=0.02, floor=0.005, ceiling=0.03)
    control, chance, world = RatioPolicy(target, 0.01), random.Random(0), World()
    for _ in range(200):
        world.window(control, 1000 * MBIT, chance)
    assert (control.ratio, control.bound) == (0.03, "ceiling")
    for _ in range(4):
        world.window(control, 10 * MBIT, chance)
    assert (control.ratio, control.bound) == (0.005, "floor")
    for _ in range(200):
        world.window(control, 10 * MBIT, chance)
    exposed = [world.window(control, 100 * MBIT, chance) for _ in range(10)]
    assert exposed[-1] == pytest.approx(0.02, rel=0.1)


def test_it_stays_above_the_knee_where_twice_as_much_is_left_behind():
    def left(ratio):
        return 0.1 * (ratio / 0.1) ** -0.5  # doubles at a quarter of the plan's ratio

    control, chance, world = RatioPolicy(EXPOSED, 0.1), random.Random(0), World()
    ratios = []
    for _ in range(30):
        world.window(control, 100 * MBIT, chance, left(control.ratio))
        ratios.append(control.ratio)
    assert control.loss_bound == pytest.approx(0.025)
    assert ratios[-5:] == pytest.approx([0.025] * 5)
    assert control.bound == "knee"


def test_steps_without_an_exchange_change_nothing():
    control = RatioPolicy(EXPOSED, 0.1)
    seen = ControlSample(steps=4, ratio=0.1, messages=0, num_bytes=0, wire_s=0, exposed_s=0, step_s=0.1)
    assert control.decide(seen) == 0.1
    assert control.link.alpha == control.link.beta == 0


def test_the_same_numbers_give_the_same_decisions_also_after_a_restart():
    world, chances = World(noise=0.1), [random.Random(4) for _ in range(2)]
    one, other = RatioPolicy(EXPOSED, 0.01), RatioPolicy(EXPOSED, 0.01)
    for _ in range(10):
        world.window(one, 100 * MBIT, chances[0])
        world.window(other, 100 * MBIT, chances[1])
    fresh = RatioPolicy(EXPOSED, 0.01)
    fresh.restore(other.state())
    for _ in range(10):
        world.window(one, 10 * MBIT, chances[0])
        world.window(fresh, 10 * MBIT, chances[1])
    assert one.state() == fresh.state()


@given(
    st.lists(
        st.tuples(
            st.just(0.0) | st.floats(1, 1e8), st.just(0.0) | st.floats(1e-6, 10), st.floats(0, 10), st.floats(1e-3, 1)
        ),
        min_size=1,
        max_size=20,
    ),
    st.sampled_from(["exposed_s", "exposed_share", "bytes_per_step", "bytes_per_s"]),
)
def test_whatever_is_seen_the_ratio_stays_within_its_limits(rows, of):
    control = RatioPolicy(Target(of=of, value=0.5, floor=0.001, ceiling=0.4), 0.01)
    for num_bytes, wire_s, exposed_s, left in rows:
        before = control.ratio
        seen = ControlSample(
            steps=4,
            ratio=before,
            messages=3,
            num_bytes=num_bytes,
            wire_s=wire_s,
            exposed_s=min(exposed_s, 10.0),
            step_s=exposed_s + 0.1,
            left=left,
        )
        ratio = control.decide(seen)
        assert 0.001 <= ratio <= 0.4
        assert ratio <= max(before * 1.25**4, 0.001) * (1 + 1e-9)


def reused_after(control, num, select_s):
    for _ in range(num):
        seen = ControlSample(
            steps=4,
            ratio=0.1,
            messages=1,
            num_bytes=1,
            wire_s=1,
            exposed_s=0,
            step_s=0.1,
            select_s=select_s / control.reuse,
        )
        control.decide(seen)
    return control.reuse


def test_what_takes_too_long_to_choose_serves_longer_and_shorter_again_when_it_is_cheap():
    control = SelectionIntervalPolicy(0.05)
    assert reused_after(control, 20, 0.004) == 1
    assert reused_after(control, 20, 0.03) == 8
    assert {reused_after(control, 1, 0.03) for _ in range(20)} == {8}, "it goes to and fro"
    other = SelectionIntervalPolicy(0.05)
    reused_after(other, 1, 0.1)
    other.restore(control.state())
    assert other.state() == control.state()
    assert reused_after(control, 60, 1e-4) == 1
    assert reused_after(control, 60, 1.0) == 32


def test_what_is_left_behind_is_a_part_of_all_exchanges_since_it_was_asked():
    ratio_setting = RatioSetting()
    assert ratio_setting.pop_dropped_share() == 0.0
    ratio_setting.report(0.1, torch.tensor(1.0), torch.tensor(2.0))
    ratio_setting.report(0.2, torch.tensor(2.0), torch.tensor(10.0))
    assert ratio_setting.used == 0.2
    assert ratio_setting.pop_dropped_share() == 0.25
    assert ratio_setting.pop_dropped_share() == 0.0
    for whole in (0.0, math.inf, math.nan):  # nothing was sent, or a step was poisoned
        ratio_setting.report(0.1, torch.tensor(0.0), torch.tensor(whole))
        assert ratio_setting.pop_dropped_share() == 0.0
