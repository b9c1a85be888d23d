"""Means of optimizer states that a node of weights makes, with all nodes around it."""

from dataclasses import replace

from pliant.spec.combinators import After
from pliant.spec.exchange import Exchange
from pliant.spec.levels import BetweenGroups
from pliant.spec.optimizer_state import OptimizerState
from pliant.spec.sharded import Sharded
from pliant.spec.weights import LocalSteps

__all__ = ["averaged_states"]


def averaged_states(node: Exchange) -> tuple[OptimizerState, ...]:
    """Return the states that are averaged beside a node's weights, each by what is around the node as well.

    >>> state = OptimizerState(name="exp_avg", period=4)
    >>> averaged_states(LocalSteps(period=2, states=(state,))) == (state,)
    True
    """
    if isinstance(node, LocalSteps):
        return node.states
    if isinstance(node, After):
        return averaged_states(node.then)
    if isinstance(node, BetweenGroups):
        return tuple(replace(s, averaging=replace(node, inner=s.averaging)) for s in averaged_states(node.inner))
    if isinstance(node, Sharded) and node.replicas is not None:
        return tuple(replace(s, averaging=Sharded(replicas=s.averaging)) for s in averaged_states(node.replicas))
    return ()
