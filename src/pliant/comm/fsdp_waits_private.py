"""Waits of a parameter group of FSDP2 for other ranks, and its forgetting of a pass, with a function around each."""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pliant.accelerator import is_accelerator

__all__ = ["RESET", "Call", "WrappedWaits", "call_at_reset", "inner_place"]

Call = Callable[..., Any]

_METHODS = ("unshard", "wait_for_unshard", "post_backward")
"""Methods in which the stream of an accelerator waits."""
_PLACES = ("_all_gather_comm", "_reduce_scatter_comm")
"""Collectives, which on the CPU wait themselves."""
RESET = "_reset_iter_state"
"""Method in which a group forgets a pass that was broken off; torch has it from 2.13 on."""


class WrappedWaits:
    """Waits of a group for gathers, reduce-scatters and the exchange of replicas, wrapped until `close`.

    On the CPU these are the collectives alone, so that FSDP2's copies around them count as computing. On an accelerator
    a collective has a stream of its own, and computing waits in the methods around it.

    Args:
        raw: The group.
        wrap: Returns a function that calls another.
        averages: Whether torch averages reduced gradients among replicas, which it does within `post_backward`.

    """

    def __init__(self, raw: Any, wrap: Callable[[Call], Call], *, averages: bool) -> None:
        self._raw = raw
        methods, places = (_METHODS, ()) if is_accelerator(raw.device) else ((), _PLACES)
        if averages and places:
            methods, places = ("post_backward",), _PLACES[:1]
        around: dict[str, Any] = {name: wrap(getattr(raw, name)) for name in methods}
        around |= {name: _WrappedPlace(getattr(raw, name), wrap) for name in places}
        self._put = {name: (vars(raw).get(name), put) for name, put in around.items()}
        """Attribute -> what was there, and what is there now."""
        for name, put in around.items():
            setattr(raw, name, put)

    def close(self) -> None:
        """Put back what was there; a second call does nothing."""
        for name, (before, put) in self._put.items():
            if vars(self._raw).get(name) is not put:
                continue  # a run has begun or ended meanwhile, and put its own there
            if before is None:
                delattr(self._raw, name)
            else:
                setattr(self._raw, name, before)
        self._put.clear()


class _WrappedPlace:
    """A collective as a group holds it, of which the call is wrapped, and the wait for what it returns."""

    def __init__(self, place: Any, wrap: Callable[[Call], Call]) -> None:
        self.place = place
        self._call, self._wrap = wrap(place), wrap

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return self.place.allocate(size, dtype=dtype, device=device)

    def __call__(self, *given: Any, **named: Any) -> Any:
        work = self._call(*given, **named)
        return _WrappedWork(work, self._wrap(work.wait)) if isinstance(work, dist.Work) else work


class _WrappedWork(dist.Work):
    """A collective under way."""

    def __init__(self, work: dist.Work, wait: Call) -> None:
        super().__init__()
        self._work, self._wait = work, wait

    def wait(self, *given: Any) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self._wait(*given)

    def is_completed(self) -> bool:
        return self._work.is_completed()


def call_at_reset(raw: Any, call: Callable[[], None]) -> None:
    """Call a method, held weakly, where a group forgets a pass (`reset_iter_state`), until `RESET` is deleted there."""
    reset: Callable[[Any], None] | None = getattr(type(raw), RESET, None)
    if reset is None:
        return
    own, method = weakref.ref(raw), weakref.WeakMethod(call)

    def both() -> None:
        reset(own())
        if (known := method()) is not None:
            known()

    setattr(raw, RESET, both)


def inner_place(place: Any) -> Any:
    """Return the collective inside a wrapped one; any other as it is."""
    return place.place if isinstance(place, _WrappedPlace) else place
