"""Layers by formula: what each holds and how much arithmetic it is; and the workload that a row of them makes."""

from collections.abc import Sequence
from dataclasses import dataclass

from pliant.spec.workload import TensorSpec, Workload

__all__ = ["Layer", "workload_of_layers", "conv", "linear", "norm", "embedding_layer", "transformer_blocks"]


@dataclass(frozen=True)
class Layer:
    """Parameters of one layer, and its multiplications and additions in the forward pass of one sample."""

    name: str
    kind: str
    """Class of the layer, such as 'Linear'."""
    tensors: tuple[tuple[str, tuple[int, ...]], ...]
    """(name, shape) of each parameter, in order."""
    operations: float = 0.0


def workload_of_layers(
    name: str, layers: Sequence[Layer], *, batch: int, operations_per_s: float, dtype: str = "float32"
) -> Workload:
    """Return the workload of layers in the order of the forward pass: backward takes twice the forward, from the last.

    A layer's gradients are complete when backward has gone through it.

    Args:
        name: Of the workload.
        layers: From the first to the last.
        batch: Samples in a step.
        operations_per_s: Multiplications and additions that a rank does in a second.
        dtype: Of all gradients.

    """
    tensors: list[TensorSpec] = []
    done_s = 0.0
    for layer in reversed(layers):
        done_s += 2 * layer.operations * batch / operations_per_s
        tensors += [
            TensorSpec(name=f"{layer.name}.{part}", shape=shape, dtype=dtype, layer=layer.kind, ready_s=done_s)
            for part, shape in reversed(layer.tensors)
        ]
    provenance = f"formula: {name}, batch {batch} at {operations_per_s / 1e9:g} Gflop/s"
    return Workload(name=name, tensors=tuple(tensors), forward_s=done_s / 2, backward_s=done_s, provenance=provenance)


def conv(name: str, cin: int, cout: int, kernel: int, size: int, *, bias: bool = False) -> Layer:
    """Return a convolution whose output is size x size."""
    tensors = (("weight", (cout, cin, kernel, kernel)), *((("bias", (cout,)),) if bias else ()))
    return Layer(name, "Conv2d", tensors, 2.0 * kernel * kernel * cin * cout * size * size)


def linear(name: str, cin: int, cout: int, *, times: int = 1, extra: float = 0.0) -> Layer:
    """Return a linear layer that is applied so many times to a sample."""
    return Layer(name, "Linear", (("weight", (cout, cin)), ("bias", (cout,))), 2.0 * cin * cout * times + extra)


def norm(name: str, kind: str, width: int) -> Layer:
    """Return a normalization with a scale and a shift, whose arithmetic does not count."""
    return Layer(name, kind, (("weight", (width,)), ("bias", (width,))))


def embedding_layer(name: str, rows: int, width: int) -> Layer:
    """Return the layer of an embedding table."""
    return Layer(name, "Embedding", (("weight", (rows, width)),))


def transformer_blocks(depth: int, width: int, length: int, *, fused: bool) -> list[Layer]:
    """Return transformer blocks; the products of queries, keys and values count with the projection that follows."""
    layers: list[Layer] = []
    for k in range(depth):
        at = f"blocks.{k}"
        layers.append(norm(f"{at}.norm1", "LayerNorm", width))
        if fused:
            layers.append(linear(f"{at}.qkv", width, 3 * width, times=length))
        else:
            layers += [linear(f"{at}.{part}", width, width, times=length) for part in ("query", "key", "value")]
        layers.append(linear(f"{at}.out", width, width, times=length, extra=4.0 * length * length * width))
        layers.append(norm(f"{at}.norm2", "LayerNorm", width))
        layers.append(linear(f"{at}.up", width, 4 * width, times=length))
        layers.append(linear(f"{at}.down", 4 * width, width, times=length))
    return layers
