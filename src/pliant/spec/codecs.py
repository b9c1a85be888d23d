"""The one table of codecs: what is known of each without torch."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from pliant.spec.ranges import Range

__all__ = ["CODECS", "CodecFacts", "CodecKind", "CodecSpec", "Setting", "Speeds", "codec_names", "facts_of"]

CodecKind = Literal["cast", "quantizer", "sparsifier", "shared", "transform"]
"""A float format whose sums survive on the way; a code for every element, in blocks with a header; each rank's own
elements; the same random elements on all ranks; coefficients of a transform."""


@dataclass(frozen=True, kw_only=True)
class Speeds:
    """Speeds on one core, in 1e9 elements per second, of vectors of 100 MB; see benchmarks/results/codecs.json."""

    encode: float
    feedback: float
    """Of encoding with error feedback in the same pass."""
    decode: float
    add: float
    """Of decoding and adding; of a sparsifier, counted in elements that travel."""


@dataclass(frozen=True, kw_only=True)
class Setting(Range):
    """Default and range of a codec's setting; a setting whose default is an int counts something."""

    default: float
    tried: tuple[float, ...] = ()
    """Values that a search may try, from the mildest to the strongest; the default alone if there are none."""


@dataclass(frozen=True, kw_only=True)
class CodecFacts:
    """One codec: a new one is a row of `CODECS`, a file in `pliant.codecs` and a row in the tests' tables."""

    kind: CodecKind
    made_by: str
    """Module and class that carry it out, such as ``int4:Int4``, in `pliant.codecs`."""
    speeds: Speeds
    settings: Mapping[str, Setting] = field(default_factory=dict[str, Setting])
    """Name -> default and range. ``block`` and ``ratio`` mean the same in all rows."""
    bits: int = 32
    """Bits of an element's code, unless the codec has ``bits`` as a setting."""
    header_bytes: int = 0
    """Bytes in front of each block of a quantizer."""
    value_codecs: Mapping[int, str] = field(default_factory=dict[int, str])
    """Bits of a chosen value, of those in the setting ``bits`` -> codec of the values, for a sparsifier that rounds
    them; its places are within blocks, in 8, 12 or 16 bits each."""
    biased: bool = False
    """Whether the mean of what it decodes to is not what was encoded, so that it needs error feedback."""
    underflows: bool = False
    """Whether a cast turns into 0 what float32 holds with all its digits."""


_SHARES = (0.1, 0.05, 0.02, 0.01)

CODECS: Mapping[str, CodecFacts] = MappingProxyType(
    {
        "bf16": CodecFacts(
            kind="cast", made_by="cast:Bf16", bits=16, speeds=Speeds(encode=4.6, feedback=0.97, decode=5.1, add=1.6)
        ),
        "fp16": CodecFacts(
            kind="cast",
            made_by="cast:Fp16",
            bits=16,
            underflows=True,
            speeds=Speeds(encode=4.6, feedback=0.95, decode=5.2, add=1.7),
        ),
        "fp8": CodecFacts(
            kind="quantizer",
            made_by="cast:Fp8",
            settings={"block": Setting(default=1024, low=1, high=4096)},
            bits=8,
            header_bytes=4,
            speeds=Speeds(encode=4.3, feedback=1.3, decode=5.6, add=4.9),
        ),
        "minmax8": CodecFacts(
            kind="quantizer",
            made_by="minmax8:MinMax8",
            settings={"block": Setting(default=2048, low=1, high=4096)},
            bits=8,
            header_bytes=12,
            speeds=Speeds(encode=6.0, feedback=1.5, decode=5.8, add=5.3),
        ),
        "qsgd": CodecFacts(
            kind="quantizer",
            made_by="qsgd:Qsgd",
            settings={
                "bits": Setting(default=8, only=(2, 4, 8), tried=(8, 4, 2)),
                "block": Setting(default=512, low=32, high=4096, step=32),
            },
            header_bytes=4,
            speeds=Speeds(encode=2.9, feedback=1.3, decode=6.1, add=5.4),
        ),
        "sign": CodecFacts(
            kind="quantizer",
            made_by="sign:Sign",
            settings={"block": Setting(default=1024, low=32, high=4096, step=32)},
            bits=1,
            header_bytes=4,
            biased=True,
            speeds=Speeds(encode=6.5, feedback=1.9, decode=7.0, add=7.2),
        ),
        "ternary": CodecFacts(
            kind="quantizer",
            made_by="ternary:Ternary",
            settings={"block": Setting(default=512, low=32, high=4096, step=32)},
            bits=2,
            header_bytes=4,
            speeds=Speeds(encode=2.8, feedback=1.2, decode=3.0, add=2.9),
        ),
        "natural": CodecFacts(
            kind="quantizer",
            made_by="natural:Natural",
            settings={"block": Setting(default=2048, low=1, high=4096)},
            bits=8,
            header_bytes=4,
            speeds=Speeds(encode=2.4, feedback=0.91, decode=5.9, add=5.3),
        ),
        "int4": CodecFacts(
            kind="quantizer",
            made_by="int4:Int4",
            settings={"block": Setting(default=64, low=32, high=4096, step=32)},
            bits=4,
            header_bytes=4,
            speeds=Speeds(encode=3.1, feedback=1.5, decode=2.1, add=2.1),
        ),
        "sigma2": CodecFacts(
            kind="quantizer",
            made_by="sigma2:Sigma2",
            settings={"block": Setting(default=1024, low=32, high=4096, step=32)},
            bits=2,
            header_bytes=8,
            biased=True,
            speeds=Speeds(encode=1.9, feedback=0.95, decode=5.5, add=5.0),
        ),
        "topk": CodecFacts(
            kind="sparsifier",
            made_by="topk:TopK",
            settings={
                "ratio": Setting(default=0.01, low=1e-9, high=1, tried=_SHARES),
                "sampled": Setting(default=0, low=0, high=1),
            },
            biased=True,
            speeds=Speeds(encode=1.1, feedback=0.74, decode=4.7, add=0.18),
        ),
        "blocktopk": CodecFacts(
            kind="sparsifier",
            made_by="blocktopk:BlockTopK",
            settings={
                "ratio": Setting(default=0.01, low=1e-9, high=1, tried=_SHARES),
                "block": Setting(default=128, low=1, high=1 << 20),
            },
            biased=True,
            speeds=Speeds(encode=4.2, feedback=1.6, decode=7.0, add=1.3),
        ),
        "chunktopk": CodecFacts(
            kind="sparsifier",
            made_by="chunktopk:ChunkTopK",
            settings={
                "ratio": Setting(default=1 / 64, low=1e-9, high=1),
                "block": Setting(default=4096, low=1, high=1 << 16),
                "bits": Setting(default=2, only=(2, 8, 16)),
            },
            value_codecs={2: "sigma2", 8: "minmax8", 16: "bf16"},
            biased=True,
            speeds=Speeds(encode=0.8, feedback=0.45, decode=2.5, add=0.07),
        ),
        "randomk": CodecFacts(
            kind="shared",
            made_by="randomk:RandomK",
            settings={"ratio": Setting(default=0.01, low=1e-9, high=1, tried=_SHARES)},
            speeds=Speeds(encode=2.9, feedback=1.3, decode=3.1, add=0.08),
        ),
        "dct": CodecFacts(  # its speeds are a guess
            kind="transform",
            made_by="dct:Dct",
            settings={
                "ratio": Setting(default=1 / 64, low=1e-9, high=1),
                "block": Setting(default=64, low=1, high=256),
            },
            speeds=Speeds(encode=0.4, feedback=0.4, decode=0.4, add=0.4),
        ),
    }
)
"""Name -> facts. Registry, payload sizes, the nodes' checks, costs, the planner's grids and the docs read it."""


def facts_of(name: str) -> CodecFacts:
    """Return a codec's row. Raises ValueError for a name that has none."""
    if name not in CODECS:
        raise ValueError(f"there is no codec {name!r}; there are {', '.join(CODECS)}.")
    return CODECS[name]


def codec_names(*kinds: CodecKind) -> tuple[str, ...]:
    """Return the names of the codecs of some kinds, in the order of the table."""
    return tuple(name for name, facts in CODECS.items() if facts.kind in kinds)


@dataclass(frozen=True, kw_only=True)
class CodecSpec:
    """A codec by name with its settings, such as ``CodecSpec(name="qsgd", settings={"bits": 4})``.

    Settings that have their default are left out, so that equal codecs are equal records.

    Raises:
        ValueError: There is no such codec or setting, a value is out of its range, or a count is no whole number.

    """

    name: str
    settings: Mapping[str, float] = field(default_factory=dict[str, float])

    def __post_init__(self) -> None:
        known = facts_of(self.name).settings
        for key, value in self.settings.items():
            if key not in known:
                there = ", ".join(known) or "none"
                raise ValueError(f"the codec {self.name!r} has no setting {key!r}; it has {there}.")
            if isinstance(known[key].default, int) and not float(value).is_integer() and math.isfinite(value):
                raise ValueError(f"the codec {self.name!r} has {key} {value}, but that is a count; use a whole number.")
            if value not in known[key]:
                raise ValueError(f"the codec {self.name!r} has {key} {value:g}, but it must be {known[key]}.")
        kept = {k: float(v) for k, v in sorted(self.settings.items()) if float(v) != known[k].default}
        object.__setattr__(self, "settings", MappingProxyType(kept))

    def __hash__(self) -> int:
        return hash((self.name, tuple(self.settings.items())))

    def __reduce__(self) -> tuple[object, ...]:
        return _codec, (self.name, dict(self.settings))

    @property
    def facts(self) -> CodecFacts:
        """Row of the table."""
        return CODECS[self.name]

    def setting(self, name: str) -> float:
        """Return a setting, or its default."""
        return self.settings.get(name, self.facts.settings[name].default)

    def __str__(self) -> str:
        settings = ", ".join(f"{k}={int(v) if v.is_integer() else v!r}" for k, v in self.settings.items())
        return f"{self.name}({settings})" if settings else self.name


def _codec(name: str, settings: dict[str, float]) -> CodecSpec:
    return CodecSpec(name=name, settings=settings)
