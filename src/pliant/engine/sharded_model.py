"""A model under fully_shard, HSDP or replicate(), as a run sees it: parameter groups, and local shards by name."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup  # pyright: ignore[reportPrivateImportUsage]
from torch.optim import Muon, Optimizer

from pliant.accelerator import is_accelerator
from pliant.comm.base import Comm, CommError, Limit
from pliant.comm.fsdp_private import ParamGroup, is_sharded, param_groups, settle_sharding
from pliant.comm.torch_errors import Report
from pliant.comm.torch_private import destroy, group_factory
from pliant.comm.transport import comm_alone
from pliant.engine.shard_optimizer import ShardOptimizer

__all__ = ["ShardedModel", "num_shards_of", "sharded_model"]


class ShardedModel:
    """Parameter groups of a model, and this rank's shards.

    Args:
        module: The model, under `fully_shard` or `replicate` itself.
        names: Full name -> parameter, of all that the model has.
        plain: Returns the name that a module has when nothing around it is compiled.

    Raises:
        ValueError: It is divided in a way that is not supported.

    """

    shard_comm: Comm
    """Ranks among which parameters are divided; there once `connect` was called, as `replica_comm` is."""
    replica_comm: Comm
    """Ranks that hold the same shards."""

    def __init__(self, module: nn.Module, names: Mapping[str, Tensor], plain: Callable[[str], str]) -> None:
        self.groups = param_groups(module)
        for group in self.groups:
            group.name = plain(group.name)
        _refuse_meshes(self.groups)
        for group in self.groups:
            group.refuse_foreign()
            _refuse_arithmetic(group)
        self._names = {id(parameter): name for name, parameter in names.items()}
        self.shards: dict[str, Tensor] = {
            self.name_of(p): p._local_tensor.detach().requires_grad_()
            for g in self.groups
            for p in g.parameters
            if p.requires_grad
        }
        """Name -> this rank's part of a parameter that is trained; a view, so that writing changes the model."""
        self.numels = {self.name_of(p): p.numel() for g in self.groups for p in g.parameters if p.requires_grad}
        """Name -> elements of a whole parameter that is trained."""
        self._view: Optimizer | None = None
        self._alone: list[ProcessGroup] = []
        """Group of this rank alone, in which torch averages under replicate() while a run does."""
        if not self.shards:
            raise ValueError("no parameter under fully_shard requires a gradient, so there is nothing to exchange.")
        self._of_shard = {
            id(self.shards[self.name_of(p)]): p for g in self.groups for p in g.parameters if p.requires_grad
        }

    def name_of(self, parameter: Any) -> str:
        """Return the full name of a sharded parameter."""
        return self._names[id(parameter)]

    def names_of(self, group: ParamGroup) -> list[str]:
        """Return the full names of a group's parameters, in its order."""
        return [self.name_of(parameter) for parameter in group.parameters]

    def changed_in(self, group: ParamGroup) -> list[str]:
        """Return the parameters of a group that were trained when the run began and are not now, or the other way."""
        return [n for p in group.parameters if p.requires_grad != ((n := self.name_of(p)) in self.shards)]

    @property
    def num_shards(self) -> int:
        """Ranks among which parameters are divided; 1 where they are whole."""
        group = self.groups[0].shard_group
        return 1 if group is None else group.size()

    @property
    def shard_rank(self) -> int:
        """This rank among those; 0 where parameters are whole."""
        group = self.groups[0].shard_group
        return 0 if group is None else group.rank()

    @property
    def num_replicas(self) -> int:
        """Ranks that hold the same shards; 1 on a mesh of one dimension."""
        group = self.groups[0].replica_group
        return 1 if group is None else group.size()

    @property
    def place(self) -> tuple[int, int, int, int]:
        """This rank among those that share the model, their number, and likewise among those that hold the same."""
        group = self.groups[0].replica_group
        return self.shard_rank, self.num_shards, 0 if group is None else group.rank(), self.num_replicas

    @property
    def cuts(self) -> dict[str, Tensor]:
        """Name -> dimension along which a parameter is divided, and its shape as a whole, in one tensor."""
        found = (zip(self.names_of(group), group.cuts, strict=True) for group in self.groups)
        return {name: torch.tensor([dim, *shape]) for each in found for name, (dim, shape) in each}

    @property
    def has_replicas(self) -> bool:
        """Whether the mesh has a dimension of replicas, even if it is of one rank."""
        return self.groups[0].replica_group is not None

    @property
    def has_shards(self) -> bool:
        """Whether the mesh has a dimension among which parameters are divided, even if it is of one rank."""
        return self.groups[0].shard_group is not None

    def steppers(self, by_parameter: Mapping[int, Optimizer]) -> dict[int, Optimizer]:
        """Return shard's id -> the optimizer that holds its parameter, given the same by parameters' ids."""
        found = {key: by_parameter.get(id(parameter)) for key, parameter in self._of_shard.items()}
        return {key: optimizer for key, optimizer in found.items() if optimizer is not None}

    def view_of(self, optimizer: Optimizer) -> Optimizer:
        """Return how an optimizer looks for this rank's shards; the same view each time."""
        if self._view is None:
            shards = {id(parameter): self.shards[self.name_of(parameter)] for parameter in self._of_shard.values()}
            self._view = ShardOptimizer(optimizer, self._of_shard, shards)
        return self._view

    def require_own_step(self, optimizer: Optimizer) -> None:
        """Raise ValueError for an optimizer whose step would mix replicas with weights of their own.

        Muon multiplies matrices with themselves, and torch divides products of DTensors among replicas as well.
        """
        if self.has_replicas and isinstance(optimizer, Muon):
            raise ValueError(
                "Muon multiplies whole matrices, which torch divides among the replicas of this mesh too, but under "
                "this plan replicas differ, so that their steps would be mixed; step with AdamW or another "
                "optimizer that works element by element, or choose a plan that exchanges gradients."
            )

    def equal_tensors(self, optimizer: Optimizer) -> list[Tensor]:
        """Return what ranks that hold the same shards begin with alike: shards, and what the optimizer has gathered."""
        states = (self.view_of(optimizer).state.get(shard, {}) for shard in self.shards.values())
        gathered = [value for state in states for _, value in sorted(state.items()) if isinstance(value, Tensor)]
        return [*self.shards.values(), *gathered]

    def connect(self, comm: Comm, whole: ProcessGroup, report: Report) -> None:
        """Make groups of our own, in which nobody else's communication comes between. Collective over `comm`.

        What stays torch's is watched from here on, so that its errors name the lost rank.

        Args:
            comm: All ranks that train the model.
            whole: The process group that it was made from.
            report: Names the lost rank when torch's own communication fails.

        """
        device = next(iter(self.shards.values())).device
        self.shard_comm = _among(self.groups[0].shard_group, comm, whole) or comm_alone(device)
        self.replica_comm = _among(self.groups[0].replica_group, comm, whole) or comm_alone(device)
        ranks = _ranks(self.groups[0].replica_group) or (dist.get_rank(),)
        self._replicas = [dist.get_group_rank(whole, rank) for rank in ranks]
        if self.has_replicas and not self.has_shards:
            self._alone = [group_factory(whole, Limit(timeout_s=comm.timeout_s))([whole.rank()])]
        for group in self.groups:
            group.alone = next(iter(self._alone), None)
            group.watch(partial(_explained, report, group.name))

    def hosts_of_replicas(self, hosts: Sequence[Sequence[int]]) -> list[list[int]]:
        """Return the ranks of `replica_comm` on each host, given hosts by numbers of all ranks."""
        place = {rank: k for k, rank in enumerate(self._replicas)}
        found = [[place[rank] for rank in host if rank in place] for host in hosts]
        return [ranks for ranks in found if ranks]

    def close(self) -> None:
        """Give all places back to torch."""
        for group in self.groups:
            group.restore()
        for mine in self._alone:
            destroy(mine)


def sharded_model(
    module: nn.Module, names: Callable[[], Mapping[str, Tensor]], plain: Callable[[str], str]
) -> ShardedModel | None:
    """Return a model's shards; None for one whose parameters are whole. No communication.

    Args:
        module: The model.
        names: Returns full name -> parameter of all that it has.
        plain: Returns the name that a module has when nothing around it is compiled.

    Raises:
        ValueError: The model is divided in a way that is not supported.

    """
    if not is_sharded(module):
        return None
    kind: Any = getattr(module, "_get_fsdp_state", None)
    if kind is None:
        raise ValueError(
            "parts of the model are under fully_shard, but the model itself is not, so that nobody exchanges the "
            "gradients of the rest; call fully_shard(model) last."
        )
    try:
        settle_sharding(module)
    except RuntimeError as error:
        raise ValueError(f"the sharded model cannot begin: {error}") from error
    return ShardedModel(module, names(), plain)


def num_shards_of(model: ShardedModel | None) -> int:
    """Return among how many ranks parameters are divided; 1 under replicate(), 0 where the model is whole (None)."""
    return 0 if model is None else model.num_shards


def _among(group: ProcessGroup | None, comm: Comm, whole: ProcessGroup) -> Comm | None:
    """Return a comm of the ranks of a group; None where this rank is alone. Collective over `comm`."""
    if group is None or group.size() == 1:
        return comm.split([])
    return comm.split([[dist.get_group_rank(whole, rank) for rank in _ranks(group)]])


def _refuse_meshes(groups: Sequence[ParamGroup]) -> None:
    meshes = {(_ranks(group.shard_group), _ranks(group.replica_group)): group.name for group in groups}
    if len(meshes) > 1:
        first, second, *_ = meshes.values()
        raise ValueError(
            f"the modules {first!r} and {second!r} are divided among different ranks (a mesh of their own, as in a "
            "mixture of experts), but relax() exchanges a model that is divided in one way; use one mesh for all."
        )


def _refuse_arithmetic(group: ParamGroup) -> None:
    raw = group.raw
    if raw.gradient_divide_factor is not None or getattr(raw, "force_sum_reduction_for_comms", False):
        raise ValueError(
            f"the module {group.name!r} has a divide factor of its own (set_gradient_divide_factor or "
            "set_force_sum_reduction_for_comms), but relax() exchanges means; leave it out, and scale the loss instead."
        )
    trained = [each for each in raw.fsdp_params if each.sharded_param.requires_grad]
    dtypes = {(each.orig_dtype, each.reduce_dtype or each.param_dtype or each.orig_dtype) for each in trained}
    if len(dtypes) > 1:
        raise ValueError(f"the module {group.name!r} mixes the dtypes {dtypes}; give it one, or divide it in two.")
    if len(group.gathered_dtypes) > 1 or group.has_extensions:
        raise ValueError(
            f"the module {group.name!r} gathers weights of several types ({group.gathered_dtypes}) or of a tensor "
            "subclass that says what is gathered (fsdp_pre_all_gather), but relax() gathers one type as it is; divide "
            "the module in two, or convert its parameters."
        )
    for kept, reduced in dtypes:
        if kept == torch.float16 or reduced not in (torch.float32, torch.bfloat16):
            raise ValueError(
                f"the module {group.name!r} has parameters in {kept} and reduces gradients in {reduced}, of which "
                "torch scales sums in two steps, but relax() exchanges means in float32 or bfloat16; use "
                "MixedPrecisionPolicy(reduce_dtype=torch.float32), and no parameters in float16."
            )
    if is_accelerator(raw.device) and any(each.offload_to_cpu for each in raw.fsdp_params):
        raise ValueError(
            f"the module {group.name!r} computes on {raw.device} and keeps its shards on the host (CPUOffloadPolicy), "
            "but relax() exchanges them where they are kept; leave offload_policy out."
        )


def _ranks(group: ProcessGroup | None) -> tuple[int, ...]:
    return () if group is None else tuple(dist.get_process_group_ranks(group))


def _explained(report: Report, group: str, error: RuntimeError, what: str, waited_s: float) -> CommError | None:
    return report(error, f"torch's {what} of {group}", waited_s)
