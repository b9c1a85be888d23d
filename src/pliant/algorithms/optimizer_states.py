"""Functions for local steps that average states of the optimizer too: each returns a node of a plan. No torch here."""

from collections.abc import Mapping, Sequence
from typing import Any

from pliant.algorithms.inputs import AlgorithmLike, HasGroups, averaging_of
from pliant.spec import LocalSteps, OptimizerState
from pliant.spec.optimizer_state import FIRST_MOMENT, MOMENTUM, SECOND_MOMENT

__all__ = ["des_loc", "local_momentum", "moments_of", "mt_dao", "require_slow_momentum"]


def des_loc(
    period: int = 32,
    *,
    first: int = 3,
    second: int = 6,
    first_states: Sequence[str] = (FIRST_MOMENT,),
    second_states: Sequence[str] = (SECOND_MOMENT,),
    delay_steps: int = 0,
    averaging: AlgorithmLike | None = None,
    of_states: AlgorithmLike | None = None,
) -> LocalSteps:
    """Average weights every `period` steps, and the optimizer's moments more rarely (DES-LOC, arXiv:2505.22549).

    A moment of decay beta forgets half of what it was in ln(1/2) / ln(beta) steps, so that those that change slowly
    need few means: 7 steps at 0.9, 693 at 0.999. With `first` and `second` 1 it is Local Adam. By name, ``relax(model,
    optimizer, "des_loc")``, it takes the names of states from the optimizer.

    Where a rank has no gradients of its own, as of dead units and rare rows, its second moment is 0. A mean of the
    first moment alone then moves the weight by lr exp_avg / eps, however gradients are clipped. In a model with such
    weights let `second` divide `first`, so that both moments become means at once.

    Args:
        period: Steps from one mean of weights to the next, Kx.
        first: Means of weights to one of first moments, Ku / Kx.
        second: Means of weights to one of second moments, Kv / Kx.
        first_states: Names of first moments in the optimizer's state; of SGD and Muon "momentum_buffer".
        second_states: Names of second moments.
        delay_steps: How many steps later means of weights and of moments are used, while steps go on.
        averaging: An algorithm that averages changes of weights at once; exact if None.
        of_states: The same for moments: one that keeps nothing, such as bf16().

    >>> [(state.name, state.period) for state in des_loc(16).states]
    [('exp_avg', 48), ('exp_avg_sq', 96)]

    """
    named = [(name, first) for name in first_states] + [(name, second) for name in second_states]
    states = tuple(
        OptimizerState(name=name, period=period * times, delay_steps=delay_steps, averaging=averaging_of(of_states))
        for name, times in named
    )
    return LocalSteps(period=period, delay_steps=delay_steps, averaging=averaging_of(averaging), states=states)


def mt_dao(period: int = 32, *, averaging: AlgorithmLike | None = None) -> LocalSteps:
    """Average weights and moments of `pliant.SlowAdamW` every `period` steps (MT-DAO, arXiv:2510.05361).

    Its momentum of decay 0.999 still points along the common direction after a period, which a usual one has forgotten.

    Args:
        period: Steps from one mean to the next.
        averaging: An algorithm that averages changes of weights at once; exact if None. Moments are averaged exactly.

    >>> [(state.name, state.period) for state in mt_dao().states]
    [('exp_avg', 32), ('exp_avg_sq', 32)]

    """
    return des_loc(period, first=1, second=1, averaging=averaging)


def local_momentum(
    period: int = 10,
    *,
    delay_steps: int = 0,
    averaging: AlgorithmLike | None = None,
    of_momentum: AlgorithmLike | None = None,
) -> LocalSteps:
    """Average weights and the momentum of Muon or SGD every `period` steps.

    Of SGD it is PR-SGD-Momentum (Yu, Jin and Yang, ICML 2019, arXiv:1905.03817). It is `des_loc` with Ku = Kx, and
    without second moments: of AdamW beside Muon, as for embeddings, nothing but weights is averaged.

    Args:
        period: Steps from one mean of weights, and of momenta, to the next.
        delay_steps: How many steps later both are used, while steps go on.
        averaging: An algorithm that averages changes of weights at once; exact if None.
        of_momentum: The same for the momentum: one that keeps nothing, such as bytegrad().

    >>> [(state.name, state.period) for state in local_momentum(5).states]
    [('momentum_buffer', 5)]

    """
    return des_loc(
        period,
        first=1,
        first_states=(MOMENTUM,),
        second_states=(),
        delay_steps=delay_steps,
        averaging=averaging,
        of_states=of_momentum,
    )


def moments_of(optimizer: HasGroups) -> Mapping[str, Any]:
    """Return the names under which an optimizer keeps its moments, as settings of `des_loc`.

    Raises:
        ValueError: It keeps none, such as SGD without momentum.

    """
    groups = optimizer.param_groups
    first = [FIRST_MOMENT] if any("betas" in group for group in groups) else []
    first += [MOMENTUM] if any(group.get("momentum") for group in groups) else []
    second = [SECOND_MOMENT] if any("betas" in group for group in groups) else []
    second += ["max_exp_avg_sq"] if any(group.get("amsgrad") for group in groups) else []
    if not first:
        raise ValueError(
            f"des_loc averages an optimizer's moments, but {type(optimizer).__name__} keeps none in these groups; use "
            "local_sgd, or name the states that it has, as in des_loc(first_states=('square_avg',), second_states=())."
        )
    return {"first_states": first, "second_states": second}


def require_slow_momentum(optimizer: HasGroups) -> Mapping[str, Any]:
    """Return no settings for an optimizer with a slow momentum. Raises ValueError for another."""
    if not any("slow_weight" in group for group in optimizer.param_groups):
        raise ValueError(
            f"mt_dao needs pliant.SlowAdamW as its optimizer, whose momentum outlasts a period, but got "
            f"{type(optimizer).__name__}; construct SlowAdamW(params, lr=...), or use des_loc."
        )
    return {}
