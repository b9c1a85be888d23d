"""A codec's name and settings in a plan, to the codec and back."""

import dataclasses
from types import MappingProxyType
from typing import Any

from pliant.codecs.base import Codec
from pliant.codecs.blocktopk import BlockTopK
from pliant.codecs.cast import Bf16, Fp8, Fp16
from pliant.codecs.dct import Dct
from pliant.codecs.int4 import Int4
from pliant.codecs.minmax8 import MinMax8
from pliant.codecs.natural import Natural
from pliant.codecs.qsgd import Qsgd
from pliant.codecs.randomk import RandomK
from pliant.codecs.sign import Sign
from pliant.codecs.ternary import Ternary
from pliant.codecs.topk import TopK
from pliant.spec import CodecSpec

__all__ = ["CODECS", "codec_from", "spec_of"]

CODECS: MappingProxyType[str, Any] = MappingProxyType(
    {
        kind.name: kind
        for kind in (Bf16, Fp16, Fp8, MinMax8, Qsgd, Sign, Ternary, Natural, Int4, TopK, BlockTopK, RandomK, Dct)
    }
)


def codec_from(spec: CodecSpec) -> Codec:
    """Return the codec that a plan names. Raises ValueError for an unknown name or setting."""
    if spec.name not in CODECS:
        raise ValueError(f"there is no codec {spec.name!r}; there are {', '.join(sorted(CODECS))}.")
    kind = CODECS[spec.name]
    fields = {field.name: field.type for field in dataclasses.fields(kind)}
    unknown = sorted(set(spec.settings) - set(fields))
    if unknown:
        known = ", ".join(fields) or "none"
        raise ValueError(f"the codec {spec.name!r} has no setting {unknown[0]!r}; it has {known}.")
    whole = {k for k, number in fields.items() if number in (int, "int")}
    for setting, value in spec.settings.items():
        if setting in whole and not value.is_integer():
            raise ValueError(f"the codec {spec.name!r} has {setting} {value}, but that is a count; use a whole number.")
    return kind(**{k: int(v) if k in whole else v for k, v in spec.settings.items()})


def spec_of(codec: Codec) -> CodecSpec:
    """Return how a plan names a codec: all settings are written out."""
    settings = {f.name: getattr(codec, f.name) for f in dataclasses.fields(codec)}  # pyright: ignore[reportArgumentType]
    return CodecSpec(name=codec.name, settings=settings)
