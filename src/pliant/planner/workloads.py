"""Workloads of known models at an assumed speed, gradient times in proportion to their arithmetic. No torch."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from pliant.spec import TensorSpec, Workload
from pliant.spec.layers import workload_of_layers
from pliant.spec.models import LAYERS
from pliant.spec.workload import ROOT_GROUP

__all__ = ["WORKLOADS", "divided", "scaled_down"]

_GPU, _SMALL, _CPU = 10e12, 1e12, 5e9
"""Operations per second that a model is taken to reach: large matrices on a GPU, small ones there, a CPU core."""
_BYTES = 4


def scaled_down(workload: Workload, max_bytes: float) -> tuple[Workload, float]:
    """Return the workload with gradients of at most so many bytes in all, and the share of elements that is left.

    Each of a matrix's first two extents, and a vector's only one, shrinks by the same factor, so that matrices keep
    their form and large tensors stay large beside small ones; kernels of convolutions keep their size. Times stay:
    a step at a rate r stands for one of the whole model at r over the share. What fits already is returned as it is.
    """
    if workload.numel * _BYTES <= max_bytes:
        return workload, 1.0
    low, high = 0.0, 1.0
    for _ in range(40):  # halving: the number of elements only grows with the factor
        middle = (low + high) / 2
        fits = sum(_numel(_scale_shape(t.shape, middle)) for t in workload.tensors) * _BYTES <= max_bytes
        low, high = (middle, high) if fits else (low, middle)
    small = tuple(replace(t, shape=_scale_shape(t.shape, low)) for t in workload.tensors)
    share = sum(t.numel for t in small) / workload.numel
    if sum(t.numel for t in small) * _BYTES > max_bytes:
        raise ValueError(
            f"{workload.name} has {len(small)} tensors, which take more than {max_bytes:g} bytes even with one element "
            "each; allow more bytes."
        )
    return replace(workload, tensors=small, provenance=f"{workload.provenance}; {share:.4g} of its elements"), share


def divided(workload: Workload, num_shards: int) -> Workload:
    """Return the workload of a model under fully_shard, block by block, as the names of its tensors tell blocks apart.

    A block is what has a number in its name, such as 'layers.3' of 'layers.3.attention.weight'; the rest is the root's.

    Args:
        workload: Of the whole model.
        num_shards: Ranks among which each copy of it is divided.

    """
    if num_shards < 1:
        raise ValueError(f"a model cannot be divided among {num_shards} ranks; give at least 1.")
    tensors = tuple(replace(tensor, group=_block_of(tensor.name)) for tensor in workload.tensors)
    return replace(workload, tensors=tensors, num_shards=num_shards)


def _block_of(name: str) -> str:
    parts = name.split(".")
    numbered = next((k for k, part in enumerate(parts) if part.isdigit()), None)
    return ROOT_GROUP if numbered is None else ".".join(parts[: numbered + 1])


def _scale_shape(shape: tuple[int, ...], factor: float) -> tuple[int, ...]:
    return tuple(max(1, round(extent * factor)) for extent in shape[:2]) + shape[2:]


def _numel(shape: tuple[int, ...]) -> int:
    return TensorSpec(name="", shape=shape, dtype="float32", layer="", ready_s=0.0).numel


def _of(name: str, batch: int, operations_per_s: float) -> Callable[[], Workload]:
    return lambda: workload_of_layers(name, LAYERS[name](), batch=batch, operations_per_s=operations_per_s)


WORKLOADS: Mapping[str, Callable[[], Workload]] = MappingProxyType(
    {
        name: _of(name, batch, operations_per_s)
        for name, batch, operations_per_s in (
            ("vgg16", 32, _GPU),
            ("resnet50", 32, _GPU),
            ("bert", 32, _GPU),
            ("gpt2", 4, _GPU),
            ("vit", 32, _GPU),
            ("lstm", 20, _SMALL),
            ("ncf", 16_384, _SMALL),
            ("cnn", 64, _CPU),
        )
    }
)
"""Name -> workload at full size; shapes are the published models', times are arithmetic over an assumed speed."""
