"""Workloads of published models, from their architecture and the time of a step: no torch, no model, no data."""

from collections.abc import Callable, Iterator
from types import MappingProxyType

from pliant.spec import TensorSpec, Workload

__all__ = ["MODELS", "bert_large", "equal_layers", "vgg16", "workload_named"]

_BACKWARD = 2 / 3
"""Of the time of forward and backward: twice as many products as forward."""

Layer = tuple[str, str, dict[str, tuple[int, ...]], float]
"""(name, class, parameters with their shapes, products with weights per sample)."""


def vgg16(step_s: float) -> Workload:
    """VGG16 for 1000 classes (Simonyan and Zisserman, arXiv:1409.1556), 138.4 million parameters."""
    return _workload("vgg16", list(_vgg16()), step_s)


def bert_large(step_s: float) -> Workload:
    """BERT-Large with the head for SQuAD (Devlin et al., arXiv:1810.04805), some 334 million parameters."""
    return _workload("bert-large", list(_bert_large()), step_s)


def equal_layers(name: str, num_parameters: float, num_layers: int, step_s: float, dtype: str = "float32") -> Workload:
    """Return a model of equal layers, one tensor each: what papers compute with."""
    rows = round(num_parameters / num_layers)
    layers: list[Layer] = [(f"layer{k}", "Layer", {"weight": (rows,)}, 1.0) for k in range(num_layers)]
    return _workload(name, layers, step_s, dtype)


def workload_named(name: str, step_s: float) -> Workload:
    """Return one of MODELS with steps of so many seconds. Raises ValueError for a name that is not there."""
    if name not in MODELS:
        raise ValueError(f"there is no model {name!r}; there are {', '.join(MODELS)}, or the path of a workload.")
    return MODELS[name](step_s)


def _vgg16() -> Iterator[Layer]:
    channels, side = 3, 224
    for k, width in enumerate((64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)):
        if width == 0:  # pooling
            side //= 2
            continue
        shapes = {"weight": (width, channels, 3, 3), "bias": (width,)}
        yield f"features.{k}", "Conv2d", shapes, 9.0 * channels * width * side**2
        channels = width
    for k, (outputs, inputs) in enumerate(((4096, 512 * 7 * 7), (4096, 4096), (1000, 4096))):
        yield f"classifier.{k}", "Linear", {"weight": (outputs, inputs), "bias": (outputs,)}, float(outputs * inputs)


def _bert_large() -> Iterator[Layer]:
    width, wide = 1024, 4096
    for name, rows in (("word", 30522), ("position", 512), ("type", 2)):
        yield f"embeddings.{name}", "Embedding", {"weight": (rows, width)}, 0.0
    yield "embeddings.norm", "LayerNorm", {"weight": (width,), "bias": (width,)}, 0.0
    for k in range(24):
        for name in ("query", "key", "value", "output"):
            shapes = {"weight": (width, width), "bias": (width,)}
            yield f"layer.{k}.attention.{name}", "Linear", shapes, float(width * width)
        yield f"layer.{k}.attention.norm", "LayerNorm", {"weight": (width,), "bias": (width,)}, 0.0
        for name, outputs, inputs in (("up", wide, width), ("down", width, wide)):
            shapes = {"weight": (outputs, inputs), "bias": (outputs,)}
            yield f"layer.{k}.{name}", "Linear", shapes, float(outputs * inputs)
        yield f"layer.{k}.norm", "LayerNorm", {"weight": (width,), "bias": (width,)}, 0.0
    yield "answers", "Linear", {"weight": (2, width), "bias": (2,)}, 2.0 * width


def _workload(name: str, layers: list[Layer], step_s: float, dtype: str = "float32") -> Workload:
    """Spread backward over layers by their products, from the last on; a layer's parameters are ready when it is."""
    if step_s <= 0:
        raise ValueError(f"a step of {name} takes {step_s} s, but it must take some time; give more than 0.")
    backward_s = _BACKWARD * step_s
    total = sum(products for _, _, _, products in layers)
    tensors: list[TensorSpec] = []
    done = 0.0
    for layer, kind, shapes, products in reversed(layers):
        done += products
        for parameter, shape in reversed(shapes.items()):
            full_name, ready_s = f"{layer}.{parameter}", backward_s * min(1.0, done / total)
            tensors.append(TensorSpec(name=full_name, shape=shape, dtype=dtype, layer=kind, ready_s=ready_s))
    return Workload(
        name=name,
        tensors=tuple(tensors),
        forward_s=step_s - backward_s,
        backward_s=backward_s,
        provenance=f"by formula, for a step of {step_s:g} s",
    )


MODELS: MappingProxyType[str, Callable[[float], Workload]] = MappingProxyType(
    {"vgg16": vgg16, "bert-large": bert_large}
)
"""Name -> workload, given the seconds of forward and backward."""
