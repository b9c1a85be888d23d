"""The front end of a model: who hands its gradients over, one file for each kind of model."""

from collections.abc import Callable

from pliant.engine.bucket_dispatcher import BucketDispatcher
from pliant.engine.comm_thread import CommThread
from pliant.engine.gradient_exchange import NonFinite
from pliant.engine.joining import JoinState
from pliant.engine.relaxed_model import RelaxedModel
from pliant.engine.sources import DDPSource, GradientSource
from pliant.engine.tracer import Tracer
from pliant.engine.unused_parameters import UnusedParameterCheck

__all__ = ["gradient_source"]


def gradient_source(
    held: RelaxedModel,
    receiver: BucketDispatcher,
    begins: Callable[[], None],
    joining: JoinState,
    comm_thread: CommThread,
    tracer: Tracer,
    nonfinite: NonFinite,
) -> GradientSource:
    """Return who hands over the gradients of a model.

    Args:
        held: The model.
        receiver: Who takes them.
        begins: A method, held weakly, that is called before each forward pass that is followed by a backward pass.
        joining: State of ranks of which some have no batches left.
        comm_thread: Where gradients are exchanged.
        tracer: Where waiting is noted.
        nonfinite: What to do about gradients that are not finite.

    """
    if held.sharded is not None:
        from pliant.engine.sharded_source import ShardedSource  # only here: what it rests on takes long to import

        return ShardedSource(held.sharded, held.module, receiver, comm_thread, tracer, begins, nonfinite)
    if held.ddp is None:
        return GradientSource()
    watch = UnusedParameterCheck(held.ddp, held.parameters, begins, wrapped_here=held.wrapped_here)
    return DDPSource(held.ddp, receiver, watch, joining)
