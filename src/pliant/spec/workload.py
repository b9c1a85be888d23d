"""Workloads: tensors of a model, with their sizes and the times at which their gradients are ready."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from pliant.spec.plain import LATER

__all__ = ["ROOT_GROUP", "TensorSpec", "Workload"]

ROOT_GROUP = "the model itself"
"""Group of the tensors of a sharded model that are in no inner module under `fully_shard`."""

_MOST_NUMEL = 10**15


@dataclass(frozen=True, kw_only=True)
class TensorSpec:
    """One parameter: its shape, and the time and statistics of its gradient."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    layer: str
    """Class of the layer that owns it, such as 'Linear'."""
    ready_s: float
    """Time at which its gradient is complete, counted from the start of backward."""
    group: str = field(default="", metadata=LATER)
    """Module under fully_shard or replicate() with which it is gathered and reduced; empty in a whole model."""
    gradient_share: float = 0.0
    """Share of the model's squared gradient norm; 0 where that was not measured."""
    gradient_error: Mapping[str, float] = field(default_factory=dict[str, float], hash=False)
    """`Exchange.coding`, such as 'qsgd(bits=4)' or 'rank(rank=4)' -> relative squared error |C(g) - g|^2/|g|^2.

    For an unbiased codec it is omega, for a biased one 1 - delta, where delta is the contraction."""
    sparse_rows: float = field(default=0.0, metadata=LATER)
    """Rows of a rank's gradient in a step, where it comes as pairs of index and values; 0 where it is dense."""
    distinct: float = field(default=1.0, metadata=LATER)
    """Rows of the mean gradient over the sum of all ranks' rows: below 1 where ranks share rows."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "gradient_error", MappingProxyType(dict(self.gradient_error)))
        figures = (self.ready_s, self.gradient_share, self.sparse_rows, self.distinct, *self.gradient_error.values())
        if not all(0 <= each < math.inf for each in (*self.shape, *figures)) or self.numel > _MOST_NUMEL:
            raise ValueError(
                f"tensor {self.name!r} has shape {self.shape}, is ready after {self.ready_s:g} s, and has shares, "
                f"rows or errors; all must be finite and at least 0, and at most {_MOST_NUMEL:g} elements."
            )

    @property
    def numel(self) -> int:
        """Elements in the tensor."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One model, batch and machine: tensors in the order in which their gradients are ready.

    >>> tensor = TensorSpec(name="weight", shape=(64, 8), dtype="float32", layer="Linear", ready_s=0.001)
    >>> Workload(name="tiny", tensors=(tensor,), forward_s=0.001, backward_s=0.002).numel
    512
    """

    name: str
    tensors: tuple[TensorSpec, ...]
    forward_s: float
    backward_s: float
    step_s: float = 0.0
    """Time of the optimizer's step."""
    batch_size: int = 1
    """Samples that one rank takes in a step: the unit of the noise scale. 1 where it was not said."""
    noise_scale: float | None = None
    """tr(Sigma) / |G|^2 in samples: the batch from which on noise no longer rules; None where it was not measured.

    McCandlish et al., "An Empirical Model of Large-Batch Training", arXiv:1812.06162, equation 2.8 (B_simple)."""
    rank_factors: tuple[float, ...] = ()
    """Each rank's time to compute over that of the median rank; nothing where that was not measured."""
    num_shards: int = field(default=0, metadata=LATER)
    """Ranks among which parameters are divided: 1 under replicate(), 0 for a model that DDP holds whole."""
    provenance: str = ""
    """Where the figures come from: 'given', or how and when they were measured."""

    def __post_init__(self) -> None:
        figures = (self.forward_s, self.backward_s, self.step_s, self.noise_scale or 0.0, *self.rank_factors)
        if not all(0 <= each < math.inf for each in figures) or self.batch_size < 1 or self.num_shards < 0:
            raise ValueError(
                f"the workload {self.name!r} has times {self.forward_s:g}, {self.backward_s:g} and {self.step_s:g} s, "
                f"a noise scale or rank factors, {self.batch_size} samples and {self.num_shards} shards; times, "
                "factors and shards must be finite and at least 0, samples at least 1."
            )

    @property
    def compute_s(self) -> float:
        """Time that a step computes, in s."""
        return self.forward_s + self.backward_s + self.step_s

    @property
    def is_sharded(self) -> bool:
        """Whether it is under fully_shard or replicate()."""
        return self.num_shards > 0

    @property
    def wrapper(self) -> str:
        """Name of what torch trains it with: 'DDP' or 'FSDP2'."""
        return "FSDP2" if self.is_sharded else "DDP"

    def has_replicas(self, num_ranks: int) -> bool:
        """Say whether it is sharded and some of so many ranks hold the same shard."""
        return 0 < self.num_shards < num_ranks

    @property
    def numel(self) -> int:
        """Elements in all tensors."""
        return sum(tensor.numel for tensor in self.tensors)

    def gradient_error(self, codec: str) -> float:
        """Return the relative squared error of a codec on the whole gradient: tensors weighed by their share of it.

        Raises:
            ValueError: The codec was not measured on every tensor.

        """
        lacking = [t.name for t in self.tensors if t.gradient_share and codec not in t.gradient_error]
        if lacking or not any(t.gradient_share for t in self.tensors):
            known = ", ".join(sorted({name for t in self.tensors for name in t.gradient_error})) or "no codec"
            raise ValueError(
                f"the workload {self.name!r} was not measured under {codec!r}, but under {known}; "
                "name the codec in pliant.observe(codecs=...)."
            )
        return sum(t.gradient_share * t.gradient_error[codec] for t in self.tensors if t.gradient_share)
