"""Bytes of a codec's payload: the planner and the wire agree on them without torch."""

import math

from pliant.spec.codecs import CodecFacts, CodecSpec, facts_of

__all__ = ["granularity", "num_kept", "payload_bytes"]


def payload_bytes(codec: CodecSpec | None, numel: int) -> int:
    """Return the exact bytes of what a codec makes of `numel` elements; None stands for plain float32.

    The laws hold it equal to `Codec.nbytes` for all codecs and sizes.

    Raises:
        ValueError: The codec is not in the table.

    """
    if codec is None:
        return 4 * numel
    facts = facts_of(codec.name)
    if facts.kind in ("cast", "quantizer"):
        bits = int(_setting(codec, facts, "bits", facts.bits))
        return facts.header_bytes * -(-numel // granularity(codec)) + -(-numel * bits // 8)
    kept = num_kept(codec, numel)
    if facts.value_codecs:
        values = payload_bytes(CodecSpec(name=facts.value_codecs[int(codec.setting("bits"))]), kept)
        return -(-(values + -(-kept * _place_bits(granularity(codec)) // 8)) // 4) * 4
    if facts.kind == "sparsifier":
        return 4 * (kept // granularity(codec) + kept)  # an index for each unit, and its values
    if facts.kind == "shared":
        return 8 + 4 * kept if numel else 0  # a seed, and values
    return 4 * kept + -(-kept // 4) * 4  # a transform: values, and a byte for each frequency


def num_kept(codec: CodecSpec, numel: int) -> int:
    """Return how many of `numel` elements (or coefficients) a sparse codec sends, places to fill up included.

    Raises:
        ValueError: The codec sends a code for every element.

    """
    facts = facts_of(codec.name)
    if facts.kind in ("cast", "quantizer"):
        raise ValueError(f"the codec {codec} sends every element, so that no number of kept ones is known.")
    ratio, block = _setting(codec, facts, "ratio", 1), granularity(codec)
    units = -(-numel // block)
    if facts.value_codecs:  # so many of each block, and a share of the last
        return numel // block * math.ceil(ratio * block) + math.ceil(ratio * (numel % block))
    if facts.kind == "transform":  # so many coefficients of each block
        return units * math.ceil(ratio * block)
    return block * min(units, max(1, math.ceil(ratio * units)))


def granularity(codec: CodecSpec) -> int:
    """Return where a vector may be cut: at multiples of this, each part's payload is what it would be alone."""
    return int(_setting(codec, facts_of(codec.name), "block", 1))


def _place_bits(block: int) -> int:
    """Return the bits of a place within a block."""
    return next(bits for bits in (8, 12, 16) if block <= 1 << bits)


def _setting(codec: CodecSpec, facts: CodecFacts, name: str, otherwise: float) -> float:
    return codec.setting(name) if name in facts.settings else otherwise
