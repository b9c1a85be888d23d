"""Published models as layers: shapes and arithmetic by formula, for predictions and measurements."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from pliant.spec.image_models import densenet121, inception_v3, resnet18, resnet50, resnet101, vgg16, vgg19
from pliant.spec.layers import Layer, conv, embedding_layer, linear, norm, transformer_blocks

__all__ = ["LAYERS"]


def _bert(depth: int, width: int, length: int, head: Layer) -> list[Layer]:
    """BERT (Devlin et al., arXiv:1810.04805), its word embedding a fifth of the smaller one."""
    tables = [
        embedding_layer("words", 30522, width),
        embedding_layer("positions", 512, width),
        embedding_layer("types", 2, width),
    ]
    blocks = transformer_blocks(depth, width, length, fused=False)
    return [*tables, norm("norm", "LayerNorm", width), *blocks, head]


def _bert_base() -> list[Layer]:
    """BERT-Base over 128 tokens: 109 M parameters."""
    return _bert(12, 768, 128, linear("pooler", 768, 768))


def _bert_large() -> list[Layer]:
    """BERT-Large with the head for SQuAD, over 384 tokens: 334 M parameters."""
    return _bert(24, 1024, 384, linear("answers", 1024, 2, times=384))


def _gpt2() -> list[Layer]:
    """GPT-2 small over 512 tokens (Radford et al., 2019): 124 M parameters; the output is tied to the embedding."""
    length, width, words = 512, 768, 50257
    # A tied weight's gradient is complete only when backward reaches the embedding; its arithmetic is at the output.
    tables = [embedding_layer("words", words, width), embedding_layer("positions", 1024, width)]
    output = Layer("norm", "LayerNorm", (("weight", (width,)), ("bias", (width,))), 2.0 * width * words * length)
    return [*tables, *transformer_blocks(12, width, length, fused=True), output]


def _vit() -> list[Layer]:
    """ViT-B/16 of 224 x 224 images (Dosovitskiy et al., arXiv:2010.11929): 87 M parameters, hardly any embedding."""
    first = [conv("patches", 3, 768, 16, 14, bias=True)]
    first.append(Layer("places", "Positions", (("first", (1, 768)), ("weight", (197, 768)))))
    last = [norm("norm", "LayerNorm", 768), linear("head", 768, 1000)]
    return [*first, *transformer_blocks(12, 768, 197, fused=True), *last]


def _lstm() -> list[Layer]:
    """The language model of `pliant bench`: an embedding, two LSTM layers, a linear layer over 10,000 words; 17 M."""
    words, inner, width, length = 10_000, 400, 650, 35
    tensors: list[tuple[str, tuple[int, ...]]] = []
    for k, cin in enumerate((inner, width)):
        tensors += [(f"weight_ih_l{k}", (4 * width, cin)), (f"weight_hh_l{k}", (4 * width, width))]
        tensors += [(f"bias_ih_l{k}", (4 * width,)), (f"bias_hh_l{k}", (4 * width,))]
    operations = 8.0 * width * (inner + 3 * width) * length
    recurrent = Layer("recurrent", "LSTM", tuple(tensors), operations)
    return [embedding_layer("tokens", words, inner), recurrent, linear("head", width, words, times=length)]


def _lm1b() -> list[Layer]:
    """LSTM-2048-512 on the One Billion Word benchmark (Jozefowicz et al., arXiv:1602.02410): 0.82 B parameters.

    Over 20 words, the output of 8192 sampled words. Gradients of both tables are dense here.
    """
    words, width, inner, length, sampled = 793_470, 512, 2048, 20, 8192
    tensors = (
        ("weight_ih_l0", (4 * inner, width)),
        ("weight_hh_l0", (4 * inner, width)),
        ("bias_ih_l0", (4 * inner,)),
        ("bias_hh_l0", (4 * inner,)),
        ("weight_hr_l0", (width, inner)),
    )
    recurrent = Layer("recurrent", "LSTM", tensors, 2.0 * inner * width * (4 + 4 + 1) * length)
    head = (("weight", (words, width)), ("bias", (words,)))
    return [
        embedding_layer("tokens", words, width),
        recurrent,
        Layer("head", "Linear", head, 2.0 * width * sampled * length),
    ]


def _ncf() -> list[Layer]:
    """NeuMF on MovieLens-20M (He et al., arXiv:1708.05031): 32 M parameters, nearly all in four embeddings.

    Their gradients are dense here, as DistributedDataParallel sends them.
    """
    users, items, factors, inner = 138_493, 26_744, 64, 128
    tables = [embedding_layer("mf.users", users, factors), embedding_layer("mf.items", items, factors)]
    tables += [embedding_layer("mlp.users", users, inner), embedding_layer("mlp.items", items, inner)]
    widths = (2 * inner, 256, 128, 64)
    layers = [linear(f"layers.{k}", widths[k], widths[k + 1]) for k in range(3)]
    return [*tables, *layers, linear("predict", factors + widths[-1], 1)]


def _cnn() -> list[Layer]:
    """The network of `pliant bench` for 28 x 28 images: 0.41 M parameters."""
    layers = [conv("features.0", 1, 16, 3, 28), norm("features.1", "BatchNorm2d", 16)]
    layers += [conv("features.4", 16, 32, 3, 14), norm("features.5", "BatchNorm2d", 32)]
    return [*layers, linear("hidden", 1568, 256), linear("head", 256, 10)]


LAYERS: Mapping[str, Callable[[], list[Layer]]] = MappingProxyType(
    {
        "vgg16": vgg16,
        "vgg19": vgg19,
        "resnet18": resnet18,
        "resnet50": resnet50,
        "resnet101": resnet101,
        "densenet121": densenet121,
        "inception-v3": inception_v3,
        "bert": _bert_base,
        "bert-large": _bert_large,
        "gpt2": _gpt2,
        "vit": _vit,
        "lstm": _lstm,
        "lm1b": _lm1b,
        "ncf": _ncf,
        "cnn": _cnn,
    }
)
"""Name -> layers at full size, with the published models' shapes, in the order of the forward pass."""
