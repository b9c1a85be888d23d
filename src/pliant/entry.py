"""The verb: one line on an existing training script."""

from collections.abc import Sequence
from functools import partial

from torch import nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from pliant.algorithms.gradients import bf16
from pliant.autotune.options import Auto
from pliant.comm.base import Comm
from pliant.comm.transport import Transport
from pliant.engine.connecting import Connections
from pliant.engine.elastic import Elastic
from pliant.engine.gradient_exchange import NonFinite
from pliant.engine.plan_resolution import PlanLike, resolve_plan, torchs_own
from pliant.engine.relaxed_model import unwrap
from pliant.engine.run import Run
from pliant.engine.run_start import start_run

__all__ = ["relax"]


def relax(
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    what: PlanLike | Auto,
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
) -> Run:
    """Let a model's gradients or weights be exchanged as a plan says. Collective: every rank calls it.

    All ranks start from rank 0's parameters, buffers and optimizer state.

    Args:
        model: A DistributedDataParallel model, or a plain module: then ``run.model`` is the module to call, which is
            the module itself where the plan exchanges weights only. Either may be compiled, or wrapped by Accelerate or
            Lightning Fabric; the training loop calls what it has. Or a model under ``fully_shard`` (also on a mesh of
            two dimensions, HSDP) or ``replicate()``: there a plain algorithm is what replicas exchange, or, if no two
            ranks hold the same shard, how gradients reach their shard; see `pliant.sharded`.
        optimizer: Any torch optimizer over the model's parameters, also one that Accelerate or Lightning has wrapped;
            or several, such as Muon and AdamW: a step ends when all have stepped, or when one steps again before that.
            Parameters that none of them holds are averaged exactly, if a DDP model is called, and left alone.
        what: An algorithm's name ("bytegrad"), an algorithm (``pliant.qsgd(bits=4)``), a plan, or a plan's path; or
            "auto" (``pliant.Auto()``), which chooses a plan while the training runs.
        group: Process group of a plain module; the default group if None.
        hosts: Ranks of each host, for plans with `between_hosts`; torchrun's placement if None. "auto" measures links
            between them, or, if None, between machines.
        rack: Name of the rack in which this rank's host stands, for plans with `between_racks`: the same on all ranks
            of a rack, and another on those of others. "auto" tries no such plans, and refuses it.
        timeout_s: Longest that one collective may take before it fails on all ranks.
        start_timeout_s: The same in this call, which waits for ranks that start slowly.
        agreement_every: Steps between two checks that replicas are equal; 0 for never.
        nonfinite: Whether a NaN or Inf gradient raises on all ranks, or propagates to all, for a GradScaler to find.
        elastic: Options of an elastic run, for plans that exchange weights. The model is then a plain module and
            `group` is left out, as are hosts, rack, agreement_every, the transport "device" and connections, which are
            refused; a process that is started again calls relax() again.
        transport: Transport of a model on an accelerator: by way of pinned host memory over Gloo ("host"), or the
            device's own backend, such as NCCL ("device"). By default the latter where all ranks are on one host, as
            `hosts`, torchrun or the machines' names say, and else the former. A model on the CPU has no choice.
        connections: Connections between each two ranks over Gloo, among which messages above 256 KB are divided: a
            number up to 32, a `Topology` or the path of one (``pliant probe`` finds as many as pay), or "auto", which
            measures it now. By default one, or, where `what` is "auto", as many as are measured to pay.

    Raises:
        ValueError: The model is divided among ranks or devices, or shares no parameter with an optimizer; the plan does
            not fit the optimizer, or transport or connections the group; ranks ask for different plans or connections,
            or are on different kinds of device; one has not registered an algorithm that is not Pliant's; the plan or
            the model cannot be elastic; or a setting is given that "auto" or an elastic run could not follow.
        TypeError: The optimizer or the model is not torch's.
        RuntimeError: Another run is open on the model or on an optimizer.
        CommError: Not all ranks have come within `start_timeout_s`.

    >>> import torch
    >>> from pliant import run_world
    >>> def train(context):
    ...     model = torch.nn.Linear(4, 1)
    ...     optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ...     with relax(model, optimizer, "bytegrad", group=context.process_group) as run:
    ...         run.model(torch.ones(2, 4)).sum().backward()
    ...         optimizer.step()
    ...         return run.steps
    >>> run_world(2, train)
    [1, 1]

    """
    held = unwrap(model, optimizer)
    auto = Auto() if what == "auto" else what if isinstance(what, Auto) else None
    if isinstance(what, Auto) or auto is not None:
        # 16 bits halve the time of the steps that are watched, where not only exact plans are asked for.
        coarse = auto is not None and auto.quality > 1 and held.sharded is None
        plan = resolve_plan(bf16(), held.optimizer) if coarse else torchs_own(held)
    else:
        plan = resolve_plan(what, held.optimizer)
    if elastic is not None and auto is not None:
        raise ValueError(
            "auto measures plans of all ranks together, and an elastic run goes on with any of them; choose one "
            "plan that exchanges weights for elastic=, or leave it out."
        )
    if rack and auto is not None:
        raise ValueError(
            f"rack={rack!r} is given, but auto measures links between hosts and no uplinks of racks, and so tries no "
            "plan with a level of racks; leave rack= out, or name a plan that has one."
        )
    return start_run(
        held,
        plan,
        group=group,
        hosts=hosts,
        rack=rack,
        timeout_s=timeout_s,
        start_timeout_s=start_timeout_s,
        agreement_every=agreement_every,
        nonfinite=nonfinite,
        elastic=elastic,
        transport=transport,
        connections="auto" if auto is not None and connections is None else connections,
        attach_to=None if auto is None else partial(_tune, auto, hosts),
    )


def _tune(auto: Auto, hosts: Sequence[Sequence[int]] | None, run: Run, comm: Comm) -> None:
    from pliant.autotune.start import start_tuning  # only here: other runs need no planner

    run.tuner = start_tuning(run, auto, comm, hosts=hosts)
