"""Room for turns of the best plans of a search: in steps, in time, and within what they may cost."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pliant.autotune.finalists import Finalist
from pliant.autotune.trials import TrialRunner
from pliant.planner.challenge import SHARE
from pliant.spec import SyncPlan

__all__ = ["TurnBudget"]

_LEAVING = 0.1
"""Share of a search that means of weights may take, with which turns of plans end that keep ranks apart."""


@dataclass(frozen=True)
class TurnBudget:
    """Room for turns; the same on all ranks, since times are the first rank's.

    Args:
        trials: Runs the turns.
        steps_left: Steps that they may take.
        most_s: Time since the run began by which they should end.
        elapsed_s: Time since then.
        leaving_s: Time of the means with which ranks leave a plan that keeps them apart.
        switch_s: Time that a plan's turn costs beside its steps.
        spent_s: Time that trials have cost, beyond that of their steps under the best plan.

    """

    trials: TrialRunner
    steps_left: float
    most_s: float
    elapsed_s: float
    leaving_s: float
    switch_s: float
    spent_s: float

    def most_turns(self, rivals: Sequence[Finalist], exact: SyncPlan | None, exact_s: float, *, at_least: int) -> float:
        """Return how many turns there is room for: by steps and time, and by means of weights.

        Args:
            rivals: Plans that take turns.
            exact: Torch's own exchange, if it takes turns too.
            exact_s: Step time of it; NaN if it is not known.
            at_least: What steps and time have room for in any case.

        """
        timed = [(rival.plan, rival.tried_s) for rival in rivals]
        known_s = max(s for _, s in timed) if math.isnan(exact_s) else exact_s
        timed += [] if exact is None else [(exact, known_s)]
        num_steps = sum(self.trials.num_steps(plan) for plan, _ in timed)
        turn_s = sum(self.trials.num_steps(plan, step_s) * step_s for plan, step_s in timed)
        leaving_s = self._leaving_s(rivals)
        means = _LEAVING * self.elapsed_s / leaving_s if leaving_s else math.inf
        room = min(self.steps_left / num_steps, (self.most_s - self.elapsed_s) / turn_s)  # `//` makes NaN of infinity
        return min(max(at_least, room), means)

    def affordable_s(self, rivals: Sequence[Finalist], num_turns: int) -> float:
        """Return the time since the run began from which on so many turns of these plans alone are affordable.

        A turn costs its switch, what its steps take longer than those of the best, and means of weights.
        """
        least_s = min(rival.tried_s * rival.ratio for rival in rivals)
        cost_s = self._leaving_s(rivals) + len(rivals) * self.switch_s
        for rival in rivals:
            cost_s += self.trials.num_steps(rival.plan, rival.tried_s) * (rival.tried_s * rival.ratio - least_s)
        return (self.spent_s + num_turns * cost_s) / SHARE

    def due_s(self, rivals: Sequence[Finalist], num_turns: int) -> float:
        """Return the time from which on they are affordable, and a tenth of the steps from now on has room for them."""
        steps_s = sum(self.trials.num_steps(rival.plan, rival.tried_s) * rival.tried_s for rival in rivals)
        return max(self.affordable_s(rivals, num_turns), self.elapsed_s + num_turns * steps_s / SHARE)

    def _leaving_s(self, rivals: Sequence[Finalist]) -> float:
        return self.leaving_s * sum(rival.plan.exchanges_weights for rival in rivals)
