"""States of an optimizer, such as Adam's momentum, that ranks average beside their weights."""

from dataclasses import dataclass, field

from pliant.spec.exchange import Exchange, require, require_timing
from pliant.spec.gradients import AllReduce, Custom
from pliant.spec.ranges import Count, check_ranges
from pliant.spec.timing import Timing

__all__ = ["FIRST_MOMENT", "MOMENTUM", "SECOND_MOMENT", "OptimizerState"]

FIRST_MOMENT, SECOND_MOMENT, MOMENTUM = "exp_avg", "exp_avg_sq", "momentum_buffer"
"""Names of Adam's moments, and of the momentum of SGD and Muon, in torch's optimizers."""

_DIVISORS = frozenset(
    {
        *(SECOND_MOMENT, "max_exp_avg_sq", "exp_inf", "square_avg", "acc_delta", "sum"),
        *("row_var", "col_var", "variance"),
    }
)
"""Names that torch's optimizers give to what is never negative, and which a step divides by."""


@dataclass(frozen=True, kw_only=True)
class OptimizerState:
    """A state that ranks average every `period` steps: its plain mean, wherever an optimizer has it.

    Nothing of it is kept between two means: it has no outer optimizer, no starting point and no residual.

    A moment m of decay b may have its mean d steps late, while steps go on. Each has made m <- b m + (what is new), so
    that adding b^d (mean - own), both of d steps before, leaves what a mean at once and the same gradients would have.
    """

    name: str
    """Key under which the optimizer keeps it, such as ``exp_avg`` or ``momentum_buffer``."""
    period: Count
    """Steps from one mean to the next."""
    delay_steps: int = 0
    """How many steps later a mean is used, which is formed beside them."""
    averaging: Exchange = field(default_factory=AllReduce)
    """How it is averaged: a node of gradients that keeps nothing."""

    def __post_init__(self) -> None:
        check_ranges(self)
        require(
            self.delay_steps == 0 or self.name in (FIRST_MOMENT, SECOND_MOMENT, MOMENTUM),
            "OptimizerState",
            f"delay_steps must be 0 for {self.name!r}, of which nobody knows how it forgets, got {self.delay_steps}; "
            f"only {FIRST_MOMENT}, {SECOND_MOMENT} and {MOMENTUM} can be late.",
        )
        require_timing("lockstep", self.delay_steps, self.period, "OptimizerState")
        for node in self.averaging.walk():
            told, of = type(node).__name__, f"averaging of {self.name!r}"
            require(
                node.gives_mean and node.timing == Timing() and not isinstance(node, Custom) and not node.needs_anchor,
                "OptimizerState",
                f"{of} must give the mean of what all ranks have, at once and by a node of Pliant's own, which {told} "
                "does not; use AllReduce or ScatterGather.",
            )
            require(
                node.error_feedback == "none" and node.ratio_target is None,
                "OptimizerState",
                f"{of} must keep nothing from one mean to the next, but {told} keeps a residual or has a target; use "
                "AllReduce, or ScatterGather with an unbiased codec.",
            )
            require(
                getattr(node, "schedule", "ring") == "ring",
                "OptimizerState",
                f"{of} must have the schedule 'ring', got {getattr(node, 'schedule', None)!r}; leave it out.",
            )
            codec = node.payload_codec
            require(
                self.name not in _DIVISORS
                or codec is None
                or (codec.facts.kind == "cast" and not codec.facts.underflows),
                "OptimizerState",
                f"{of} must not turn small numbers into 0 or below, since the optimizer divides by it, but the codec "
                f"{codec} does; use float32 or bfloat16.",
            )
