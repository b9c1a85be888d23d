"""A codec's name and settings in a plan, to the codec and back."""

import dataclasses
import importlib
from typing import Any

from pliant.codecs.base import Codec
from pliant.spec import CodecSpec
from pliant.spec.codecs import facts_of

__all__ = ["codec_class", "codec_from", "spec_of"]


def codec_class(name: str) -> Any:
    """Return the class that carries a codec out. Raises ValueError for a name that is not in the table."""
    module, _, kind = facts_of(name).made_by.partition(":")
    return getattr(importlib.import_module(f"pliant.codecs.{module}"), kind)


def codec_from(spec: CodecSpec) -> Codec:
    """Return the codec that a plan names."""
    counts = {name for name, setting in spec.facts.settings.items() if isinstance(setting.default, int)}
    return codec_class(spec.name)(**{k: int(v) if k in counts else v for k, v in spec.settings.items()})


def spec_of(codec: Codec) -> CodecSpec:
    """Return how a plan names a codec."""
    settings = {f.name: getattr(codec, f.name) for f in dataclasses.fields(codec)}  # pyright: ignore[reportArgumentType]
    return CodecSpec(name=codec.name, settings=settings)
