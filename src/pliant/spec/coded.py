"""How many bytes a codec's payload has. No torch: the planner and the wire agree without it."""

import math
from types import MappingProxyType

from pliant.spec.plan import CodecSpec

__all__ = ["chosen", "granularity", "payload_bytes"]

_PER_ELEMENT = MappingProxyType({"bf16": 2, "fp16": 2})
"""Casts: bytes of an element."""

_BLOCKS = MappingProxyType(
    {
        "fp8": (4, 1024, 8),
        "minmax8": (12, 2048, 8),
        "qsgd": (4, 512, 8),
        "sign": (4, 1024, 1),
        "ternary": (4, 512, 2),
        "natural": (4, 2048, 8),
        "int4": (4, 64, 4),
    }
)
"""Quantizers: bytes in front of each block, elements of a block, bits of an element, unless settings say otherwise."""

_CHOOSERS = MappingProxyType({"topk": (0.01, 1), "randomk": (0.01, 1), "blocktopk": (0.01, 128), "dct": (1 / 64, 64)})
"""Codecs that choose: the share that they keep, and the elements of what they choose from."""


def payload_bytes(codec: CodecSpec | None, numel: int) -> int:
    """Return the exact size in bytes of what a codec makes of `numel` elements; None stands for plain float32.

    The laws hold it equal to `Codec.nbytes` for all codecs and sizes.

    Raises:
        ValueError: The codec is not known, or is `rank`, whose payload depends on the shapes of the tensors.

    """
    if codec is None:
        return 4 * numel
    if codec.name in _PER_ELEMENT:
        return _PER_ELEMENT[codec.name] * numel
    if codec.name in _BLOCKS:
        header_bytes, _, bits = _BLOCKS[codec.name]
        code_bits = int(codec.settings.get("bits", bits)) if codec.name == "qsgd" else bits
        return header_bytes * -(-numel // granularity(codec)) + -(-numel * code_bits // 8)
    kept = chosen(codec, numel)
    if codec.name == "topk":
        return 8 * kept  # an index and a value
    if codec.name == "randomk":
        return 8 + 4 * kept if numel else 0  # a seed, and values
    if codec.name == "blocktopk":
        return 4 * (kept // granularity(codec) + kept)  # an index for each block, and its values
    return 4 * kept + -(-kept // 4) * 4  # dct: values, and a byte for each frequency


def chosen(codec: CodecSpec, numel: int) -> int:
    """Return how many of `numel` elements (or coefficients) a codec that chooses sends, places to fill up included."""
    if codec.name not in _CHOOSERS:
        raise ValueError(
            f"the codec {codec} has no payload of a known size; those that choose are {', '.join(_CHOOSERS)}, and "
            "'rank' sends factors whose sizes depend on the shapes of the tensors."
        )
    ratio = codec.settings.get("ratio", _CHOOSERS[codec.name][0])
    block = granularity(codec)
    units = -(-numel // block)
    if codec.name == "dct":  # so many coefficients of each block
        return units * math.ceil(ratio * block)
    return block * min(units, max(1, math.ceil(ratio * units)))


def granularity(codec: CodecSpec) -> int:
    """Return where a vector may be cut: at multiples of this, each part's payload is what it would be alone."""
    if codec.name in _BLOCKS:
        return int(codec.settings.get("block", _BLOCKS[codec.name][1]))
    if codec.name in ("blocktopk", "dct"):
        return int(codec.settings.get("block", _CHOOSERS[codec.name][1]))
    return 1
