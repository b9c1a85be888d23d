"""Means over structures, and the law of when to look again."""

import pytest
import torch

from pliant.curvature import RefreshInterval, block_means, log_shift, shrink_and_clip, spearman, view_means


@pytest.mark.parametrize("numels", [(4, 4, 4), (5, 5, 2), (12,), (1, 4, 7), (6, 1, 5), (1,) * 12, (3, 3, 6)])
def test_block_means_are_of_the_positive_part(numels):
    x = torch.randn(3, 4)
    wanted = [float(piece.clamp(min=0).mean()) for piece in x.flatten().split(list(numels))]
    assert block_means(x, numels).tolist() == pytest.approx(wanted)


def test_blocks_must_make_up_the_tensor():
    for numels in [(4, 4), (13,), (12, 0), ()]:
        with pytest.raises(ValueError, match="do not divide a tensor of 12 elements"):
            block_means(torch.ones(3, 4), numels)
    assert block_means(torch.ones(0), ()).shape == (0,)


def test_views():
    x = torch.arange(24.0).view(4, 3, 2)
    assert view_means(x, "rows").tolist() == [2.5, 8.5, 14.5, 20.5]
    assert torch.equal(view_means(x, "channels"), view_means(x, "rows"))
    assert view_means(x, "columns").tolist() == [9.5, 11.5, 13.5]
    assert view_means(x, "heads", 2).tolist() == [5.5, 17.5]
    assert view_means(x, "elements", 10).tolist() == [4.5, 14.5, 21.5]
    for by, num, why in [("channels", 0, "3 dimensions"), ("heads", 3, "not 3 heads"), ("elements", 0, "not 0")]:
        with pytest.raises(ValueError, match=why):
            view_means(torch.ones(4, 4), by, num)


def test_settled():
    means, numels = torch.tensor([0.0, 1.0, 300.0]), (2, 2, 1)
    whole = (2 + 300) / 5
    assert shrink_and_clip(means, numels, shrink=0.0, clip=1e9).tolist() == pytest.approx(
        [whole / 1e9, 1, 300], rel=1e-5
    )
    assert shrink_and_clip(means, numels, shrink=1.0, clip=2).tolist() == pytest.approx([whole] * 3)
    found = shrink_and_clip(means, numels, shrink=0.5, clip=2).tolist()
    assert found == pytest.approx([max(whole / 2, whole / 2), whole / 2 + 0.5, min(2 * whole, 150 + whole / 2)])
    assert not shrink_and_clip(torch.zeros(3), numels, shrink=0.5, clip=50).any()


def test_ranks_and_shift():
    from scipy.stats import spearmanr

    g = torch.Generator().manual_seed(0)
    for _ in range(5):
        a, b = torch.randint(0, 9, (2, 40), generator=g).float()  # with ties
        assert spearman(a, b) == pytest.approx(spearmanr(a, b).statistic)
    assert spearman(torch.ones(3), torch.zeros(3)) == 1.0
    assert spearman(torch.ones(3), torch.arange(3.0)) == 0.0
    assert log_shift(torch.tensor([2.0, 2, 0, 5]), torch.tensor([1.0, 1, 1, 0])) == pytest.approx(0.693, abs=1e-3)
    assert log_shift(torch.zeros(2), torch.ones(2)) == 0.0


def test_the_interval_follows_what_was_seen():
    refresh = RefreshInterval(interval=20, max_interval=200)
    seen = []
    for ranks, shift in [(0.99, 0.1), (0.99, -0.1), (0.99, 0), (0.99, 0), (0.99, 0), (0.9, 0), (0.99, 0.3)]:
        refresh = refresh.after(ranks, shift)
        seen.append(refresh.interval)
    assert seen == [40, 80, 160, 200, 200, 100, 50]
    for _ in range(5):
        refresh = refresh.after(0.5, -1.0)
    assert refresh.interval == 10
    assert RefreshInterval(interval=4, max_interval=4).after(0.1, 0).interval == 4


@pytest.mark.parametrize("share", [0.03, 0.2])
def test_cost_stays_within_its_share_of_an_artificial_clock(share):
    refresh, clock_s, felt_s, due, step = RefreshInterval(time_share=share), 0.0, 0.0, 1, 0
    g = torch.Generator().manual_seed(1)
    while step < 20_000:
        step += 1
        clock_s += 0.5
        if step >= due:
            cost_s = 0.3 + 0.6 * float(torch.rand((), generator=g))
            felt_s, clock_s = felt_s + cost_s, clock_s + cost_s
            refresh = refresh.after(0.9, 0.0)  # never stable: as often as can be paid
            due = step + refresh.steps(cost_s, 0.5)
    assert felt_s / (clock_s - felt_s) <= share
    assert felt_s / (clock_s - felt_s) >= 0.5 * min(share, 0.6 / 5)  # and it does make use of it
    assert RefreshInterval().steps(1.0, 0.0) == 20
