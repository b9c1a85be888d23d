"""Start of a run: on all ranks, from rank 0's state, or on none."""

from collections.abc import Callable, Sequence
from typing import cast

from torch.distributed import ProcessGroup

from pliant.comm.base import Comm
from pliant.comm.private_comm import default_group
from pliant.comm.recorded import RecordedComm
from pliant.comm.torch_errors import error_reporter
from pliant.comm.transport import Transport, require_transport
from pliant.engine.connecting import Connections, choice_of, connect
from pliant.engine.ddp_hook import install_hook
from pliant.engine.elastic import Elastic, require_possible_settings, start_elastic
from pliant.engine.gradient_exchange import NonFinite
from pliant.engine.initial_sync import broadcast_differing, broadcast_optimizer, require_same_model
from pliant.engine.nodes import leaves_gradients
from pliant.engine.plan_resolution import require_plan
from pliant.engine.relaxed_model import RelaxedModel, claim, release
from pliant.engine.run import FixedRun, Run
from pliant.engine.shutdown import abort_start
from pliant.spec import SyncPlan

__all__ = ["start_run"]


def start_run(
    relaxed: RelaxedModel,
    plan: SyncPlan,
    *,
    group: ProcessGroup | None = None,
    hosts: Sequence[Sequence[int]] | None = None,
    rack: str = "",
    timeout_s: float = 300.0,
    start_timeout_s: float = 300.0,
    agreement_every: int = 100,
    nonfinite: NonFinite = "raise",
    elastic: Elastic | None = None,
    transport: Transport = "auto",
    connections: Connections | None = None,
    attach_to: Callable[[Run, Comm], None] | None = None,
) -> Run:
    """Start a run under a plan; arguments and errors are those of `pliant.relax`. Collective.

    Args:
        relaxed: Model and optimizers.
        plan: The first plan.
        group: See `pliant.relax`, as for all that follow.
        hosts: See there.
        rack: See there.
        timeout_s: See there.
        start_timeout_s: See there.
        agreement_every: See there.
        nonfinite: See there.
        elastic: See there.
        transport: See there.
        connections: See there.
        attach_to: Called with the run and its comm before the first step, such as to attach a tuner.

    """
    asked = choice_of(connections)
    if elastic is not None:
        require_possible_settings(hosts, rack, agreement_every, transport, connections)
        limits_s = timeout_s, start_timeout_s
        return _start_elastic(relaxed, plan, elastic, group=group, nonfinite=nonfinite, limits_s=limits_s)
    device = next(iter(relaxed.parameters.values())).device
    own = None if relaxed.ddp is None else cast(ProcessGroup, relaxed.ddp.process_group)
    relaxed.group = own or group or default_group()
    plan = relaxed.resolve(plan)
    require_transport(transport, relaxed.group, device)
    claim(relaxed)
    comm, run = None, None
    try:
        if relaxed.ddp is None and relaxed.sharded is None and not leaves_gradients(plan, relaxed):
            relaxed.wrap(group)
        own_comm, host, chosen = connect(relaxed.group, device, transport, hosts, (timeout_s, start_timeout_s), asked)
        comm, report = RecordedComm(own_comm), error_reporter(host)
        require_plan(plan, comm, device)
        if relaxed.sharded is not None:
            relaxed.sharded.connect(comm, relaxed.group, report)
            broadcast_differing(relaxed.sharded.equal_tensors(relaxed.optimizer), relaxed.sharded.replica_comm, device)
        elif comm.size > 1:
            require_same_model(relaxed.module, comm, device)
            broadcast_differing([*relaxed.module.parameters(), *relaxed.module.buffers()], comm, device)
            broadcast_optimizer(relaxed.optimizer, comm, device)
        if relaxed.ddp is not None:
            install_hook(relaxed.ddp).report = report
        run = FixedRun(
            relaxed, plan, comm=comm, hosts=hosts, rack=rack, agreement_every=agreement_every, nonfinite=nonfinite
        )
        run.report_lost, run.connections = report, chosen
        if attach_to is not None:
            attach_to(run, own_comm)
        host.with_timeout(timeout_s)
        comm.reset()  # what the start cost is not training
    except BaseException as error:
        if run is not None:
            run.__exit__(type(error), error, None)
        release(relaxed)
        if comm is not None:
            abort_start(comm)
        raise
    return run


def _start_elastic(
    relaxed: RelaxedModel,
    plan: SyncPlan,
    elastic: Elastic,
    *,
    group: ProcessGroup | None,
    nonfinite: NonFinite,
    limits_s: tuple[float, float],
) -> Run:
    """Start an elastic run; the limits are those of a communication and of the start."""
    relaxed.require_whole("an elastic run goes on with any of its ranks", "leave elastic= out")
    claim(relaxed)
    try:
        timeout_s, start_timeout_s = limits_s
        return start_elastic(
            relaxed,
            plan,
            elastic,
            group=group,
            nonfinite=nonfinite,
            timeout_s=timeout_s,
            start_timeout_s=start_timeout_s,
        )
    except BaseException:
        release(relaxed)
        raise
