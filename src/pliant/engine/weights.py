"""Weights exchanged between optimizer steps, in buckets of our own: however DDP lays out its own, replicas stay."""

import functools
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import torch
from torch import Tensor
from torch.optim import Optimizer

from pliant.algorithms.base import MixesWeights, Moment, Rest, State
from pliant.buckets import Bucket, spans_of
from pliant.codecs import first_nonfinite
from pliant.comm.base import Comm, CommError
from pliant.engine.exchange import NonFiniteGradientError
from pliant.engine.lane import Lane, Ticket
from pliant.engine.store import CORRECTION, Store
from pliant.engine.tape import Tape
from pliant.spec import Choice, Outer
from pliant.spec.division import weight_buckets

__all__ = ["Weights"]


@dataclass(kw_only=True)
class _Part:
    """A bucket of weights that are exchanged alike."""

    choice: Choice
    algorithm: MixesWeights
    bucket: Bucket
    views: list[Tensor]
    """Where each parameter lies in bucket.flat, in its own shape."""
    comm: Comm
    state: State
    offset: int
    """0, or how far before the period of the plan that of its fragment begins, which spreads fragments over it."""
    last: int
    """Step of the last exchange."""
    round: int = 0
    """Exchanges so far."""
    work: float = 0.0
    """What this rank had done by the last exchange."""
    distance: float = 0.0
    """Euclidean norm of what the last exchange has changed."""
    changed: list[Tensor] = field(default_factory=list[Tensor])
    """The same, parameter by parameter, of an exchange whose result replaces the weights."""
    ticket: Ticket | None = None
    """An exchange whose result has not been taken."""

    @property
    def late(self) -> bool:
        """Whether steps are made between an exchange and the use of its result."""
        return self.choice.delay_steps > 0 or self.choice.pace == "free"

    @property
    def acts_alone(self) -> bool:
        """Whether a single rank has something to do: its outer optimizer."""
        return self.choice.outer not in (None, Outer())

    def due(self, step: int, lr: float) -> bool:
        """Say whether weights are exchanged after this many steps."""
        if step <= self.choice.until_step:
            return step == self.choice.until_step
        stretched = int((self.choice.stretch / lr) ** 2) if self.choice.stretch and lr > 0 else 0
        return step - self.last >= max(self.choice.every, stretched)

    @torch.no_grad()
    def load(self) -> None:
        """Copy the weights into the bucket."""
        for view, weight in zip(self.views, self.bucket.weights, strict=True):
            view.copy_(weight)

    @torch.no_grad()
    def store(self) -> None:
        """Take the result: it replaces the weights, or, if it comes late, what it has changed is added to them."""
        if self.late:
            self.bucket.flat.copy_(self.state.flat[CORRECTION])
        self.changed.clear()
        for view, weight in zip(self.views, self.bucket.weights, strict=True):
            if self.late:
                weight.add_(view)
            else:
                self.changed.append(weight.sub_(view).norm())  # in place: it is replaced in any case
                weight.copy_(view)


class Weights:
    """Carries out what a plan says about weights, after each of this rank's steps.

    Args:
        store: Choices and state of all parameters.
        comms: Who talks, for choices that are hierarchical (True) and for those that are not (False); nobody else
            uses them.
        optimizer: Whose learning rate stretches periods.
        step: Steps made so far.
        tape: Where exchanges are noted.

    """

    def __init__(self, store: Store, comms: Mapping[bool, Comm], optimizer: Optimizer, step: int, tape: Tape) -> None:
        self._comms = comms
        self._optimizer = optimizer
        device = next(iter(store.parameters.values())).device
        self._lane = Lane(device, "pliant-weights", tape)
        self._parts = [
            _lay_out(f"weights {k}", fragment, names, store, comms, step)
            for k, (fragment, names) in enumerate(_buckets_of(store))
        ]
        self._begun = step
        self._counted = 0.0
        """Work that the caller has told of; if none, steps are what counts."""
        self._leaving = self._all_leave = False

    def follow(self, which: Callable[[str], bool] = lambda _: True) -> None:
        """Begin from the weights as they are, equal on all ranks, in every bucket with a parameter that is meant."""
        for part in self._parts:
            if any(which(span.name) for span in part.bucket.spans):
                part.load()
                part.algorithm.follow(part.bucket, part.state)

    def count(self, work: float) -> None:
        """Add to the work that this rank has done."""
        self._counted += work

    def after_step(self, step: int) -> None:
        """Take what has arrived, and exchange what is due."""
        self._lane.raise_error()
        lr = max(float(group["lr"]) for group in self._optimizer.param_groups)
        lockstep = [part for part in self._parts if part.choice.pace == "lockstep"]
        for part in lockstep:
            if part.ticket is not None and step >= part.last + part.choice.delay_steps:
                self._take(part)
        free = self._free
        if all(part.ticket is None or part.ticket.done for part in free):
            self._take_all(free)
            if any(part.due(step, lr) for part in free):
                self._start(free, step)
        due = [part for part in lockstep if part.due(step, lr)]
        self._start(due, step)
        self._take_all([part for part in due if not part.late])

    def finish(self, step: int) -> None:
        """Take everything that is in flight. Collective, between two steps; waits for ranks at a free pace to come."""
        if self._free and self._comms[False].size > 1:
            self._leaving, self._all_leave = True, False
            while not self._all_leave:
                self._take_all(self._free)
                self._start(self._free, step)
                self._take_all(self._free)
            self._leaving = False
        self._take_all(self._parts)
        self._lane.drain()

    def settle(self, step: int) -> None:
        """Make what is in flight a state that can be saved; at a free pace by taking it, which is collective."""
        if self._free:
            self.finish(step)
        self._lane.drain()

    def abandon(self) -> None:
        """Let go of what is in flight, and close. Others may be lost, so an exchange that has begun may fail."""
        for part in self._parts:
            part.ticket = None
        self.close()

    def close(self) -> None:
        """End the lane, and the comm."""
        self._lane.close()
        self._comms[False].close()

    @property
    def busy_s(self) -> float:
        """Time that the lane was at work."""
        return self._lane.busy_s

    @property
    def counters(self) -> Tensor:
        """Where each bucket stands, int64 (num_buckets, 3): step of the last exchange, exchanges, one in flight."""
        rows = [[part.last, part.round, part.ticket is not None] for part in self._parts]
        return torch.tensor(rows, dtype=torch.int64)

    @counters.setter
    def counters(self, rows: Tensor) -> None:
        for part, (last, round_, in_flight) in zip(self._parts, rows.tolist(), strict=True):
            part.last, part.round = last, round_
            part.ticket = self._lane.submit(lambda: None) if in_flight else None

    @property
    def distance(self) -> float:
        """Euclidean norm of what exchanges have last changed in this rank's weights; waits for nobody."""
        for part in self._parts:
            if part.changed:
                part.distance = float(torch.stack(part.changed).norm())
            elif part.late and (part.ticket is None or part.ticket.done):
                part.distance = float(part.state.flat[CORRECTION].norm())
        return sum(part.distance**2 for part in self._parts) ** 0.5

    @property
    def _free(self) -> list["_Part"]:
        return [part for part in self._parts if part.choice.pace == "free"]

    def _start(self, parts: Sequence["_Part"], step: int) -> None:
        if not parts:
            return
        share = [1.0]
        if any(part.choice.weighted or part.choice.pace == "free" for part in parts) and self._comms[False].size > 1:
            work, leaving = (self._counted or step - self._begun) - parts[0].work, self._leaving
            self._lane.submit(lambda: self._meet(work, leaving, share), name="meet", step=step - 1)
        rests: list[tuple[str, Rest]] = []
        for part in parts:
            part.load()
            if part.late:
                torch.neg(part.bucket.flat, out=part.state.flat[CORRECTION])
            mix = functools.partial(self._mix, part, step, share, rests)
            part.ticket = self._lane.submit(mix, name=part.bucket.name, step=step - 1)
            part.work = self._counted or step - self._begun
            part.last = step + part.offset if step == part.choice.until_step else step
        self._lane.submit_all(rests, step=step - 1)

    def _meet(self, work: float, leaving: bool, share: list[float]) -> None:
        """Learn which part of all work is this rank's, and whether all ranks are leaving."""
        comm = self._comms[False]
        table = torch.tensor([work, float(leaving)], dtype=torch.float64, device=self._parts[0].bucket.flat.device)
        comm.all_reduce(table).wait()
        total, leavers = table.tolist()
        share[0] = work * comm.size / total if total > 0 else 1.0
        self._all_leave = leavers == comm.size

    def _mix(self, part: "_Part", step: int, share: list[float], rests: list[tuple[str, Rest]]) -> None:
        bucket, names = part.bucket, [span.name for span in part.bucket.spans]
        if (bad := first_nonfinite(bucket.flat)) >= 0:
            name = next(s.name for s in reversed(bucket.spans) if s.offset <= bad)
            raise NonFiniteGradientError(
                f"after step {step} rank {part.comm.rank} has a NaN or Inf in the weights of {name}, and has not sent "
                "them. Lower the learning rate or clip."
            )
        seed = part.round << 32 | zlib.crc32(bucket.name.encode())
        moment = Moment(step=step, seed=seed, round=part.round, share=share[0] if part.choice.weighted else 1.0)
        part.round += 1
        try:
            alone = part.comm.size == 1 and not part.acts_alone
            rest = None if alone else part.algorithm.mix(bucket, part.state, part.comm, moment)
        except CommError as error:
            what = f"{bucket.name} ({names[0]} .. {names[-1]})"
            text = f"while exchanging {what} after step {step}: {error}"
            raise CommError(text, rank=error.rank, op=error.op, lost=error.lost) from error
        rests += [(bucket.name, rest)] if rest is not None else []
        if part.late:
            part.state.flat[CORRECTION].add_(bucket.flat)

    def _take(self, part: "_Part") -> None:
        if part.ticket is not None:
            part.ticket.wait()
            part.ticket = None
            part.store()

    def _take_all(self, parts: Sequence["_Part"]) -> None:
        for part in parts:
            self._take(part)


def _buckets_of(store: Store) -> list[tuple[int, list[str]]]:
    """Group the parameters whose weights are exchanged by choice and fragment, in buckets of limited size."""
    buckets: list[tuple[int, list[str]]] = []
    for choice in dict.fromkeys(choice for choice in store.choices.values() if choice.between_steps):
        names = [name for name, own in store.choices.items() if own == choice]
        numels = [store.parameters[name].numel() for name in names]
        buckets += [(k, [names[i] for i in held]) for k, held in weight_buckets(numels, choice.fragments)]
    return buckets


def _lay_out(
    name: str, fragment: int, names: Sequence[str], store: Store, comms: Mapping[bool, Comm], step: int
) -> _Part:
    parameters = tuple(store.parameters[n] for n in names)
    spans = spans_of(names, [tuple(p.shape) for p in parameters])
    numel = sum(p.numel() for p in parameters)
    bucket = Bucket(name=name, spans=spans, weights=parameters, flat=torch.empty(numel, device=parameters[0].device))
    choice = store.choices[names[0]]
    algorithm, comm = store.algorithms[choice], comms[choice.hierarchical]
    first_due = -(-choice.every * (fragment + 1) // choice.fragments)
    state = replace(store.state_of(bucket, between_steps=True), workspace=algorithm.prepare(bucket, comm))
    return _Part(
        choice=choice,
        algorithm=cast(MixesWeights, algorithm),
        bucket=bucket,
        views=[bucket.view(span) for span in spans],
        comm=comm,
        state=state,
        offset=first_due - choice.every,
        last=step + first_due - choice.every,
    )
