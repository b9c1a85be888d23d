"""Choice of what carries out each exchange of weights: in lockstep, averages of all at a free pace, pairs, servers."""

from torch.optim import Optimizer

from pliant.comm.base import duplicate
from pliant.engine.algorithm_state import AlgorithmState
from pliant.engine.background_average import BackgroundAverage
from pliant.engine.comms import Comms
from pliant.engine.pair_exchange import PairExchange
from pliant.engine.places import Places
from pliant.engine.server_exchange import ServerExchange
from pliant.engine.state_exchange import StateExchange
from pliant.engine.state_parts import split_states
from pliant.engine.state_shapes import StateShapes
from pliant.engine.tracer import Tracer
from pliant.engine.weight_exchange import WeightExchange
from pliant.engine.weight_parts import BetweenSteps, split_weights
from pliant.spec import RegionServers, averaged_states

__all__ = ["exchanges_between_steps"]


def exchanges_between_steps(
    store: AlgorithmState,
    comms: Comms,
    places: Places,
    *,
    optimizer: Optimizer,
    shapes: StateShapes,
    step: int,
    tracer: Tracer,
) -> list[BetweenSteps]:
    """Make the exchanges of weights, each over comms of its own, since they travel beside gradients. Collective.

    Args:
        store: Nodes and state of all parameters.
        comms: Comms of the run.
        places: Hosts and racks of the ranks.
        optimizer: Optimizer whose learning rate stretches periods, and whose states are averaged.
        shapes: What it keeps of parameters whose nodes average some of it.
        step: Steps made so far.
        tracer: Tracer of the run.

    """
    nodes = [node for node in dict.fromkeys(store.nodes.values()) if node.exchanges_weights]
    made: list[BetweenSteps] = []
    if lockstep := [node for node in nodes if node.timing.pace == "lockstep"]:
        averages = [each.averaging for node in lockstep for each in averaged_states(node)]
        apart = places.with_levels(Comms(duplicate(comms.all)), lockstep)
        parts = split_weights(store, apart, step, lockstep)
        if averages:
            of_states = places.with_levels(Comms(duplicate(comms.all)), averages)
            states = split_states(parts, shapes, of_states, step)
            made.append(StateExchange(states, of_states, optimizer, tracer))
        made.append(WeightExchange(parts, apart, optimizer, step, tracer))
    if free := [node for node in nodes if node.averages_freely]:
        apart = places.with_levels(Comms(duplicate(comms.all)), free)
        made.append(BackgroundAverage(split_weights(store, apart, step, free), apart, optimizer, step, tracer))
    for k, node in enumerate(node for node in nodes if node.meets_in_pairs):
        kind = ServerExchange if isinstance(node.core, RegionServers) else PairExchange
        parts = split_weights(store, comms, step, [node])
        made.append(kind(f"pairs {k}", parts, store, duplicate(comms.all), tracer))
    return made
