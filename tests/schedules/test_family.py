"""Every schedule by rule is right, and no schedule with a move left out, doubled or changed is."""

import random
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, strategies as st

from pliant.schedules.collective import Collective, merge_blocks
from pliant.schedules.family import GroupLevel, NestedGroups, build_schedule, halving, mixed_radix, shapes
from pliant.schedules.verify import ScheduleError, verify
from pliant.spec import Move, Schedule, from_json, to_json
from schedules.cases import DENSITIES, problems, random_collective, topologies_of


@pytest.mark.parametrize("num_ranks", range(1, 17))
def test_all_shapes_are_verified_for_every_size_topology_and_density(num_ranks):
    all_shapes = {shape.levels: shape for t in topologies_of(num_ranks).values() for shape in shapes(t)}
    for seed, (shape, density) in enumerate(product(all_shapes.values(), DENSITIES)):
        collective = random_collective(num_ranks, 4, density, seed, all_need=seed % 3 > 0)
        owners = random.Random(seed).choices(range(num_ranks), k=collective.num_blocks)
        schedule = build_schedule(collective, owners, shape)
        found = verify(schedule, collective)
        assert found.num_rounds == len(schedule.rounds)
        assert sum(found.sent_bytes) == sum(found.received_bytes)


@given(problems())
def test_any_problem(problem):
    collective, _, shape, owners = problem
    schedule = build_schedule(collective, owners, shape)
    verify(schedule, collective)
    assert from_json(Schedule, to_json(schedule)) == schedule
    assert hash(from_json(Schedule, to_json(schedule))) == hash(schedule)


def without(schedule, index, at):
    moves = schedule.rounds[index]
    return change(schedule, index, moves[:at] + moves[at + 1 :])


def change(schedule, index, moves):
    return replace(schedule, rounds=(*schedule.rounds[:index], tuple(moves), *schedule.rounds[index + 1 :]))


@given(problems(max_ranks=6))
def test_every_deleted_or_doubled_move_is_rejected(problem):
    collective, _, shape, owners = problem
    schedule = build_schedule(collective, owners, shape)
    for index, moves in enumerate(schedule.rounds):
        for at, move in enumerate(moves):
            with pytest.raises(ScheduleError):
                verify(without(schedule, index, at), collective)
            for other in range(len(schedule.rounds)):
                with pytest.raises(ScheduleError):
                    verify(change(schedule, other, (*schedule.rounds[other], move)), collective)


@given(problems(max_ranks=6), st.data())
def test_moves_of_another_kind_or_to_others_are_rejected_or_right(problem, data):
    """A changed schedule that passes does what it should: summing what it moves shows it."""
    collective, _, shape, owners = problem
    schedule = build_schedule(collective, owners, shape)
    if not schedule.num_moves:
        return
    index = data.draw(st.integers(0, len(schedule.rounds) - 1))
    moves = list(schedule.rounds[index])
    at = data.draw(st.integers(0, len(moves) - 1))
    target = data.draw(st.integers(0, collective.num_ranks - 1))
    moves[at] = replace(moves[at], target=target, kind=data.draw(st.sampled_from(["reduce", "copy"])))
    changed = change(schedule, index, moves)
    try:
        verify(changed, collective)
    except ScheduleError:
        return
    assert sums(changed, collective)


def sums(schedule, collective):
    """Carry the schedule out with lists of contributors; say whether every needer ends with each holder once."""
    has = [{r: [r] for r in held} for held in collective.holders]
    for moves in schedule.rounds:
        sent = [(m, list(has[m.block][m.source])) for m in moves]
        for m in moves:
            if m.kind == "reduce":
                has[m.block][m.source] = []
        for m, what in sent:
            has[m.block][m.target] = what + (has[m.block].get(m.target, []) if m.kind == "reduce" else [])
    return all(
        sorted(has[b].get(r, [])) == list(collective.holders[b])
        for b, needing in enumerate(collective.needers)
        for r in needing
    )


def test_rounds_of_the_classic_ones():
    for num_ranks in (4, 8):
        full = Collective.of([[True] * num_ranks] * num_ranks, 8)
        owners = range(num_ranks)
        counts = {
            mixed_radix((num_ranks,)): 2,
            mixed_radix((num_ranks,), (True,)): 2 * (num_ranks - 1),
            halving(num_ranks): 2 * (num_ranks.bit_length() - 1),
        }
        for shape, num_rounds in counts.items():
            found = verify(build_schedule(full, owners, shape), full)
            assert found.num_rounds == num_rounds, shape.name
            assert set(found.sent_bytes) == {2 * (num_ranks - 1) * 8}, "2 (n-1)/n of all, by every rank"
    tree = build_schedule(full, [0] * num_ranks, halving(num_ranks))
    assert verify(tree, full).sent_bytes[0] == 3 * 8 * num_ranks
    assert [s.name for s in shapes(topologies_of(7)["full"])] == ["direct", "ring", "halving", "radix 4"]


def test_every_rank_may_need_what_only_one_holds_and_the_other_way_round():
    collective = Collective.of([[True, False], [False, False], [False, True]], 4, [[0, 1, 2], [0]])
    schedule = build_schedule(collective, [0, 0], mixed_radix((3,)))
    assert verify(schedule, collective).sent_bytes == (8, 0, 4)


def test_groups_keep_bytes_and_cut_large_classes():
    for seed in range(20):
        collective = random_collective(4, 30, 0.4, seed)
        found = merge_blocks(collective)
        assert sorted(b for piece in found.members for b in piece) == [
            b for b in range(33) if collective.holders[b] and collective.needers[b]
        ]
        for piece, num_bytes, held in zip(
            found.members, found.collective.block_bytes, found.collective.holders, strict=True
        ):
            assert num_bytes == sum(collective.block_bytes[b] for b in piece)
            assert {collective.holders[b] for b in piece} == {held}
    dense = Collective.of([[True] * 256] * 4, 1024)
    assert [len(piece) for piece in merge_blocks(dense).members] == [8] * 32
    assert len(merge_blocks(dense, 4).members) == 4
    assert merge_blocks(Collective.of([[False] * 3] * 2, 4)).members == ()


def test_refusals_name_both_sides():
    one = Collective.of([[True], [True]], 4)
    move = Move(source=0, target=1, block=0, kind="reduce")
    back = Move(source=1, target=0, block=0, kind="copy")

    def schedule(*rounds):
        return Schedule(name="s", num_ranks=2, num_blocks=1, rounds=rounds)

    verify(schedule((move,), (back,)), one)
    for rounds, sentence in (
        (((move,),), "at the end rank 0 needs block 0, but lacks the contributions of ranks 0, 1"),
        (((move,), (move,)), "in round 1, block 0 .* from rank 0 to rank 1 .* the source holds nothing of it"),
        (((back,),), "but contributions of rank 0 are missing"),
        (((move, move), (back,)), "hands it over in the same round"),
        (((move,), (back, back)), "has contributions of ranks 0, 1 already"),
        (((replace(move, target=0),),), "source and target are the same"),
        (((replace(move, block=3),),), "there are 2 ranks and 1 blocks"),
        (((replace(move, kind="both"),),), "a move is a 'reduce' or a 'copy'"),
    ):
        with pytest.raises(ScheduleError, match=sentence):
            verify(schedule(*rounds), one)
    with pytest.raises(ScheduleError, match="for 2 ranks and 1 blocks, but the collective has 3 and 1"):
        verify(schedule(), Collective.of([[True]] * 3, 4))
    narrow = Collective.of([[True], [False]], 4, [[0]])
    with pytest.raises(ScheduleError, match="copied to rank 1, which neither needs it nor hands it on"):
        verify(schedule((replace(move, kind="copy"),)), narrow)
    with pytest.raises(ScheduleError, match="but nobody needs it"):
        verify(schedule((move,)), Collective.of([[True], [False]], 4, [[]]))
    with pytest.raises(ValueError, match="joins 4 groups or ranks, but there are 2"):
        build_schedule(one, [0], mixed_radix((4,)))
    with pytest.raises(ValueError, match="ends in 2 groups"):
        build_schedule(one, [0], NestedGroups(name="open", levels=(GroupLevel(sizes=(1, 1)),)))
    with pytest.raises(ValueError, match="each of the 1 blocks needs one of the 2 ranks"):
        build_schedule(one, [2], halving(2))
    with pytest.raises(ValueError, match="has the shape"):
        Collective.of([True], 4)
    with pytest.raises(ValueError, match=r"must be ascending and within 0\.\.1"):
        Collective(num_ranks=2, block_bytes=(4,), holders=((1, 0),), needers=((0,),))
    with pytest.raises(ValueError, match="block 0 has -4 bytes"):
        Collective.of([[True]], -4)
    with pytest.raises(ValueError, match="sizes of 2 blocks, holders of 1"):
        Collective.of([[True]], [4, 4])
