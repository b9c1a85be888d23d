"""State of a ratio in the course of a training: down at first, and up again for a while when much changes."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor
from torch.optim import Optimizer

from pliant.spec.selection import Selection

__all__ = ["RATIO_STATE_NUMEL", "RatioState", "check_single_momentum", "ramp_ratio"]

_RAMP_FACTOR = 4
"""DGC lets the ratio fall by this factor from one warm-up stage to the next."""
RATIO_STATE_NUMEL = 6
"""Numbers in a `RatioState`."""
_MOST_COUNTED = 1 << 20
"""Largest count: float32 counts exactly beyond it, and periodic work may begin anew here."""


def ramp_ratio(ratio: float, step: int, ramp_steps: int) -> float:
    """Return the ratio in a step: 25 %, 6.25 %, ... for equal parts of `ramp_steps`, then the final one.

    Lin et al., Deep Gradient Compression (arXiv:1712.01887), section 3.3.
    """
    stages: list[float] = []
    stage = 1 / _RAMP_FACTOR
    while stage > ratio:
        stages.append(stage)
        stage /= _RAMP_FACTOR
    if step >= ramp_steps or not stages:
        return ratio
    return stages[step * len(stages) // ramp_steps]


@dataclass(kw_only=True)
class RatioState:
    """State that all parameters of a bucket share, the same on all ranks. Every number is exact in float32."""

    count: float = 0.0
    """Exchanges so far."""
    squares: float = 0.0
    """Sum over this window of the mean gradient's squared norm."""
    before: float = 0.0
    """Norm of the window before; 0 if there was none."""
    relief_left: float = 0.0
    """Exchanges for which the ratio is still higher."""
    lr: float = 0.0
    """Learning rate that the last relief has seen."""
    divided_for: float = 0.0
    """Ratio for which blocks were last divided among parameters; 0 for not yet."""

    @classmethod
    def read(cls, slots: Mapping[str, Tensor]) -> "RatioState":
        """Read it from any parameter's slot, (RATIO_STATE_NUMEL,)."""
        return cls(**dict(zip(cls.__annotations__, next(iter(slots.values())).tolist(), strict=True)))

    def write(self, slots: Mapping[str, Tensor]) -> None:
        """Write it to every parameter's slot: after another bucketing, any of them may be the first."""
        numbers = [getattr(self, name) for name in self.__annotations__]
        first = next(iter(slots.values()))
        now = first.new_tensor(numbers)
        for slot in slots.values():
            slot.copy_(now)

    def factor(self, selection: Selection) -> float:
        """Return that of the ratio."""
        return selection.relief if self.relief_left > 0 else 1.0

    def advance(self, selection: Selection, square: float, lr: float) -> None:
        """Count one exchange, and begin a relief where much has changed.

        Agarwal et al., Accordion (arXiv:2010.16248): less compression while
        | |g_prev| - |g_now| | / |g_prev| >= eta between windows, or when the learning rate changes.

        Args:
            selection: Of which eta, window and relief count.
            square: Squared norm of the mean gradient that was handed over.
            lr: Learning rate, 0 if it is not known.

        """
        self.count = (self.count + 1) % _MOST_COUNTED
        if selection.relief == 1:
            return
        self.relief_left = max(0.0, self.relief_left - 1)
        self.squares += square
        if self.count % selection.window == 0:
            was, now = self.before**0.5, self.squares**0.5
            if was > 0 and abs(was - now) >= selection.eta * was:
                self.relief_left = selection.window
            self.before, self.squares = self.squares, 0.0
        if self.lr > 0 and abs(lr - self.lr) >= selection.eta * self.lr:
            self.relief_left, self.lr = selection.window, lr
        self.lr = self.lr or lr


def check_single_momentum(momentum: float, optimizer: Optimizer) -> None:
    """Raise ValueError for an optimizer with a momentum beside an algorithm that keeps one."""
    own = max((float(group.get("momentum", 0.0)) for group in optimizer.param_groups), default=0.0)
    if momentum and own:
        raise ValueError(
            f"the optimizer has momentum {own} and this algorithm keeps a momentum of {momentum}, so it "
            "would count twice; give the optimizer momentum 0, or choose an algorithm without one."
        )
