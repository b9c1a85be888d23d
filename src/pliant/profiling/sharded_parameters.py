"""Parameters of a model under fully_shard or replicate(), as an observation sees them."""

from collections.abc import Callable, Mapping

from torch import Tensor, nn

from pliant.comm.fsdp_private import is_sharded, param_groups, settle_sharding
from pliant.comm.fsdp_waits_private import Call, WrappedWaits

__all__ = ["ShardedParameters"]


class ShardedParameters:
    """Division of a module among ranks, if it is under fully_shard or replicate()."""

    def __init__(self, module: nn.Module) -> None:
        divided = is_sharded(module)
        if divided and hasattr(module, "_get_fsdp_state"):
            settle_sharding(module)  # so that parameters are the divided ones, under whose names they are looked for
        self.groups = param_groups(module) if divided else []
        self._waits: list[WrappedWaits] = []

    @property
    def num_shards(self) -> int:
        """Ranks among which parameters are divided; 0 for a whole model."""
        if not self.groups:
            return 0
        group = self.groups[0].shard_group
        return 1 if group is None else group.size()

    def groups_of(self, parameters: Mapping[str, Tensor]) -> dict[str, str]:
        """Return the group of each parameter that is divided."""
        names = {id(p): name for name, p in parameters.items()}
        return {names[id(p)]: group.name for group in self.groups for p in group.parameters if id(p) in names}

    def wrap_waits(self, wrap: Callable[[Call], Call]) -> None:
        """Wrap whatever waits for other ranks within forward and backward."""
        self._waits = [group.wrap_waits(wrap) for group in self.groups]

    def unwrap_waits(self) -> None:
        """Remove what `wrap_waits` has put around them."""
        for waits in self._waits:
            waits.close()

    def gathered(self, names: Mapping[int, str]) -> dict[str, Tensor]:
        """Return the whole parameters in which autograd leaves gradients, given names by sharded parameters' ids."""
        pairs = ((p, whole) for group in self.groups for p, whole in zip(group.parameters, group.gathered, strict=True))
        return {names[id(p)]: whole for p, whole in pairs if whole is not None and id(p) in names}
