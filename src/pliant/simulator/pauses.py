"""Pauses between exchanges, after which TCP starts slowly."""

from pliant.spec import Timing, Workload

__all__ = ["pause_of_gathers_s", "pause_of_gradients_s", "pause_of_weights_s"]


def pause_of_gradients_s(workload: Workload, first_ready_s: float, period: int, slowest: float) -> float:
    """Return how long ranks compute from the last gradients of one exchange to the first of the next.

    The optimizer's step, the forward pass, and backward until a bucket is ready; whole steps beside, where gradients
    are exchanged in every `period`-th step alone.

    Args:
        workload: Its times.
        first_ready_s: From the start of backward to the first bucket.
        period: In steps.
        slowest: Factor of the slowest rank.

    """
    return slowest * (workload.step_s + workload.forward_s + first_ready_s + (period - 1) * workload.compute_s)


def pause_of_gathers_s(workload: Workload, slowest: float, *, again: bool) -> float:
    """Return how long ranks of a sharded model compute from the last gather of a step to the next one's first.

    The optimizer's step, and backward too unless weights are gathered again in it.

    Args:
        workload: Its times.
        slowest: Factor of the slowest rank.
        again: Whether backward gathers weights again.

    """
    return slowest * (workload.step_s + (0.0 if again else workload.backward_s))


def pause_of_weights_s(timing: Timing, workload: Workload, slowest: float) -> float:
    """Return how long ranks compute from one exchange of weights to the next, of any fragment."""
    return slowest * workload.compute_s * timing.period / timing.fragments
