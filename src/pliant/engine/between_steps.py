"""Choice of what carries out each exchange of weights: in lockstep, averages of all at a free pace, or in pairs."""

from collections.abc import Callable, Sequence

from torch.optim import Optimizer

from pliant.comm.base import duplicate
from pliant.comm.hierarchical import hierarchical_comm
from pliant.engine.algorithm_state import AlgorithmState
from pliant.engine.background_average import BackgroundAverage
from pliant.engine.comms import Comms
from pliant.engine.pair_exchange import pair_exchanges
from pliant.engine.tracer import Tracer
from pliant.engine.weight_exchange import WeightExchange
from pliant.engine.weight_parts import BetweenSteps, split_weights
from pliant.spec import Exchange

__all__ = ["exchanges_between_steps"]

Hosts = Sequence[Sequence[int]]


def exchanges_between_steps(
    store: AlgorithmState,
    comms: Comms,
    know_hosts: Callable[[], Hosts],
    *,
    optimizer: Optimizer,
    step: int,
    tracer: Tracer,
) -> list[BetweenSteps]:
    """Make the exchanges of weights, each over comms of its own, since they travel beside gradients. Collective.

    Args:
        store: Nodes and state of all parameters.
        comms: Comms of the run.
        know_hosts: Returns the ranks of each host; collective.
        optimizer: Optimizer whose learning rate stretches periods.
        step: Steps made so far.
        tracer: Tracer of the run.

    """
    nodes = [node for node in dict.fromkeys(store.nodes.values()) if node.exchanges_weights]
    made: list[BetweenSteps] = []
    for kind, own in (
        (WeightExchange, [node for node in nodes if node.timing.pace == "lockstep"]),
        (BackgroundAverage, [node for node in nodes if node.timing.pace == "free" and not node.meets_in_pairs]),
    ):
        if own:
            apart = _comms_apart(own, comms, know_hosts)
            made.append(kind(split_weights(store, apart, step, own), apart, optimizer, step, tracer))
    pairs = split_weights(store, comms, step, [node for node in nodes if node.meets_in_pairs])
    return [*made, *pair_exchanges(pairs, store, comms.all, tracer)]


def _comms_apart(nodes: Sequence[Exchange], comms: Comms, know_hosts: Callable[[], Hosts]) -> Comms:
    ours = duplicate(comms.all)
    if any(node.needs_hosts for node in nodes):
        return Comms(ours, hierarchical_comm(ours, know_hosts()))
    return Comms(ours)
