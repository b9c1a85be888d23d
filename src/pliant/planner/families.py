"""The ways of exchanging that the search knows, each with the settings that it may try."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from pliant.spec import Choice, CodecSpec, Graph, Outer, Selection

__all__ = ["FAMILIES", "Family", "Setting", "Settings"]

Setting = float | str
Settings = Mapping[str, Setting]


@dataclass(frozen=True, kw_only=True)
class Family:
    """Choices that differ in numbers only."""

    name: str
    grids: Mapping[str, tuple[Setting, ...]]
    """Setting -> values from the mildest to the strongest, so that neighbours in the list are neighbours in effect."""
    make: Callable[[Settings], Choice]
    exact: bool = False
    """Whether it gives DDP's gradients but for rounding to 16 bits."""
    between_steps: bool = False
    by_hosts: bool = True
    """Whether it may be asked for between hosts only."""

    def __call__(self, settings: Settings) -> Choice:
        """Return the choice. Raises ValueError for a setting that the family does not have."""
        if set(settings) != set(self.grids):
            raise ValueError(f"{self.name} has the settings {', '.join(self.grids)}, not {', '.join(settings)}.")
        return self.make(settings)


def _coded(name: str, **settings: float) -> CodecSpec:
    return CodecSpec(name=name, settings=settings)


def _num(settings: Settings, key: str) -> float:
    return float(settings[key])


def _plain(s: Settings) -> Choice:
    return Choice(codec=None if s["bits"] == 32 else _coded("bf16"))


def _late(s: Settings) -> Choice:
    return Choice(codec=None if s["bits"] == 32 else _coded("bf16"), delay_steps=1)


def _quantized(s: Settings) -> Choice:
    codecs = {
        2: _coded("ternary", block=512),
        4: _coded("qsgd", bits=4, block=512),
        8: _coded("minmax8", block=2048),
    }
    return Choice(collective="scatter_gather", codec=codecs[int(_num(s, "bits"))])


def _fed_back(s: Settings) -> Choice:
    codec = _coded("sign", block=1024) if s["bits"] == 1 else _coded("int4", block=64)
    return Choice(collective="scatter_gather", codec=codec, feedback="both")


def _low_rank(s: Settings) -> Choice:
    return Choice(collective="low_rank", codec=_coded("rank", rank=_num(s, "rank")), feedback="worker")


def _sparse(s: Settings) -> Choice:
    ratio = _num(s, "ratio")
    codec = {
        "topk": _coded("topk", ratio=ratio, sampled=0),
        "blocktopk": _coded("blocktopk", ratio=ratio, block=128),
        "randomk": _coded("randomk", ratio=ratio),
    }[str(s["choice"])]
    return Choice(collective="all_reduce" if codec.name == "randomk" else "all_gather", codec=codec, feedback="worker")


def _tasc(s: Settings) -> Choice:
    agreement = "leader" if s["agreement"] == "leader" else "global"
    return Choice(
        collective="blocks",
        selection=Selection(ratio=_num(s, "ratio"), agreement=agreement),
        feedback="worker",
    )


def _gossip(s: Settings) -> Choice:
    return Choice(
        what="weight",
        collective="gossip",
        graph=Graph(kind=s["graph"]),  # pyright: ignore[reportArgumentType]  Graph says which kinds there are
        every=int(_num(s, "every")),
        delay_steps=1,
    )


def _choco(s: Settings) -> Choice:
    codec = _coded("sign", block=1024) if s["bits"] == 1 else _coded("minmax8", block=2048)
    return Choice(
        what="weight",
        collective="gossip",
        graph=Graph(kind=s["graph"]),  # pyright: ignore[reportArgumentType]
        gamma=0.5 if s["bits"] == 8 else 0.1,
        codec=codec,
        delay_steps=1,
    )


def _local(s: Settings) -> Choice:
    return Choice(what="change", outer=Outer(lr=1.0), every=int(_num(s, "every")))


def _diloco(s: Settings) -> Choice:
    every = int(_num(s, "every"))
    whole = Choice(
        what="change",
        outer=Outer(lr=0.7, momentum=0.9),
        every=every,
        fragments=min(int(_num(s, "fragments")), every),
        delay_steps=min(int(_num(s, "delay_steps")), every),
    )
    if s["bits"] == 32:
        return whole
    return replace(whole, collective="scatter_gather", codec=_coded("int4", block=64), feedback="both")


FAMILIES = {
    family.name: family
    for family in (
        Family(name="exact", grids={"bits": (32, 16)}, make=_plain, exact=True),
        Family(name="owner", grids={}, make=lambda _: Choice(collective="owner"), exact=True, by_hosts=False),
        Family(name="late", grids={"bits": (32, 16)}, make=_late),
        Family(name="quantized", grids={"bits": (8, 4, 2)}, make=_quantized),
        Family(name="fed_back", grids={"bits": (4, 1)}, make=_fed_back),
        Family(name="low_rank", grids={"rank": (8, 4, 2, 1)}, make=_low_rank),
        Family(
            name="sparse",
            grids={"choice": ("topk", "blocktopk", "randomk"), "ratio": (0.1, 0.05, 0.02, 0.01)},
            make=_sparse,
        ),
        Family(
            name="tasc",
            grids={"agreement": ("leader", "global"), "ratio": (0.1, 0.03, 0.01, 1 / 130)},
            make=_tasc,
        ),
        Family(
            name="gossip",
            grids={"graph": ("exponential", "one_peer", "ring"), "every": (1, 2, 4)},
            make=_gossip,
            between_steps=True,
        ),
        Family(
            name="choco",
            grids={"graph": ("exponential", "ring"), "bits": (8, 1)},
            make=_choco,
            between_steps=True,
        ),
        Family(name="local", grids={"every": (2, 4, 8, 16, 32)}, make=_local, between_steps=True),
        Family(
            name="diloco",
            grids={
                "every": (8, 16, 32, 64),
                "fragments": (1, 2, 4),
                "delay_steps": (0, 1, 2),
                "bits": (32, 4),
            },
            make=_diloco,
            between_steps=True,
        ),
    )
}
"""By name."""
