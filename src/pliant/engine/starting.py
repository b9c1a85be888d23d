"""A run begins: on all ranks, from rank 0's state, or on none."""

from collections.abc import Callable, Sequence
from typing import cast

import torch.distributed as dist
from torch.distributed import ProcessGroup

from pliant.comm.base import Comm
from pliant.comm.own import own_group
from pliant.comm.recorded import RecordedComm
from pliant.engine.choose import require_plan
from pliant.engine.elastic import Elastic, begin
from pliant.engine.ending import end
from pliant.engine.exchange import NonFinite
from pliant.engine.front import attach, reporter
from pliant.engine.gate import RelaxedModel, claim, release
from pliant.engine.run import Run
from pliant.engine.start import broadcast_optimizer, broadcast_tensors
from pliant.engine.wire import require_carried
from pliant.spec import SyncPlan

__all__ = ["start_run"]


def start_run(
    held: RelaxedModel,
    plan: SyncPlan,
    *,
    group: ProcessGroup | None = None,
    hosts: Sequence[Sequence[int]] | None = None,
    timeout_s: float = 300.0,
    start_timeout_s: float = 300.0,
    agreement_every: int = 100,
    nonfinite: NonFinite = "raise",
    elastic: Elastic | None = None,
    attach_to: Callable[[Run, Comm], None] | None = None,
) -> Run:
    """Begin a run under a plan; arguments and errors are those of `pliant.relax`. Collective.

    Args:
        held: Model and optimizers.
        plan: What to begin with.
        group: See `pliant.relax`, as for all that follow.
        hosts: See there.
        timeout_s: See there.
        start_timeout_s: See there.
        agreement_every: See there.
        nonfinite: See there.
        elastic: See there.
        attach_to: Called with the run and its comm before the first step, such as to attach a tuner.

    """
    if elastic is not None:
        held.require_whole("an elastic run goes on with any of its ranks", "leave elastic= out")
        claim(held)
        try:
            limits = {"timeout_s": timeout_s, "start_timeout_s": start_timeout_s}
            return begin(held, plan, elastic, group=group, nonfinite=nonfinite, **limits)
        except BaseException:
            release(held)
            raise
    device = next(iter(held.parameters.values())).device
    held.group = cast(ProcessGroup, group or dist.group.WORLD if held.ddp is None else held.ddp.process_group)
    plan = held.resolve(plan)
    require_carried(plan, held.group, device)
    claim(held)
    comm, run = None, None
    try:
        if held.ddp is None and held.sharded is None and not plan.leaves_gradients:
            held.wrap(group)
        own_comm = own_group(held.group, timeout_s, start_timeout_s)
        comm = RecordedComm(own_comm)
        require_plan(plan, comm, device)
        if held.sharded is not None:
            held.sharded.connect(comm, held.group)
            broadcast_tensors(held.sharded.equal_tensors(held.optimizer), held.sharded.replica_comm)
        elif comm.size > 1:
            broadcast_tensors([*held.module.parameters(), *held.module.buffers()], comm)
            broadcast_optimizer(held.optimizer, comm, device)
        if held.ddp is not None:
            attach(held.ddp).report = reporter(own_comm)
        run = Run(held, plan, comm=comm, hosts=hosts, agreement_every=agreement_every, nonfinite=nonfinite)
        if attach_to is not None:
            attach_to(run, own_comm)
        own_comm.started(timeout_s)
        comm.reset()  # what the start cost is not training
    except BaseException as error:
        if run is not None:
            run.__exit__(type(error), error, None)
        release(held)
        if comm is not None:
            end(comm)
        raise
    return run
