"""When things happen in a training step: marks taken by hooks, and the times between them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
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
        """Seconds of forward (with earlier backward passes of the step), last backward, and optimizer."""
        self.ready_s: dict[str, list[float]] = {name: [] for name in names}
        """When each gradient was complete, from the start of the last backward; its end where there was none."""
        self.blind = False
        """Whether the start of a backward was not seen."""

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

    def after_step(self, *, keep: bool) -> bool:
        """Mark the end of the step, and work its times out if they are to be kept; say if there was a backward."""
        now, end, self._now = self._now, self._clock.now(), _Step()
        if now.ready and keep:
            self._note(now, end)
        return bool(now.ready)

    def _note(self, now: _Step, end: Any) -> None:
        if now.backward_from is None or any(start is None for start, _ in now.earlier):
            self.blind = True
            return
        self._clock.settle()
        ready_s = {name: max(0.0, self._clock.seconds(now.backward_from, mark)) for name, mark in now.ready.items()}
        before_s = sum(self._clock.seconds(*marks) for marks in (*now.forwards, *now.earlier))
        backward_s = max(ready_s.values())
        self.steps.append((before_s, backward_s, self._clock.seconds(now.optimizer_from, end)))
        for name, times_s in self.ready_s.items():
            times_s.append(ready_s.get(name, backward_s))


def tensors_in(output: Any) -> list[Tensor]:
    """Return the tensors in a model's output: by themselves, or in lists, tuples, dicts and dataclasses."""
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, Mapping):
        return [t for value in cast(Mapping[Any, Any], output).values() for t in tensors_in(value)]
    if isinstance(output, (list, tuple)):
        return [t for value in cast(Sequence[Any], output) for t in tensors_in(value)]
    if is_dataclass(output):
        return [t for value in vars(output).values() for t in tensors_in(value)]
    return []
