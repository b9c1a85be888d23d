"""Integer programs: verified, never worse, better where a better one is known. Needs OR-Tools for the last part."""

import sys

import pytest
from hypothesis import assume, given, settings

from pliant.schedules import (
    Collective,
    build_schedule,
    candidates,
    improve_owners,
    improve_rounds,
    merge_blocks,
    mixed_radix,
    predict_cost,
    solve_rounds,
    verify,
)
from pliant.schedules.program import _Program
from pliant.spec import Host, Link, Topology
from schedules.cases import hosts, problems, random_collective

RACKS = hosts([2, 2], rate=3e6)


def test_without_ortools_it_says_what_is_missing(monkeypatch):
    for name in ("ortools", "ortools.sat.python", "ortools.sat.python.cp_model"):  # some test may have imported it
        monkeypatch.setitem(sys.modules, name, None)
    full = Collective.of([[True] * 2] * 2, 1000)
    with pytest.raises(RuntimeError, match=r"need OR-Tools.*pliant\[schedules\]"):
        solve_rounds(build_schedule(full, [0, 1], mixed_radix((2,))), full, hosts([1, 1]))


def test_what_is_too_large_is_refused():
    full = Collective.of([[True] * 200] * 8, 1000)
    schedule = build_schedule(full, [0] * 200, mixed_radix((8,)))
    with pytest.raises(ValueError, match="44800 possible moves, but the program takes 40000; group blocks"):
        solve_rounds(schedule, full, hosts([1] * 8))


def test_owners_by_program_are_not_worse():
    for seed in range(3):
        collective = random_collective(4, 40, 0.3, seed)
        best = candidates(merge_blocks(collective), RACKS)[0]
        found = improve_owners(best, RACKS, limit_s=2)
        assert found.cost.total_s <= best.cost.total_s
        verify(found.schedule, found.merged.collective)


@settings(max_examples=5)
@given(problems(max_ranks=4))
def test_any_small_problem(problem):
    collective, topology, shape, owners = problem
    schedule = build_schedule(collective, owners, shape)
    found = solve_rounds(schedule, collective, topology, limit_s=1)
    assert found.predicted_s <= found.before_s
    assert predict_cost(found.schedule, collective, topology).total_s == found.predicted_s
    verify(found.schedule, collective)


@settings(max_examples=10)
@given(problems(max_ranks=4))
def test_what_the_solver_is_told_first_is_the_schedule_itself(problem):
    """All that the hint says holds together, where copies go to those alone who need them, as all do in a program."""
    cp_model = pytest.importorskip("ortools.sat.python.cp_model", reason="OR-Tools is an extra")
    collective, _, shape, owners = problem
    schedule = build_schedule(collective, owners, shape)
    copies = [move for moves in schedule.rounds for move in moves if move.kind == "copy"]
    assume(all(move.target in collective.needers[move.block] for move in copies))
    program = _Program(schedule, collective, cp_model)
    solver = cp_model.CpSolver()
    solver.parameters.fix_variables_to_their_hinted_value = True
    assert solver.solve(program.model) in (cp_model.OPTIMAL, cp_model.FEASIBLE)


def test_a_bad_schedule_is_improved():
    full = Collective.of([[True] * 4] * 4, 100_000)
    start = build_schedule(full, [0] * 4, mixed_radix((4,)))  # all on rank 0
    found = solve_rounds(start, full, hosts([1] * 4), limit_s=10)
    assert found.predicted_s < 0.5 * found.before_s
    assert len(found.schedule.rounds) <= 2
    assert 0 <= found.bound_s <= found.predicted_s * 1.001
    assert found.schedule.name == "program from direct"


SLOW_LINKS = tuple(Link(source=a, target=b, bytes_per_s=1e6, latency_s=0.0) for a, b in (("h0", "h1"), ("h1", "h0")))


@pytest.mark.parametrize(
    ("topology", "block_bytes"),
    [
        (hosts([1, 1], links=SLOW_LINKS), 1_000_000),
        (Topology(hosts=(Host(name="a", num_ranks=2, machine="t4"),)), 1 << 30),
    ],
    ids=["links", "inside"],
)
def test_the_bound_of_the_best_schedule_is_no_more_than_it_takes(topology, block_bytes):
    """Links with rates of their own, and hosts whose machine is faster inside than a core's loopback."""
    full = Collective.of([[True]] * 2, block_bytes)
    best = build_schedule(full, [0], mixed_radix((2,)))
    found = solve_rounds(best, full, topology, limit_s=10)
    assert 0.9 * found.predicted_s < found.bound_s <= found.predicted_s * 1.001
    assert found.predicted_s == found.before_s


def test_programs_beside_the_family():
    collective = random_collective(4, 12, 0.3, 7)
    best = candidates(merge_blocks(collective), RACKS)[0]
    found = improve_rounds(best, collective, RACKS, limit_s=1)
    assert found.cost.total_s <= best.cost.total_s
    verify(found.schedule, found.merged.collective)
