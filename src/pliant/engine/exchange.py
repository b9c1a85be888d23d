"""One bucket's way through its algorithms, with what may go wrong said in full."""

import zlib
from collections.abc import Mapping, Sequence
from typing import Literal, NoReturn

import torch
from torch import Tensor
from torch.optim import Optimizer

from pliant.algorithms.base import AddsShares, Dial, Moment, Rest
from pliant.codecs import all_finite, first_nonfinite, scale
from pliant.comm.base import Comm, CommError
from pliant.engine.layout import LaidOut, Part, lay_out
from pliant.engine.store import Store

__all__ = ["Exchanger", "NonFinite", "NonFiniteGradientError"]

NonFinite = Literal["raise", "propagate"]


class NonFiniteGradientError(FloatingPointError):
    """A gradient holds NaN or Inf; the message names the rank, the bucket and the parameter.

    Raised on every rank, or, where gradients are not exchanged, on the rank that has it.
    """


class Exchanger:
    """Carries out a plan on flat buffers. Called in the lane, except for `laid_out` and `inspect`.

    Args:
        store: Choices and state of all parameters.
        comms: Who talks, for choices that are hierarchical (True) and for those that are not (False).
        nonfinite: 'raise' checks every bucket before and after; 'propagate' lets NaN and Inf through to all ranks,
            as DDP does, for GradScaler to find.
        optimizer: Whose learning rates algorithms may want to know.
        owed: Gradients per parameter that an earlier plan left; added once to the next exchange.

    """

    def __init__(
        self,
        store: Store,
        comms: Mapping[bool, Comm],
        nonfinite: NonFinite,
        optimizer: Optimizer,
        owed: dict[str, Tensor],
    ) -> None:
        self.store = store
        self._comms = comms
        self._nonfinite = nonfinite
        self._owed = owed
        self._optimizer = optimizer
        self._laid_out: dict[int, LaidOut] = {}
        self.dial: Dial | None = None
        """Of the controller, where a choice has a target."""
        self._bad_before: dict[str, int] = {}
        """Bucket -> what `inspect` has found in the gradients that are one step late."""

    def laid_out(self, index: int, names: Sequence[str], shapes: Sequence[tuple[int, ...]], buffer: Tensor) -> LaidOut:
        """Return how a bucket is split, laid out anew when DDP has changed what it holds."""
        if not self.knows(index, names):
            moved = set(names)
            self._laid_out = {k: v for k, v in self._laid_out.items() if moved.isdisjoint(v.names)}
            self._laid_out[index] = lay_out(index, names, shapes, buffer, self.store, self._comms)
        return self._laid_out[index]

    def knows(self, index: int, names: Sequence[str]) -> bool:
        """Say whether a bucket is laid out and still holds these parameters."""
        return index in self._laid_out and self._laid_out[index].names == tuple(names)

    @property
    def layout(self) -> dict[int, tuple[str, ...]]:
        """Which parameters lie in which bucket, in order; empty before the first exchange."""
        return {index: bucket.names for index, bucket in self._laid_out.items()}

    def inspect(self, bucket: LaidOut, buffer: Tensor) -> int:
        """Return the index of the first NaN or Inf in buffer, (numel,); -1 if there is none or nobody asks.

        Where the bucket is exchanged in shares, the buffer is divided by the number of ranks on the way.
        """
        if bucket.in_shares:
            finite = scale(buffer, 1 / self._comms[False].size)
        else:
            finite = self._nonfinite == "propagate" or all_finite(buffer)
        return -1 if finite or self._nonfinite == "propagate" else first_nonfinite(buffer)

    def run(self, bucket: LaidOut, buffer: Tensor, bad: int, *, step: int, turn: int) -> list[tuple[str, Rest]]:
        """Replace the local gradients in buffer, (numel,), by what the optimizer shall use; bad as `inspect` says.

        Returns what is left to do when all buckets have been handed over, under the bucket's name.
        """
        rests: list[tuple[str, Rest]] = []
        if bad >= 0:
            buffer.fill_(torch.nan)  # so that whatever codecs keep of it, every rank sees it
        if any(part.choice.delay_steps for part in bucket.parts):
            bad, self._bad_before[bucket.name] = self._bad_before.get(bucket.name, -1), bad
        for part in bucket.parts:
            part.load(buffer)
            if self._owed:
                self._pay(part, 1 / self._comms[False].size if bucket.in_shares else 1.0)
            choice = part.choice
            if self._comms[False].size > 1 or choice.what != "gradient" or choice.own is not None:
                seed = turn << 32 | zlib.crc32(part.bucket.spans[0].name.encode())
                lr = max(float(group.get("lr", 0.0)) for group in self._optimizer.param_groups)
                moment = Moment(step=step, seed=seed, lr=lr, dial=self.dial if choice.target else None)
                rest = self._run_part(part, moment, in_shares=bucket.in_shares)
                rests += [(bucket.name, rest)] if rest is not None else []
                if self._nonfinite == "raise" and not self._sound(part):
                    self._blame(bucket, bad)
            part.save(buffer)
        return rests

    def forgive(self) -> None:
        """Forget the gradients that an earlier plan left."""
        self._owed.clear()

    def refuse(self, bucket: LaidOut, bad: int) -> None:
        """Raise NonFiniteGradientError for a gradient that stays here and is not finite; bad as `inspect` says."""
        if bad >= 0 and self._nonfinite == "raise":
            self._raise_for(f"rank {self._comms[False].rank}: {bucket.name}, parameter {bucket.name_at(bad)}")

    def _sound(self, part: Part) -> bool:
        """Say whether a result is finite. Exact means of finite shares are, and poisoned ones are poison throughout."""
        exact = isinstance(part.algorithm, AddsShares) and part.choice.codec is None
        return all_finite(part.bucket.flat[:1] if exact else part.bucket.flat)

    def _run_part(self, part: Part, moment: Moment, *, in_shares: bool) -> Rest | None:
        algorithm = part.algorithm
        run = algorithm.on_shares if in_shares and isinstance(algorithm, AddsShares) else algorithm.on_ready
        try:
            return run(part.bucket, part.state, part.comm, moment)
        except CommError as error:
            names = [span.name for span in part.bucket.spans]
            what = f"{part.bucket.name} ({names[0]} .. {names[-1]})"
            raise CommError(
                f"while exchanging {what} in step {moment.step}: {error}",
                rank=error.rank,
                op=error.op,
                lost=error.lost,
            ) from error

    def _blame(self, bucket: LaidOut, bad: int) -> None:
        """Every rank has seen a poisoned result; tell all which rank began it, and with what."""
        device = bucket.parts[0].bucket.flat.device
        mine = torch.tensor([bad], dtype=torch.int64, device=device)  # (1,)
        comm = self._comms[False]
        all_bad = torch.empty(comm.size, dtype=torch.int64, device=device)  # (size,)
        comm.all_gather(all_bad, mine).wait()
        culprits = [(rank, index) for rank, index in enumerate(all_bad.tolist()) if index >= 0]
        if not culprits:
            who = f"every rank's gradient was finite, but their sum in {bucket.name} overflowed"
        else:
            who = "; ".join(f"rank {r}: {bucket.name}, parameter {bucket.name_at(i)}" for r, i in culprits)
        self._raise_for(who)

    def _raise_for(self, who: str) -> NoReturn:
        raise NonFiniteGradientError(
            f"a gradient is NaN or Inf ({who}). No weight was changed. Lower the learning rate or clip; "
            'with a GradScaler, which expects this, pass nonfinite="propagate".'
        )

    def _pay(self, part: Part, weight: float) -> None:
        for span in part.bucket.spans:
            if (debt := self._owed.pop(span.name, None)) is not None:
                part.bucket.view(span).add_(debt, alpha=weight)
