"""What a training step asks of the network: which tensors, how large, ready when."""

from dataclasses import dataclass

__all__ = ["TensorSpec", "Workload"]


@dataclass(frozen=True, kw_only=True)
class TensorSpec:
    """One parameter as the network sees it."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    layer: str
    """Class of the layer that owns it, such as 'Linear'."""
    ready_s: float
    """When its gradient is complete, counted from the start of backward."""

    @property
    def numel(self) -> int:
        """Elements in the tensor."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One model, batch and machine: tensors in the order in which their gradients are ready."""

    name: str
    tensors: tuple[TensorSpec, ...]
    forward_s: float
    backward_s: float
    step_s: float = 0.0
    """Time of the optimizer's step."""
    provenance: str = ""

    @property
    def numel(self) -> int:
        """Elements in all tensors."""
        return sum(tensor.numel for tensor in self.tensors)
