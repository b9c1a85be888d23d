"""The whole schedule as an integer program over rounds, solved by CP-SAT from the best that rules give."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from pliant.netmodel import Links, Overheads, overheads_of
from pliant.schedules.collective import Collective
from pliant.schedules.cost import predict_cost
from pliant.schedules.verify import verify
from pliant.spec import Move, Schedule, Topology

__all__ = ["SolvedRounds", "solve_rounds", "too_large"]

_UNITS = 1_000_000
"""Units of time in the first schedule's duration: costs of the program are whole numbers of them, rounded up."""
_MAX_MOVES = 40_000
"""Binaries of moves beyond which the solver finds nothing in any time that one would wait."""


@dataclass(frozen=True, kw_only=True)
class SolvedRounds:
    """Outcome of a program on a schedule."""

    schedule: Schedule
    """The better one of the two; the one given if nothing better was found in time."""
    predicted_s: float
    before_s: float
    bound_s: float
    """Time that the solver proved no schedule of as many rounds beats, by its rounded costs; 0 if it proved none."""


def solve_rounds(
    schedule: Schedule,
    collective: Collective,
    topology: Topology,
    overheads: Overheads | None = None,
    *,
    limit_s: float = 10.0,
    num_workers: int = 1,
) -> SolvedRounds:
    """Search a faster schedule of at most as many rounds; the result is verified and never slower.

    Unknowns, for block b, ranks r and s, round k: y (r hands its partial to s), v (r copies the sum to s), a (r has a
    partial when the round begins); f (r has the sum and keeps it). A partial is handed over at most once by a rank, and
    not after it has become the sum; the only rank with a partial has the sum; all needers have it in the end. So no
    sets of contributors are needed. Times of a round are those of `predict_cost`, without sharing; so the bound holds,
    and a result counts only if it is faster with sharing, too. The solver's speed decides: let one rank solve.

    Args:
        schedule: A valid one, from which the solver starts.
        collective: Its task: of few blocks, such as `merge_blocks(collective, 2 * num_ranks)` gives.
        topology: Network with the rates.
        overheads: Overheads beside them.
        limit_s: Of the solver.
        num_workers: Threads of the solver.

    Raises:
        RuntimeError: OR-Tools is not installed.
        ValueError: There are too many blocks, ranks and rounds.

    """
    overheads = overheads if overheads is not None else overheads_of(topology)
    verify(schedule, collective)
    before_s, bound_s = predict_cost(schedule, collective, topology, overheads).total_s, 0.0
    if too_large(schedule):
        raise ValueError(
            f"{schedule.num_blocks} blocks on {schedule.num_ranks} ranks in {len(schedule.rounds)} rounds make "
            f"{_num_binaries(schedule)} possible moves, but the program takes {_MAX_MOVES}; group blocks into fewer."
        )
    if before_s > 0 and limit_s > 0 and schedule.num_moves:
        program = _Program(schedule, collective, _cp_model())
        program.price(Links(topology, overheads), before_s / _UNITS)
        found, bound = program.solve(limit_s, num_workers)
        bound_s = bound * before_s / _UNITS
        if found is not None:
            verify(found, collective)
            predicted_s = predict_cost(found, collective, topology, overheads).total_s
            if predicted_s < before_s:
                return SolvedRounds(schedule=found, predicted_s=predicted_s, before_s=before_s, bound_s=bound_s)
    return SolvedRounds(schedule=schedule, predicted_s=before_s, before_s=before_s, bound_s=bound_s)


def too_large(schedule: Schedule) -> bool:
    """Say whether there are too many blocks, ranks and rounds for a program that starts from this schedule."""
    return _num_binaries(schedule) > _MAX_MOVES


def _num_binaries(schedule: Schedule) -> int:
    return 2 * len(schedule.rounds) * schedule.num_blocks * schedule.num_ranks * (schedule.num_ranks - 1)


def _cp_model() -> Any:
    try:
        from ortools.sat.python import cp_model
    except ImportError as error:
        raise RuntimeError(
            "schedules by an integer program need OR-Tools, which is not installed; run "
            "`pip install 'pliant[schedules]'`, or use a schedule of the family."
        ) from error
    return cp_model


class _Program:
    """The model. `y` and `v` are by (block, source, target, round), `a` and `f` by (block, rank, round)."""

    def __init__(self, schedule: Schedule, collective: Collective, cp_model: Any) -> None:
        self.cp_model, self.model = cp_model, cp_model.CpModel()
        self.start, self.collective = schedule, collective
        self.rounds, self.ranks = range(len(schedule.rounds)), range(collective.num_ranks)
        self.blocks = [b for b in range(collective.num_blocks) if collective.holders[b] and collective.needers[b]]
        self.y: dict[tuple[int, int, int, int], Any] = {}
        self.v: dict[tuple[int, int, int, int], Any] = {}
        self.a: dict[tuple[int, int, int], Any] = {}
        self.f: dict[tuple[int, int, int], Any] = {}
        self.objective: list[Any] = []
        for b in self.blocks:
            self._block(b)
        self._hint()

    def _block(self, b: int) -> None:
        held, needed = self.collective.holders[b], self.collective.needers[b]
        new, add = self.model.new_bool_var, self.model.add
        for k in (*self.rounds, len(self.rounds)):
            for r in self.ranks:
                self.a[b, r, k], self.f[b, r, k] = new(""), new("")
        for r in self.ranks:
            add(self.a[b, r, 0] == int(r in held))
            add(self.f[b, r, 0] <= int(held == (r,)))
            if r in needed:
                add(self.f[b, r, len(self.rounds)] == 1)
        for k in self.rounds:
            for r in self.ranks:
                for s in self.ranks:
                    if r != s:
                        self.y[b, r, s, k] = new("")
                        if s in needed:
                            self.v[b, r, s, k] = new("")
            for r in self.ranks:
                self._rank(b, r, k)
        for r in self.ranks:
            self.model.add_at_most_one(self.y[b, r, s, k] for k in self.rounds for s in self.ranks if s != r)

    def _rank(self, b: int, r: int, k: int) -> None:
        """Add the constraints on rank r and block b in round k, and return its state afterwards."""
        add, others = self.model.add, [s for s in self.ranks if s != r]
        a, then = self.a[b, r, k], self.a[b, r, k + 1]
        f, kept = self.f[b, r, k], self.f[b, r, k + 1]
        handed = sum(self.y[b, r, s, k] for s in others)
        partials = [self.y[b, s, r, k] for s in others]
        copies = [self.v[b, s, r, k] for s in others if (b, s, r, k) in self.v]
        add(handed <= a)
        add(handed + f <= 1)  # what has become the sum stays
        add(then >= a - handed)
        add(then <= a - handed + sum(partials))
        for partial in partials:
            self.model.add_implication(partial, then)
        for s in others:
            if (b, r, s, k) in self.v:
                self.model.add_implication(self.v[b, r, s, k], f)
        if copies:
            add(sum(copies) + f <= 1)
        alone = self.model.new_bool_var("")  # the only one with a partial: it is the sum
        self.model.add_implication(alone, then)
        for s in others:
            self.model.add_implication(alone, ~self.a[b, s, k + 1])
        self.model.add_implication(f, kept)
        add(kept <= f + alone + sum(copies))

    def price(self, network: Links, unit_s: float) -> None:
        """Give each round its time, in units: the sum of its busiest interface, latency, messages and sums."""
        host_of, sizes = network.host_of.tolist(), self.collective.block_bytes
        overheads, crowd = network.overheads, network.topology.ranks_per_cpu
        rates = (network.out_s, network.in_s, network.up_s, network.down_s)
        out_s, in_s, up_s, down_s = ((overheads.wire_factor * each).tolist() for each in rates)
        ends = zip(network.link_source, network.link_target, strict=True)
        own = dict(zip(ends, (overheads.wire_factor * network.link_s).tolist(), strict=True))
        inside_s = (network.inside_factor / overheads.loopback_bytes_per_s).tolist()

        def units(seconds: float) -> int:
            return -int(-seconds // unit_s)

        for k in self.rounds:
            out, into, up, down, inside, reduced, handled = ({} for _ in range(7))
            link: dict[Any, list[Any]] = {}
            latencies: list[Any] = []
            for r in self.ranks:
                for s in self.ranks:
                    if r == s:
                        continue
                    moved = [
                        (sizes[b], m[b, r, s, k]) for m in (self.y, self.v) for b in self.blocks if (b, r, s, k) in m
                    ]
                    used = self.model.new_bool_var("")
                    for _, move in moved:
                        self.model.add_implication(move, used)
                    for rank in (r, s):
                        handled.setdefault(rank, []).append((1, used))
                    reduced.setdefault(s, []).extend((sizes[b], self.y[b, r, s, k]) for b in self.blocks)
                    g, h = host_of[r], host_of[s]
                    if g == h:
                        inside.setdefault(g, []).extend(moved)
                        continue
                    out.setdefault(g, []).extend(moved)
                    into.setdefault(h, []).extend(moved)
                    link.setdefault((g, h), []).extend(moved)
                    if (a := network.rack_of[g]) != (c := network.rack_of[h]):
                        up.setdefault(a, []).extend(moved)
                        down.setdefault(c, []).extend(moved)
                    latencies.append(units(float(network.delays_s[g, h])) * used)
            sides = ((out, out_s), (into, in_s), (up, up_s), (down, down_s))
            wires = [
                _weighted_sum(each, per_byte_s[k], units) for moved, per_byte_s in sides for k, each in moved.items()
            ]
            wires += [_weighted_sum(each, own[pair], units) for pair, each in link.items() if pair in own]
            wires += [_weighted_sum(each, inside_s[host], units) for host, each in inside.items()]
            self._longest(wires)
            self._longest(latencies)
            self._longest(_weighted_sum(each, crowd * overheads.message_s, units) for each in handled.values())
            added_s = crowd / overheads.reduce_bytes_per_s
            self._longest(_weighted_sum(each, added_s, units) for each in reduced.values())

    def _longest(self, times: Iterable[Any]) -> None:
        longest = self.model.new_int_var(0, 4 * _UNITS, "")
        for time in times:
            self.model.add(time <= longest)
        self.objective.append(longest)

    def _hint(self) -> None:
        """Walk the schedule given, and tell the solver where everything is."""
        moved = {(m.block, m.source, m.target, k): m.kind for k, moves in enumerate(self.start.rounds) for m in moves}
        for variables, kind in ((self.y, "reduce"), (self.v, "copy")):
            for key, variable in variables.items():
                self.model.add_hint(variable, int(moved.get(key) == kind))
        for b in self.blocks:
            partial, copied = set(self.collective.holders[b]), set[int]()
            reduced = [[m for m in moves if (m.block, m.kind) == (b, "reduce")] for moves in self.start.rounds]
            for k in (*self.rounds, len(self.rounds)):
                leaving = {m.source for moves in reduced[k:] for m in moves}
                final = copied | (partial - leaving if len(partial) == 1 else set[int]())
                for r in self.ranks:
                    self.model.add_hint(self.a[b, r, k], int(r in partial))
                    self.model.add_hint(self.f[b, r, k], int(r in final))
                for moves in reduced[k : k + 1]:
                    partial -= {m.source for m in moves}
                    partial |= {m.target for m in moves}
                for moves in self.start.rounds[k : k + 1]:
                    copied |= {m.target for m in moves if (m.block, m.kind) == (b, "copy")}

    def solve(self, limit_s: float, num_workers: int) -> tuple[Schedule | None, float]:
        """Return the best schedule found, if any, and the proven bound in units."""
        self.model.minimize(sum(self.objective))
        solver = self.cp_model.CpSolver()
        solver.parameters.max_time_in_seconds = limit_s
        solver.parameters.num_workers = num_workers
        status = solver.solve(self.model)
        bound = max(0.0, float(solver.best_objective_bound))
        if status not in (self.cp_model.OPTIMAL, self.cp_model.FEASIBLE):
            return None, bound
        rounds: list[list[Move]] = [[] for _ in self.rounds]
        kinds: tuple[tuple[dict[Any, Any], Literal["reduce", "copy"]], ...] = ((self.y, "reduce"), (self.v, "copy"))
        for variables, kind in kinds:
            for (b, r, s, k), variable in variables.items():
                if solver.boolean_value(variable):
                    rounds[k].append(Move(source=r, target=s, block=b, kind=kind))
        return Schedule(
            name=f"program from {self.start.name}",
            num_ranks=self.start.num_ranks,
            num_blocks=self.start.num_blocks,
            rounds=tuple(tuple(sorted(moves)) for moves in rounds if moves),
        ), bound


def _weighted_sum(terms: Iterable[tuple[int, Any]], seconds: float, units: Any) -> Any:
    """Return the sum of all terms' amounts times `seconds` each, in units."""
    return sum(units(amount * seconds) * variable for amount, variable in terms)
