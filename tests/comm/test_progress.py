"""Who keeps a rank waiting: counted communications, without any network."""

from pliant.comm.progress import Progress, late_ranks


def told(*ranks):
    return {rank: {"group": progress.told} for rank, progress in enumerate(ranks)}


def pair():
    return Progress((0, 1), 2), Progress((0, 1), 2)


def test_who_has_begun_as_much_as_is_awaited_is_not_late():
    one, other = pair()
    for progress in (one, other):
        progress.collective()
    one.awaits(1)
    other.sends(0)
    assert late_ranks(0, "group", told(one, other)) == {}
    assert late_ranks(1, "group", told(one, other)) == {}


def test_who_has_begun_less_is_late_by_as_much():
    one, other = pair()
    for _ in range(3):
        one.collective()
    other.collective()
    assert late_ranks(0, "group", told(one, other)) == {1: 2}
    assert late_ranks(1, "group", told(one, other)) == {}


def test_a_late_rank_that_waits_hands_the_blame_on():
    ranks = [Progress((0, 1, 2), 3) for _ in range(3)]
    ranks[0].awaits(1)
    ranks[1].awaits(2)
    ranks[1].waits.add(2)
    assert late_ranks(0, "group", told(*ranks)) == {2: 1}


def test_of_who_has_told_nothing_nothing_is_known():
    one, _ = pair()
    one.collective()
    assert late_ranks(0, "group", told(one)) == {}
