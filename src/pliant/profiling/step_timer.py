"""Times of the parts of a training step, from marks that hooks take."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, cast

import torch
from torch import Tensor

from pliant.engine.device_timer import DeviceTimer

__all__ = ["StepTimer", "tensors_in"]


@dataclass
class _Step:
    """Marks of one step; times are taken from them when it is over."""

    forwards: list[tuple[Any, Any]] = field(default_factory=list[tuple[Any, Any]])
    earlier: list[tuple[Any, Any]] = field(default_factory=list[tuple[Any, Any]])
    """Backward passes before the last, as in gradient accumulation."""
    backward_from: Any = None
    ready: dict[str, Any] = field(default_factory=dict[str, Any])
    waits: list[tuple[Any, Any]] = field(default_factory=list[tuple[Any, Any]])
    """Waits for other ranks, which are no computing."""
    optimizer_from: Any = None


class StepTimer:
    """Takes the marks of steps. On CUDA they are events in the stream, so that nothing waits before the step is over.

    Backward begins when a gradient reaches the model's output: the loss is no part of it.

    Args:
        names: Parameters, in any order.
        device: Where they are.

    """

    def __init__(self, names: Iterable[str], device: torch.device) -> None:
        self._clock = DeviceTimer(device)
        self._now = _Step()
        self.steps: list[tuple[float, float, float]] = []
        """Seconds of computing in forward (with earlier backward passes of the step), last backward, and optimizer."""
        self.ready_s: dict[str, list[float]] = {name: [] for name in names}
        """When each gradient was complete, from the start of the last backward; its end where there was none."""
        self.whole_s: list[float] = []
        """Seconds of each step from the end of the one before, with everything that is in it."""
        self._ended: Any = None
        """End of the last step."""
        self.blind = False
        """Whether the start of a backward was not seen."""

    @property
    def blindness(self) -> Exception | None:
        """The error of one that is blind; None if it is not."""
        if not self.blind:
            return None
        return RuntimeError(
            "gradients came, but the model's output held no tensor that requires a gradient, so the start of backward "
            "was not seen; let the module that is observed return its tensors by themselves, or in lists, dicts or "
            "dataclasses, and call it, not a part of it."
        )

    def before_forward(self) -> None:
        """Mark the start of a forward pass."""
        now = self._now
        if now.ready:  # that backward was not the last
            now.earlier.append((now.backward_from, list(now.ready.values())[-1]))
            now.backward_from, now.ready = None, {}
        now.forwards.append((self._clock.now(), None))

    def after_forward(self, output: Any) -> None:
        """Mark the end of a forward pass, and wait for the gradient of its output."""
        now = self._now
        if not now.forwards:  # the observation began within this pass
            return
        now.forwards[-1] = (now.forwards[-1][0], self._clock.now())

        def begin(_: Tensor) -> None:
            if now.backward_from is None:
                now.backward_from = self._clock.now()

        for tensor in tensors_in(output):
            if tensor.requires_grad:
                tensor.register_hook(begin)

    def on_ready(self, name: str) -> None:
        """Mark that a gradient is complete."""
        self._now.ready[name] = self._clock.now()

    def before_step(self) -> None:
        """Mark the start of the optimizer's step; a subclass that calls its base's step() begins only once."""
        if self._now.optimizer_from is None:
            self._now.optimizer_from = self._clock.now()

    @property
    def is_in_step(self) -> bool:
        """Whether the optimizer's step has begun, and has not been marked as ended."""
        return self._now.optimizer_from is not None

    def after_step(self, *, keep: bool) -> bool:
        """Mark the end of the step, and work its times out if they are to be kept; say if there was a backward."""
        now, end, self._now = self._now, self._clock.now(), _Step()
        before, self._ended = self._ended, end
        if now.ready and keep:
            self._note(now, before, end)
        return bool(now.ready)

    def waiting(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that calls another, whose time counts as waiting."""

        def _waits(*given: Any, **named: Any) -> Any:
            start = self._clock.now()
            result = call(*given, **named)
            self._now.waits.append((start, self._clock.now()))
            return result

        return _waits

    def _note(self, now: _Step, before: Any, end: Any) -> None:
        if now.backward_from is None or any(start is None for start, _ in now.earlier):
            self.blind = True
            return
        self._clock.settle()
        computing_s = _Computing(self._clock, now.backward_from, now.waits)
        ready_s = {name: computing_s(now.backward_from, mark) for name, mark in now.ready.items()}
        # A forward pass that has raised, and whose error the training has caught, has no end.
        whole = (marks for marks in (*now.forwards, *now.earlier) if marks[1] is not None)
        before_s = sum(computing_s(*marks) for marks in whole)
        backward_s = max(ready_s.values())
        self.steps.append((before_s, backward_s, self._clock.seconds(now.optimizer_from, end)))
        self.whole_s.append(self._clock.seconds(now.forwards[0][0] if before is None else before, end))
        for name, times_s in self.ready_s.items():
            times_s.append(ready_s.get(name, backward_s))


class _Computing:
    """Seconds between two marks without the waits between them.

    Args:
        clock: Of the marks.
        origin: Any mark.
        waits: Starts and ends of waits, none of which overlap.

    """

    def __init__(self, clock: DeviceTimer, origin: Any, waits: Sequence[tuple[Any, Any]]) -> None:
        self._clock, self._origin = clock, origin
        self._waits_s = [(self._at_s(start), self._at_s(end)) for start, end in waits]

    def __call__(self, start: Any, end: Any) -> float:
        start_s, end_s = self._at_s(start), self._at_s(end)
        waited_s = sum(max(0.0, min(end_s, b) - max(start_s, a)) for a, b in self._waits_s)
        return max(0.0, end_s - start_s - waited_s)

    def _at_s(self, mark: Any) -> float:
        return self._clock.seconds(self._origin, mark)


def tensors_in(output: Any) -> list[Tensor]:
    """Return the tensors in a model's output: by themselves, or in lists, tuples, dicts and dataclasses."""
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, Mapping):
        return [t for value in cast(Mapping[Any, Any], output).values() for t in tensors_in(value)]
    if isinstance(output, (list, tuple)):
        return [t for value in cast(Sequence[Any], output) for t in tensors_in(value)]
    if is_dataclass(output):
        return [t for own in fields(output) for t in tensors_in(getattr(output, own.name, None))]
    return []
