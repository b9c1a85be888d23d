"""Private names of FSDP2, HSDP and replicate() that Pliant needs, in one file; tests/comm/test_fsdp_private pins them.

A module under `fully_shard` or `replicate` has parameter groups, one for each call; each gathers its weights and
reduces its gradients in one go. torch 2.11 has one group in a module, torch 2.13 may have several.
"""

import copy
import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup  # pyright: ignore[reportPrivateImportUsage]

from pliant.comm.fsdp_waits_private import RESET, Call, WrappedWaits, inner_place
from pliant.comm.torch_errors import Explain, watched
from pliant.spec.workload import ROOT_GROUP

__all__ = ["ParamGroup", "is_sharded", "is_sharded_root", "param_groups", "settle_sharding"]

GradientHook = Callable[[Tensor], None]
_GATHER, _REDUCTION = "gather of the weights", "reduction of the gradients"
_COMMUNICATES = {
    "unshard": _GATHER,
    "wait_for_unshard": _GATHER,
    "post_backward": _REDUCTION,
    "finalize_backward": _GATHER,  # waits for one that nobody has used
}
"""Methods of a parameter group in which torch communicates, or waits for it, and what it is about then."""


def is_sharded(module: nn.Module) -> bool:
    """Say whether a module, or one inside it, is under `fully_shard` or `replicate`; imports nothing for it."""
    return bool(_sharded_modules(module))


def is_sharded_root(module: nn.Module) -> bool:
    """Say whether a module is the outermost one under `fully_shard` or `replicate`; known after a forward pass."""
    state: Any = module._get_fsdp_state()  # pyright: ignore
    return state._is_root is True


def settle_sharding(module: nn.Module) -> None:
    """Let a sharded model do what it does before its first forward pass, and take back weights that are gathered.

    Afterwards its parameters are the ones that it goes on with, and dtypes are known.

    Raises:
        RuntimeError: The module is not the outermost one that is sharded.

    """
    state: Any = module._get_fsdp_state()  # pyright: ignore
    state._lazy_init()
    if state._is_root is False:
        raise RuntimeError("this module is inside of a larger model that is sharded; relax() takes the whole model.")
    for _, inner in _sharded_modules(module):
        inner.reshard()


def param_groups(module: nn.Module) -> "list[ParamGroup]":
    """Return the parameter groups of a model, in the order of its modules."""
    found: list[ParamGroup] = []
    for name, inner in _sharded_modules(module):
        state = inner._get_fsdp_state()
        groups: Sequence[Any] | None = getattr(state, "_fsdp_param_groups", None)
        if groups is None:
            groups = [] if state._fsdp_param_group is None else [state._fsdp_param_group]
        known = {id(each.raw) for each in found}  # fully_shard([a, b]) gives two modules one state
        found += [ParamGroup(each, inner, name) for each in groups if id(each) not in known]
    return found


class ParamGroup:
    """Parameters that FSDP2 gathers and reduces together.

    Args:
        raw: The group itself.
        module: The module under `fully_shard`.
        name: Its full name; "" for the model itself.

    """

    def __init__(self, raw: Any, module: Any, name: str) -> None:
        self.raw, self.module, self.name = raw, module, name or ROOT_GROUP
        places = inner_place(raw._all_gather_comm), inner_place(raw._reduce_scatter_comm)
        self._before = *places, raw._all_reduce_hook, raw.mesh_info
        self.alone: ProcessGroup | None = None
        """A group of this rank alone, where replicas average through a hook under replicate()."""
        self._prefetched = module._get_fsdp_state()._states_to_forward_prefetch

    # - Parameters

    @property
    def parameters(self) -> list[Any]:
        """Sharded parameters, DTensors, in the order in which they lie in a gather."""
        return [each.sharded_param for each in self.raw.fsdp_params]

    @property
    def cuts(self) -> list[tuple[int, tuple[int, ...]]]:
        """Dimension along which each parameter is divided, and its shape as a whole."""
        return [(each.fsdp_placement.dim, tuple(each._orig_size)) for each in self.raw.fsdp_params]

    @property
    def gathered(self) -> list[Tensor | None]:
        """Whole parameters, in which autograd leaves gradients; None before the first gather, and where none is."""
        return [getattr(each, "_unsharded_param", None) for each in self.raw.fsdp_params]

    @property
    def stand_ins(self) -> dict[int, Any]:
        """Id of what stands in a module for a parameter while a pass goes on -> the sharded parameter."""
        places = ("_unsharded_param", "_sharded_post_forward_param")
        found = ((getattr(each, place, None), each.sharded_param) for each in self.raw.fsdp_params for place in places)
        return {id(tensor): parameter for tensor, parameter in found if tensor is not None}

    @property
    def padded_numels(self) -> list[int]:
        """Elements of a rank's shard of each parameter, with the padding."""
        return [each.padded_sharded_param_size.numel() for each in self.raw.fsdp_params]

    def valid_numels(self, rank: int) -> list[int]:
        """Return the elements of a rank's shard of each parameter, without the padding."""
        return [self._valid(each, rank) for each in self.raw.fsdp_params]

    def _valid(self, parameter: Any, rank: int) -> int:
        padded = parameter.padded_sharded_param_size
        if parameter.fsdp_placement.dim != 0:
            return padded.numel()
        left = parameter._orig_size[0] - rank * padded[0]
        return padded[1:].numel() * max(0, min(padded[0], left))

    @property
    def gathered_dtypes(self) -> set[torch.dtype]:
        """Types in which weights are gathered; more than one if parameters differ."""
        return {each.param_dtype or each.orig_dtype for each in self.raw.fsdp_params}

    @property
    def has_extensions(self) -> bool:
        """Whether a parameter says itself what of it is gathered, as torchao's float8 weights do."""
        return any(hasattr(each._sharded_local_tensor, "fsdp_pre_all_gather") for each in self.raw.fsdp_params)

    # - Who takes part

    @property
    def shard_group(self) -> ProcessGroup | None:
        """Ranks among which parameters are divided; None where they are whole on every rank."""
        return getattr(self.raw.mesh_info, "shard_process_group", None)

    @property
    def replica_group(self) -> ProcessGroup | None:
        """Ranks that hold the same shards; None on a mesh of one dimension."""
        return getattr(self._before[3], "replicate_process_group", None)

    # - What torch does at once with a reduced gradient

    def reads_at_once(self, dtype: torch.dtype) -> bool:
        """Say whether torch reads a reduced shard before backward ends, so that it must be there when we return.

        Args:
            dtype: Type of the shard, which torch casts to that of the parameters.

        """
        reads = any(
            each.sharded_param.grad is not None  # accumulation adds to it
            or each.offload_to_cpu
            or getattr(each.sharded_param, "_post_accumulate_grad_hooks", None)  # an optimizer in backward
            for each in self.raw.fsdp_params
        )
        return reads or self._has_exact_replicas or self.raw._orig_dtype not in (None, dtype)

    @property
    def defers_replicas(self) -> bool:
        """Whether replicas average this pass's gradients with those of a later one (`set_requires_all_reduce`)."""
        return not self.raw.all_reduce_grads

    @property
    def _has_exact_replicas(self) -> bool:
        """Whether torch averages the reduced shard among replicas right behind the reduce-scatter."""
        return self.replica_group is not None and self.raw.mesh_info is self._before[3]

    # - Hooks

    def refuse_foreign(self) -> None:
        """Raise ValueError if somebody else has taken a place that we need."""
        from torch.distributed.fsdp._fully_shard import _fsdp_collectives as collectives

        gather, scatter, hook, _ = self._before
        places = (gather, collectives.DefaultAllGather), (scatter, collectives.DefaultReduceScatter)
        taken = next((place for place, default in places if type(place) is not default), hook)
        if taken is None:
            return
        if type(taken).__module__.startswith("pliant."):
            raise ValueError(
                "this model already has an open run, and two would exchange its parameters; close() that run first, or "
                "switch() its plan."
            )
        foreign = "an all-reduce hook" if taken is hook else type(taken).__name__
        raise ValueError(
            f"the module {self.name!r} has {foreign} (set_custom_all_gather, set_custom_reduce_scatter, "
            "set_all_reduce_hook, set_symm_mem or set_allocate_memory_from_process_group), and Pliant needs that "
            "place; leave it out."
        )

    @property
    def torch_gather(self) -> Any:
        """The gather that was there before."""
        return self._before[0]

    def install(self, gather: Any, scatter: Any, hook: GradientHook | None) -> None:
        """Let the group gather, reduce and average through these; None gives a place back to torch."""
        raw, (before_gather, before_scatter, before_hook, info) = self.raw, self._before
        raw._all_gather_comm = before_gather if gather is None else gather
        raw._reduce_scatter_comm = before_scatter if scatter is None else scatter
        raw._all_reduce_hook = before_hook if hook is None else hook
        self._set_mesh(info if hook is None else self._without_replicas())

    def _without_replicas(self) -> Any:
        """Return how the group is divided, without the dimension among which torch would average reduced shards."""
        from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo

        info = self._before[3]
        if info.shard_mesh_dim is None:  # replicate(): a sum over this rank alone
            alone = copy.copy(info)
            alone.replicate_process_group = self.alone
            return alone
        own: dict[str, Any] = {
            each.name: getattr(info, each.name) for each in dataclasses.fields(FSDPMeshInfo) if each.init
        }
        make: Any = FSDPMeshInfo
        shards = make(**{**own, "replicate_mesh_dim": None})
        shards.reduce_scatter_process_group = getattr(info, "reduce_scatter_process_group", None)
        return shards

    def _set_mesh(self, info: Any) -> None:
        if self.raw.post_forward_mesh_info is self.raw.mesh_info:  # what they are compared by
            self.raw.post_forward_mesh_info = info
        self.raw.mesh_info = info

    def wrap_waits(self, wrap: Callable[[Call], Call]) -> WrappedWaits:
        """Wrap whatever waits for other ranks, until what is returned is closed."""
        return WrappedWaits(self.raw, wrap, averages=self._has_exact_replicas)

    def prefetch(self, following: "ParamGroup | None") -> None:
        """Let the module gather that of another before its own forward pass, unless the user has said which."""
        if not self._prefetched:
            others = [] if following is None or following.module is self.module else [following.module]
            self.module.set_modules_to_forward_prefetch(others)

    def reshard(self) -> None:
        """Take back weights that are gathered, also those that nobody has used yet, so that they are gathered anew."""
        pending = self.raw._all_gather_result
        self.forget_gather()
        self.raw._to_sharded()
        if pending is not None and isinstance(pending.all_gather_work, dist.Work):
            pending.all_gather_work.wait()

    def forget_gather(self) -> None:
        """Let the next pass gather weights anew, and not wait for those that are on their way."""
        self.raw._all_gather_result = None

    def watch(self, explain: Explain) -> None:
        """Explain the errors of what the group communicates, until `restore`."""
        for name, what in _COMMUNICATES.items():
            setattr(self.raw, name, watched(self.raw, name, what, explain))

    def restore(self) -> None:
        """Put everything back as it was found."""
        self.install(None, None, None)
        for name in (*_COMMUNICATES, RESET):
            vars(self.raw).pop(name, None)
        self.module._get_fsdp_state()._states_to_forward_prefetch = self._prefetched


def _sharded_modules(module: nn.Module) -> list[tuple[str, Any]]:
    kind: Any = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)
    named: Iterator[tuple[str, nn.Module]] = module.named_modules()
    return [(name, inner) for name, inner in named if kind is not None and isinstance(inner, kind)]
