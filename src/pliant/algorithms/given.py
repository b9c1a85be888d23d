"""What combinators take: nodes of a plan, or values of algorithms of the user's own."""

from pliant.algorithms.base import Algorithm
from pliant.spec import Exchange

__all__ = ["AlgorithmLike", "node_of"]

AlgorithmLike = Exchange | Algorithm
"""A node, as `pliant.qsgd()` returns it, or a value of a registered algorithm, which has one."""


def node_of(algorithm: AlgorithmLike) -> Exchange:
    """Return the node of what was given.

    Raises:
        TypeError: It is neither a node nor has one.

    """
    if isinstance(algorithm, Exchange):
        return algorithm
    node = getattr(algorithm, "node", None)
    if not isinstance(node, Exchange):
        raise TypeError(
            f"an algorithm was expected, but got {algorithm!r}; give a value such as pliant.qsgd(), or one of your own "
            "whose `node` names it."
        )
    return node
