"""Workloads by formula: tensors of known models, and gradient times in proportion to their arithmetic. No torch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pliant.spec import TensorSpec, Workload

__all__ = ["WORKLOADS", "shrunk"]

_GPU, _SMALL, _CPU = 10e12, 1e12, 5e9
"""Operations per second that a model is taken to reach: large matrices on a GPU, small ones there, a CPU core."""
_BYTES = 4


@dataclass(frozen=True)
class _Layer:
    """What one layer holds, and its multiplications and additions in the forward pass of one sample."""

    name: str
    kind: str
    tensors: tuple[tuple[str, tuple[int, ...]], ...]
    operations: float = 0.0


def _workload(name: str, layers: Sequence[_Layer], batch: int, speed: float) -> Workload:
    """Return the workload: backward takes twice the forward, from the last layer to the first.

    A layer's gradients are complete when backward has gone through it.
    """
    tensors: list[TensorSpec] = []
    done_s = 0.0
    for layer in reversed(layers):
        done_s += 2 * layer.operations * batch / speed
        tensors += [
            TensorSpec(name=f"{layer.name}.{part}", shape=shape, dtype="float32", layer=layer.kind, ready_s=done_s)
            for part, shape in reversed(layer.tensors)
        ]
    provenance = f"formula: {name}, batch {batch} at {speed / 1e9:g} Gflop/s"
    return Workload(name=name, tensors=tuple(tensors), forward_s=done_s / 2, backward_s=done_s, provenance=provenance)


def shrunk(workload: Workload, max_bytes: float) -> tuple[Workload, float]:
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
        fits = sum(_numel(_scaled(t.shape, middle)) for t in workload.tensors) * _BYTES <= max_bytes
        low, high = (middle, high) if fits else (low, middle)
    small = tuple(replace(t, shape=_scaled(t.shape, low)) for t in workload.tensors)
    share = sum(t.numel for t in small) / workload.numel
    if sum(t.numel for t in small) * _BYTES > max_bytes:
        raise ValueError(
            f"{workload.name} has {len(small)} tensors, which take more than {max_bytes:g} bytes even with one element "
            "each; allow more bytes."
        )
    return replace(workload, tensors=small, provenance=f"{workload.provenance}; {share:.4g} of its elements"), share


def _scaled(shape: tuple[int, ...], factor: float) -> tuple[int, ...]:
    return tuple(max(1, round(extent * factor)) for extent in shape[:2]) + shape[2:]


def _numel(shape: tuple[int, ...]) -> int:
    return TensorSpec(name="", shape=shape, dtype="float32", layer="", ready_s=0.0).numel


def _conv(name: str, cin: int, cout: int, kernel: int, size: int, *, bias: bool = False) -> _Layer:
    """Return a convolution whose output is size x size."""
    tensors = (("weight", (cout, cin, kernel, kernel)), *((("bias", (cout,)),) if bias else ()))
    return _Layer(name, "Conv2d", tensors, 2.0 * kernel * kernel * cin * cout * size * size)


def _linear(name: str, cin: int, cout: int, *, times: int = 1, extra: float = 0.0) -> _Layer:
    """Return a linear layer that is applied so many times to a sample."""
    return _Layer(name, "Linear", (("weight", (cout, cin)), ("bias", (cout,))), 2.0 * cin * cout * times + extra)


def _norm(name: str, kind: str, width: int) -> _Layer:
    return _Layer(name, kind, (("weight", (width,)), ("bias", (width,))))


def _table(name: str, rows: int, width: int) -> _Layer:
    return _Layer(name, "Embedding", (("weight", (rows, width)),))


def _vgg16() -> Workload:
    """VGG16 of 224 x 224 images (Simonyan and Zisserman, arXiv:1409.1556): 138 M parameters, most in one matrix."""
    layers: list[_Layer] = []
    cin, size = 3, 224
    for block in ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512)):
        for cout in block:
            layers.append(_conv(f"features.{len(layers)}", cin, cout, 3, size, bias=True))
            cin = cout
        size //= 2
    widths = (512 * 7 * 7, 4096, 4096, 1000)
    layers += [_linear(f"classifier.{k}", widths[k], widths[k + 1]) for k in range(3)]
    return _workload("vgg16", layers, 32, _GPU)


def _resnet50() -> Workload:
    """ResNet-50 of 224 x 224 images (He et al., arXiv:1512.03385): 25.6 M parameters in 161 tensors."""
    layers = [_conv("conv1", 3, 64, 7, 112), _norm("bn1", "BatchNorm2d", 64)]
    cin = 64
    for stage, (blocks, width, size) in enumerate(((3, 64, 56), (4, 128, 28), (6, 256, 14), (3, 512, 7)), 1):
        for block in range(blocks):
            at = f"layer{stage}.{block}"
            for k, (a, b, kernel) in enumerate(((cin, width, 1), (width, width, 3), (width, 4 * width, 1)), 1):
                layers += [_conv(f"{at}.conv{k}", a, b, kernel, size), _norm(f"{at}.bn{k}", "BatchNorm2d", b)]
            if block == 0:
                layers.append(_conv(f"{at}.downsample.0", cin, 4 * width, 1, size))
                layers.append(_norm(f"{at}.downsample.1", "BatchNorm2d", 4 * width))
            cin = 4 * width
    return _workload("resnet50", [*layers, _linear("fc", 2048, 1000)], 32, _GPU)


def _blocks(depth: int, width: int, length: int, *, fused: bool) -> list[_Layer]:
    """Return transformer blocks; the products of queries, keys and values count with the projection that follows."""
    layers: list[_Layer] = []
    for k in range(depth):
        at = f"blocks.{k}"
        layers.append(_norm(f"{at}.norm1", "LayerNorm", width))
        if fused:
            layers.append(_linear(f"{at}.qkv", width, 3 * width, times=length))
        else:
            layers += [_linear(f"{at}.{part}", width, width, times=length) for part in ("query", "key", "value")]
        layers.append(_linear(f"{at}.out", width, width, times=length, extra=4.0 * length * length * width))
        layers.append(_norm(f"{at}.norm2", "LayerNorm", width))
        layers.append(_linear(f"{at}.up", width, 4 * width, times=length))
        layers.append(_linear(f"{at}.down", 4 * width, width, times=length))
    return layers


def _bert() -> Workload:
    """BERT-Base over 128 tokens (Devlin et al., arXiv:1810.04805): 109 M parameters, a fifth in one embedding."""
    tables = [_table("words", 30522, 768), _table("positions", 512, 768), _table("types", 2, 768)]
    layers = [*tables, _norm("norm", "LayerNorm", 768), *_blocks(12, 768, 128, fused=False)]
    return _workload("bert", [*layers, _linear("pooler", 768, 768)], 32, _GPU)


def _gpt2() -> Workload:
    """GPT-2 small over 512 tokens (Radford et al., 2019): 124 M parameters; the output is tied to the embedding."""
    length, width, words = 512, 768, 50257
    # A tied weight's gradient is complete only when backward reaches the embedding; its arithmetic is at the output.
    tables = [_table("words", words, width), _table("positions", 1024, width)]
    output = _Layer("norm", "LayerNorm", (("weight", (width,)), ("bias", (width,))), 2.0 * width * words * length)
    return _workload("gpt2", [*tables, *_blocks(12, width, length, fused=True), output], 4, _GPU)


def _vit() -> Workload:
    """ViT-B/16 of 224 x 224 images (Dosovitskiy et al., arXiv:2010.11929): 87 M parameters, hardly any embedding."""
    first = [_conv("patches", 3, 768, 16, 14, bias=True)]
    first.append(_Layer("places", "Positions", (("first", (1, 768)), ("weight", (197, 768)))))
    last = [_norm("norm", "LayerNorm", 768), _linear("head", 768, 1000)]
    return _workload("vit", [*first, *_blocks(12, 768, 197, fused=True), *last], 32, _GPU)


def _lstm() -> Workload:
    """The language model of `pliant bench`: an embedding, two LSTM layers, a linear layer over 10,000 words; 17 M."""
    words, inner, width, length = 10_000, 400, 650, 35
    tensors: list[tuple[str, tuple[int, ...]]] = []
    for k, cin in enumerate((inner, width)):
        tensors += [(f"weight_ih_l{k}", (4 * width, cin)), (f"weight_hh_l{k}", (4 * width, width))]
        tensors += [(f"bias_ih_l{k}", (4 * width,)), (f"bias_hh_l{k}", (4 * width,))]
    operations = 8.0 * width * (inner + 3 * width) * length
    recurrent = _Layer("recurrent", "LSTM", tuple(tensors), operations)
    layers = [_table("tokens", words, inner), recurrent, _linear("head", width, words, times=length)]
    return _workload("lstm", layers, 20, _SMALL)


def _ncf() -> Workload:
    """NeuMF on MovieLens-20M (He et al., arXiv:1708.05031): 32 M parameters, nearly all in four embeddings.

    Their gradients are dense here, as DistributedDataParallel sends them.
    """
    users, items, factors, inner = 138_493, 26_744, 64, 128
    tables = [_table("mf.users", users, factors), _table("mf.items", items, factors)]
    tables += [_table("mlp.users", users, inner), _table("mlp.items", items, inner)]
    widths = (2 * inner, 256, 128, 64)
    layers = [_linear(f"layers.{k}", widths[k], widths[k + 1]) for k in range(3)]
    return _workload("ncf", [*tables, *layers, _linear("predict", factors + widths[-1], 1)], 16_384, _SMALL)


def _cnn() -> Workload:
    """The network of `pliant bench` for 28 x 28 images: 0.41 M parameters, on a CPU core."""
    layers = [_conv("features.0", 1, 16, 3, 28), _norm("features.1", "BatchNorm2d", 16)]
    layers += [_conv("features.4", 16, 32, 3, 14), _norm("features.5", "BatchNorm2d", 32)]
    return _workload("cnn", [*layers, _linear("hidden", 1568, 256), _linear("head", 256, 10)], 64, _CPU)


WORKLOADS: dict[str, Callable[[], Workload]] = {
    "vgg16": _vgg16,
    "resnet50": _resnet50,
    "bert": _bert,
    "gpt2": _gpt2,
    "vit": _vit,
    "lstm": _lstm,
    "ncf": _ncf,
    "cnn": _cnn,
}
"""Name -> workload at full size; shapes are the published models', times are arithmetic over an assumed speed."""
