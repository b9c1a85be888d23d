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
    """Return the codec that a plan names. Raises ValueError for an unknown name or setting."""
    known = facts_of(spec.name).settings
    unknown = sorted(set(spec.settings) - set(known))
    if unknown:
        raise ValueError(f"the codec {spec.name!r} has no setting {unknown[0]!r}; it has {', '.join(known) or 'none'}.")
    whole = {setting for setting, default in known.items() if isinstance(default, int)}
    for setting, value in spec.settings.items():
        if setting in whole and not value.is_integer():
            raise ValueError(f"the codec {spec.name!r} has {setting} {value}, but that is a count; use a whole number.")
    return codec_class(spec.name)(**{k: int(v) if k in whole else v for k, v in spec.settings.items()})


def spec_of(codec: Codec) -> CodecSpec:
    """Return how a plan names a codec: all settings are written out."""
    settings = {f.name: getattr(codec, f.name) for f in dataclasses.fields(codec)}  # pyright: ignore[reportArgumentType]
    return CodecSpec(name=codec.name, settings=settings)
