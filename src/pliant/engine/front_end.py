"""Front ends of models: the source of gradients for each kind of model."""

from collections.abc import Callable

from pliant.engine.bucket_dispatcher import BucketDispatcher
from pliant.engine.comm_thread import CommThread
from pliant.engine.joining import JoinState
from pliant.engine.nodes import leaves_gradients
from pliant.engine.relaxed_model import RelaxedModel
from pliant.engine.sources import DDPSource, GradientSource, NoGradients
from pliant.engine.tracer import Tracer
from pliant.engine.trial import PlanOnTrial
from pliant.engine.unused_parameters import UnusedParameterCheck

__all__ = ["gradient_source"]


def gradient_source(
    relaxed: RelaxedModel,
    receiver: BucketDispatcher,
    begins: Callable[[], None],
    joining: JoinState,
    comm_thread: CommThread,
    tracer: Tracer,
    trial: PlanOnTrial,
) -> GradientSource:
    """Return the source of a model's gradients.

    Args:
        relaxed: The model.
        receiver: Receiver of the buckets.
        begins: A method, held weakly, that is called before each forward pass that is followed by a backward pass.
        joining: State of ranks of which some have no batches left.
        comm_thread: Communication thread of the gradients.
        tracer: Tracer that measures waiting.
        trial: Keeper of the errors of a plan on trial.

    """
    if relaxed.sharded is not None:
        from pliant.engine.sharded_source import ShardedSource  # only here: FSDP2 takes long to import

        return ShardedSource(relaxed.sharded, relaxed.module, receiver, comm_thread, tracer, begins, trial)
    if relaxed.ddp is None:
        return NoGradients(relaxed.parameters, lambda plan: leaves_gradients(plan, relaxed))
    watch = UnusedParameterCheck(relaxed.ddp, relaxed.parameters, begins, wrapped_here=relaxed.wrapped_here)
    return DDPSource(relaxed.ddp, receiver, watch, joining)
