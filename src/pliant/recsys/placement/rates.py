"""Rates of work on a machine: seconds of each thing that is counted, given, measured or fitted to steps."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np
import numpy.typing as npt

from pliant.netmodel import Overheads

__all__ = ["Rates", "fit_rates"]

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Seconds of work on embedding tables, and overheads of messages. Defaults are of one CPU core."""

    id_s: float = 6e-8
    """Of an id that is made distinct: sorted, and found again."""
    row_s: float = 6e-8
    """Of a row gathered from a table: a jump in memory."""
    number_s: float = 6e-10
    """Of a number pooled, or added to a gradient."""
    coded_s: float = 4e-10
    """Of a number encoded or decoded, where a layout has fewer than 32 bits."""
    updated_s: float = 2e-9
    """Of a number of a row that the optimizer updates."""
    piece_s: float = 2e-5
    """Of a piece of a table in each step, however little is asked of it."""
    lookup_s: float = 5e-4
    """Of a lookup in a group of alike pieces, however few ids it has, there and back."""
    step_s: float = 1e-3
    """Of a step with embeddings, whatever is in it."""
    overheads: Overheads = field(default_factory=Overheads)
    """What messages cost beside the links; a wire factor below 1 where bursts pass, or exchanges overlap."""

    def __post_init__(self) -> None:
        times = [getattr(self, f.name) for f in fields(self) if f.name.endswith("_s")]
        if min(times) < 0:
            raise ValueError(f"{self} cannot be: times are at least 0.")

    @property
    def counts_s(self) -> Floats:
        """Seconds (counts,) of each of `traffic.COUNTS`."""
        return np.array([getattr(self, name) for name in _COUNTED])


_PULL = 1e-2
_COUNTED = ("id_s", "row_s", "number_s", "coded_s", "updated_s", "piece_s")
_OWN = (*_COUNTED, "lookup_s", "step_s")


def fit_rates(features: Sequence[Floats], wire_s: Sequence[float], measured_s: Sequence[float], start: Rates) -> Rates:
    """Return rates that explain measured steps best, in squared error relative to what was measured.

    Args:
        features: Of each step (9,): the six counts of the busiest rank of each stage, summed, then lookups, messages,
            and 1: as `StepCost.features` has them.
        wire_s: Of each step: links and delays, by the rates `start`; as `StepCost.wire_s`.
        measured_s: Of each step, without its dense part.
        start: Where the steps say nothing about a rate, it stays; a rate that no step uses cannot be learned.

    Raises:
        ValueError: There are no steps, not as many times, or a time that is not above 0.

    """
    from scipy.optimize import nnls  # here, since it takes long to import

    if not len(features) == len(wire_s) == len(measured_s) > 0 or min(measured_s) <= 0:
        raise ValueError(
            f"{len(features)} steps have features, {len(measured_s)} times; there must be as many, some, all above 0."
        )
    took = np.asarray(measured_s, np.float64)
    wire = np.asarray(wire_s, np.float64) / start.overheads.wire_factor
    A = np.concatenate([np.asarray(features, np.float64), wire[:, None]], axis=1) / took[:, None]
    columns = (*_COUNTED, "lookup_s", "message_s", "step_s", "wire_factor")
    known = np.array([getattr(start if name in _OWN else start.overheads, name) for name in columns])
    used = A.any(axis=0)
    # Columns in units of what they were believed to take; a weak pull towards that belief settles what the steps cannot
    # tell apart.
    scale = np.where(known > 0, known, 1e-9)
    pull = _PULL * np.eye(int(used.sum()))
    wanted = np.concatenate([np.ones(len(took)), _PULL * (known / scale)[used]])
    found, _ = nnls(np.concatenate([(A * scale)[:, used], pull]), wanted)
    values = known.copy()
    values[used] = found * scale[used]
    named = dict(zip(columns, values.tolist(), strict=True))
    overheads = replace(start.overheads, message_s=named.pop("message_s"), wire_factor=named.pop("wire_factor"))
    return replace(start, overheads=overheads, **named)
