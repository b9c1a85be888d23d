"""The verb: one line on an existing training script."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import torch.distributed as dist
from torch import nn
from torch.distributed import ProcessGroup
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from pliant.comm.base import Comm
from pliant.comm.process_group import own_group
from pliant.comm.recorded import RecordedComm
from pliant.engine.auto import Auto
from pliant.engine.choose import What, agree_on, plan_from
from pliant.engine.elastic import Elastic, begin
from pliant.engine.exchange import NonFinite
from pliant.engine.front import attach
from pliant.engine.run import Run
from pliant.engine.start import broadcast_optimizer, broadcast_tensors

if TYPE_CHECKING:
    from pliant.engine.pilot import Pilot

__all__ = ["relax"]


def relax(
    model: nn.Module,
    optimizer: Optimizer,
    what: What | Auto,
    *,
    group: ProcessGroup | None = None,
    hosts: Sequence[Sequence[int]] | None = None,
    timeout_s: float = 300.0,
    agreement_every: int = 100,
    nonfinite: NonFinite = "raise",
    elastic: Elastic | None = None,
) -> Run:
    """Let a model's gradients or weights be exchanged as a plan says. Collective: every rank calls it.

    All ranks start from rank 0's parameters, buffers and optimizer state.

    Args:
        model: A DistributedDataParallel model, or a plain module: then ``run.model`` is the module to call, which is
            the module itself where the plan exchanges weights only.
        optimizer: Any torch optimizer over the model's parameters.
        what: An algorithm's name ("bytegrad"), an algorithm (``pliant.qsgd(bits=4)``), a plan, or a plan's path; or
            "auto" (``pliant.Auto()``), which finds out which plan pays, while it trains.
        group: For a plain module: who trains it; the default process group if None.
        hosts: Ranks of each host, for hierarchical plans; torchrun's placement if None.
        timeout_s: Longest that one collective may take before it fails on all ranks.
        agreement_every: Steps between two checks that replicas are equal; 0 for never.
        nonfinite: Whether a NaN or Inf gradient raises on all ranks, or propagates to all, for a GradScaler to find.
        elastic: For plans that exchange weights: go on without ranks that are lost, and take in those that come. The
            model is then a plain module and `group` is left out; a process that is started again calls relax() again.

    Raises:
        ValueError: The plan does not fit the optimizer, ranks ask for different plans, one has not registered an
            algorithm that is not Pliant's, or the plan or the model cannot be elastic.
        TypeError: The optimizer or the model is not torch's.

    """
    if not isinstance(optimizer, Optimizer):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"relax() needs a torch.optim.Optimizer to hook into, but got a {type(optimizer).__name__}.")
    auto = Auto() if what == "auto" else what if isinstance(what, Auto) else None
    plan = plan_from("allreduce" if isinstance(what, Auto) or auto is not None else what, optimizer)
    if not any(p.requires_grad for p in model.parameters()):
        raise ValueError("the model has no parameter that requires a gradient, so there is nothing to exchange.")
    if elastic is not None:
        if auto is not None:
            raise ValueError(
                "auto measures plans of all ranks together, and an elastic run goes on with any of them; choose one "
                "plan that exchanges weights for elastic=, or leave it out."
            )
        return begin(model, optimizer, plan, elastic, group=group, timeout_s=timeout_s, nonfinite=nonfinite)
    if not isinstance(model, DistributedDataParallel) and not plan.between_steps:
        model = DistributedDataParallel(model, process_group=group)
    device = next(p.device for p in model.parameters() if p.requires_grad)
    own = model.process_group if isinstance(model, DistributedDataParallel) else group or dist.group.WORLD
    own_comm = own_group(cast(ProcessGroup, own), timeout_s)
    comm = RecordedComm(own_comm)
    try:
        agree_on(plan, comm, device)
        if comm.size > 1:
            broadcast_tensors([*model.parameters(), *model.buffers()], comm)
            broadcast_optimizer(optimizer, comm, device)
        if isinstance(model, DistributedDataParallel):
            attach(model).report = lambda error: own_comm.failure("DDP's broadcast before a forward pass", error)
        run = Run(
            model,
            optimizer,
            plan,
            comm=comm,
            hosts=hosts,
            agreement_every=agreement_every,
            nonfinite=nonfinite,
        )
        if auto is not None:
            run.pilot = _piloted(run, auto, own_comm)
    except BaseException:
        comm.close()
        raise
    comm.reset()  # what the start cost is not training
    return run


def _piloted(run: Run, auto: Auto, comm: Comm) -> "Pilot":
    try:
        from pliant.engine.pilot import take_off  # only here: what it learns with is an extra
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"auto needs {error.name}; install it with: pip install 'pliant[plan]'.") from None
    return take_off(run, auto, comm)
