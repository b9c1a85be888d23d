"""Models and optimizers inside the wrappers of torch.compile and of frameworks."""

import sys
import threading
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from pliant.algorithms.sharding import for_shards
from pliant.comm.base import Comm
from pliant.engine.joint_optimizer import JointOptimizer, join_optimizers
from pliant.engine.sharded_model import ShardedModel, sharded_model
from pliant.spec import Sharded, SyncPlan

__all__ = [
    "RelaxedModel",
    "claim",
    "innermost",
    "list_tensors",
    "module_of",
    "name_without_wrappers",
    "release",
    "strip_wrappers",
    "unwrap",
]

_AROUND_MODULES = ("_orig_mod", "_forward_module")
"""Attributes in which torch.compile and Lightning Fabric keep the module that they wrap."""

_AROUND_OPTIMIZERS = ("optimizer", "_optimizer")
"""Attributes in which Accelerate, and Lightning and its Fabric, keep the optimizer that they wrap."""


@dataclass(eq=False, kw_only=True)
class RelaxedModel:
    """Model and optimizers that relax() was given, unwrapped."""

    called: nn.Module
    """Module that the training loop calls, with its wrappers."""
    ddp: DistributedDataParallel | None
    module: nn.Module
    """The module itself, without DDP and without wrappers."""
    optimizer: Optimizer
    """The one optimizer, or a `JointOptimizer` of several."""

    group: ProcessGroup | None = None
    """Process group that trains it, the DDP's or the one given to relax(); an elastic run makes its own."""
    wrapped_here: bool = False
    """Whether the DDP was made by relax()."""
    sharded: ShardedModel | None = None
    """Parameter groups and shards of a model under fully_shard or replicate(); None where parameters are whole."""

    def wrap(self, group: ProcessGroup | None) -> None:
        """Wrap a plain module in a DDP, which is to be called from now on. Collective."""
        self.called = self.ddp = DistributedDataParallel(self.called, process_group=group)
        self.wrapped_here = True

    @property
    def optimizers(self) -> tuple[Optimizer, ...]:
        """All optimizers, in the order in which they were given."""
        return self.optimizer.members if isinstance(self.optimizer, JointOptimizer) else (self.optimizer,)

    @property
    def steppers(self) -> dict[int, Optimizer]:
        """Parameter's id -> the optimizer that now holds it."""
        found = {id(p): each for each in self.optimizers for group in each.param_groups for p in group["params"]}
        return found if self.sharded is None else self.sharded.steppers(found)

    @property
    def parameters(self) -> dict[str, Tensor]:
        """Name -> parameter, of those that are trained; of a sharded model this rank's part of it."""
        if self.sharded is not None:
            return self.sharded.shards
        return {name: p for name, p in list_tensors(self.module) if p.requires_grad}

    def require_whole(self, what: str, cure: str) -> None:
        """Raise ValueError for a model that is divided among ranks, if something needs whole parameters."""
        if self.sharded is not None:
            raise ValueError(f"{what}, but this one is divided among ranks by fully_shard or replicate(); {cure}.")

    @property
    def local_optimizer(self) -> Optimizer:
        """The optimizer, as it looks for this rank's parts of the parameters."""
        return self.optimizer if self.sharded is None else self.sharded.view_of(self.optimizer)

    def resolve(self, plan: SyncPlan) -> SyncPlan:
        """Return what a plan means for this model; a sharded one's says what its shards and its replicas do.

        Raises:
            ValueError: The plan and the way in which the model is divided do not fit each other.

        """
        if self.sharded is not None:
            return for_shards(plan, has_replicas=self.sharded.has_replicas, has_shards=self.sharded.has_shards)
        for rule in plan.rules:
            if isinstance(rule.exchange, Sharded):
                raise ValueError(
                    f"the plan says how shards of parameters travel ({rule.exchange}), but the model's are whole on "
                    "every rank; call fully_shard(model) first, or choose an algorithm such as int4."
                )
        return plan

    def replicas(self, comm: Comm) -> Comm:
        """Return the comm of the ranks that hold the same parameters: all, unless the model is sharded."""
        return comm if self.sharded is None else self.sharded.replica_comm


def unwrap(model: nn.Module, optimizer: Optimizer | Sequence[Optimizer]) -> RelaxedModel:
    """Return the unwrapped model with one or several optimizers. No communication.

    Raises:
        TypeError: One of them is not torch's, or wraps nothing that is.
        ValueError: The model is divided among ranks or devices, has no values yet, or shares nothing with an optimizer.

    """
    if not isinstance(model, nn.Module):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"relax() needs a torch.nn.Module to train, but got a {type(model).__name__}.")
    given = [*optimizer] if isinstance(optimizer, (list, tuple)) else [cast(Optimizer, optimizer)]
    if not given:
        raise TypeError("relax() got an empty list of optimizers; give it those that step the model's parameters.")
    optimizers = [innermost(each) for each in given]
    outer = strip_wrappers(model)
    ddp = outer if isinstance(outer, DistributedDataParallel) else None
    module = module_of(model)
    sharded = sharded_model(module, lambda: dict(list_tensors(module)), name_without_wrappers)
    relaxed = RelaxedModel(called=model, ddp=ddp, module=module, optimizer=join_optimizers(optimizers), sharded=sharded)
    _refuse_models(relaxed)
    _refuse_optimizers(relaxed)
    return relaxed


_open: "weakref.WeakSet[RelaxedModel]" = weakref.WeakSet()
_opening = threading.Lock()


def claim(relaxed: RelaxedModel) -> None:
    """Note that a run is open on a model and its optimizers, until `release`.

    Raises:
        RuntimeError: Another run is open on the module, on one of its parameters or on one of the optimizers.

    """
    ours = {id(p) for p in relaxed.module.parameters()}
    with _opening:
        for other in list(_open):
            if not {id(each) for each in relaxed.optimizers}.isdisjoint(id(each) for each in other.optimizers):
                raise RuntimeError(
                    "this optimizer already has an open run, and two would count its steps; close() that run "
                    "first, or switch() its plan."
                )
            if not ours.isdisjoint(id(p) for p in other.module.parameters()):
                raise RuntimeError(
                    "this model already has an open run, and two would exchange its parameters; close() that run "
                    "first, or switch() its plan."
                )
        _open.add(relaxed)


def release(relaxed: RelaxedModel) -> None:
    """Note that a run has ended."""
    with _opening:
        _open.discard(relaxed)


def module_of(model: nn.Module) -> nn.Module:
    """Return the module itself, without DDP and without wrappers."""
    outer = strip_wrappers(model)
    return strip_wrappers(cast(nn.Module, outer.module)) if isinstance(outer, DistributedDataParallel) else outer


def strip_wrappers(module: nn.Module) -> nn.Module:
    """Return the module inside of what torch.compile and Lightning Fabric put around it, a DDP included."""
    children = module._modules  # pyright: ignore[reportPrivateUsage]  not getattr: wrappers hand on what they lack
    inner = next((children[name] for name in _AROUND_MODULES if children.get(name) is not None), None)
    return module if inner is None else strip_wrappers(inner)


def list_tensors(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield a module's parameters by the names that they have when nothing in it is compiled."""
    return ((name_without_wrappers(name), parameter) for name, parameter in module.named_parameters())


def name_without_wrappers(name: str) -> str:
    """Return the name that a parameter or a layer has when nothing around it is compiled."""
    return ".".join(part for part in name.split(".") if part not in _AROUND_MODULES)


def innermost(relaxed: Any) -> Optimizer:
    """Unwrap an optimizer down to one with hooks: wrappers inherit from Optimizer and never initialize it."""
    inner, types = relaxed, list[str]()
    while not (isinstance(inner, Optimizer) and "_optimizer_step_pre_hooks" in vars(inner)):
        types.append(type(inner).__name__)
        own = getattr(inner, "__dict__", {})
        inner = next((own[name] for name in _AROUND_OPTIMIZERS if own.get(name) is not None), None)
        if inner is None:
            raise TypeError(
                f"relax() needs a torch.optim.Optimizer to hook into, but got a {' around a '.join(types)}, with none "
                "inside; give it the optimizer whose step() changes the parameters."
            )
    return inner


def _refuse_models(relaxed: RelaxedModel) -> None:
    parameters = relaxed.parameters
    if relaxed.sharded is None:
        _refuse_sharded(relaxed.module)
    if not parameters:
        raise ValueError("the model has no parameter that requires a gradient, so there is nothing to exchange.")
    for name, parameter in list_tensors(relaxed.module):
        if isinstance(parameter, nn.UninitializedParameter):
            told = f"parameter {name!r} of a lazy layer has no shape yet, but relax() gives all ranks the same values"
            raise ValueError(f"{told}; run one forward pass on every rank first.")
        if parameter.is_meta:
            raise ValueError(
                f"parameter {name!r} is on the meta device and has no values, but relax() gives all ranks rank 0's; "
                "call model.to_empty(device=...) and initialize it first."
            )
    devices = {parameter.device: name for name, parameter in parameters.items()}
    if len(devices) > 1:
        (one, first), (other, second), *_ = devices.items()
        raise ValueError(
            f"parameter {first!r} is on {one} and {second!r} on {other}, but relax() exchanges a model that lies on "
            "one device; move the model there, or train each part as a model of its own."
        )
    if relaxed.ddp is not None and getattr(relaxed.ddp, "_use_python_reducer", False):
        raise ValueError(
            "this DDP was made while torch._dynamo.config.optimize_ddp was 'python_reducer', which hands gradients "
            "over one by one, but relax() takes DDP's buckets; set it to True before the model is wrapped."
        )


def _refuse_sharded(module: nn.Module) -> None:
    """Raise for sharded models; a script that has made one has imported its classes."""
    fsdp: Any = getattr(sys.modules.get("torch.distributed.fsdp"), "FullyShardedDataParallel", None)
    if fsdp is not None and any(isinstance(part, fsdp) for part in module.modules()):
        raise ValueError(
            "the model is wrapped in FullyShardedDataParallel, which divides parameters among ranks, but relax() "
            "exchanges those of DistributedDataParallel, which are whole on every rank; wrap the module in DDP instead."
        )
    dtensor: Any = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
    for name, parameter in list_tensors(module):
        if dtensor is not None and isinstance(parameter, dtensor):
            sharded: Any = parameter
            raise ValueError(
                f"parameter {name!r} is a DTensor, placed as {tuple(sharded.placements)} by tensor parallelism or "
                "distribute_tensor, but no module is under fully_shard or replicate, so that nobody exchanges its "
                "gradients among data-parallel ranks; call fully_shard(model, mesh=...) over their dimension."
            )


def _refuse_optimizers(relaxed: RelaxedModel) -> None:
    zero: Any = sys.modules.get("torch.distributed.optim.zero_redundancy_optimizer")
    ours, owners = {id(p) for p in relaxed.module.parameters()}, dict[int, int]()
    for k, optimizer in enumerate(relaxed.optimizers):
        name = type(optimizer).__name__
        if zero is not None and isinstance(optimizer, zero.ZeroRedundancyOptimizer):
            raise ValueError(
                f"{name} divides its state among ranks, but relax() gives all ranks the same; give it the optimizer "
                "inside, over all parameters, and divide its state with the plan 'sharded_optimizer'."
            )
        mine = [id(p) for group in optimizer.param_groups for p in group["params"]]
        if ours.isdisjoint(mine):
            raise ValueError(
                f"the optimizer {name} holds none of the model's parameters (was the model moved, loaded or wrapped "
                "anew after the optimizer was made?); make the optimizer from this model's parameters()."
            )
        for parameter in mine:
            if owners.setdefault(parameter, k) != k:
                raise ValueError(
                    f"a parameter is held by two optimizers, {type(relaxed.optimizers[owners[parameter]]).__name__} "
                    f"and {name}, but each can have one that steps it; take it out of one."
                )
