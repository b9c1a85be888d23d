"""The ways of exchanging that the search knows: those with a name, under which they were measured, and all of nodes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import cast

from pliant.algorithms.grammar import parse
from pliant.algorithms.inputs import node_of
from pliant.algorithms.registry import ALGORITHMS
from pliant.algorithms.sharding import sharded
from pliant.planner.node_families import NodeFamily, node_families
from pliant.spec import (
    AllGather,
    AllReduce,
    CodecSpec,
    CodedGossip,
    Delayed,
    Exchange,
    Gossip,
    Graph,
    LocalSteps,
    LowRank,
    Outer,
    ReduceScatter,
    Residual,
    ScatterGather,
    Sharded,
    WeightGather,
)

__all__ = ["FAMILIES", "NAMED_FAMILIES", "Family", "Setting", "Settings", "family_name"]

Setting = float | str
Settings = Mapping[str, Setting]


@dataclass(frozen=True, kw_only=True)
class Family:
    """Exchanges that differ in numbers only."""

    name: str
    grids: Mapping[str, tuple[Setting, ...]]
    """Setting -> values from the mildest to the strongest, so that neighbours in the list are neighbours in effect."""
    make: Callable[[Settings], Exchange]
    sharded: bool = False
    """Whether it is for models that are divided among ranks only."""
    optimizers: tuple[str, ...] = ()
    """Words of which one must be in the class names of the run's optimizers; empty where any optimizer will do."""
    spared: tuple[str, Settings] = ("exact", MappingProxyType[str, Setting]({"bits": 32}))
    """Family and settings of small parameters, where it loses something."""

    def __call__(self, settings: Settings) -> Exchange:
        """Return the node. Raises ValueError for a setting that the family does not have."""
        if set(settings) != set(self.grids):
            raise ValueError(f"{self.name} has the settings {', '.join(self.grids)}, not {', '.join(settings)}.")
        return self.make(settings)

    def at_least(self, name: str, value: Setting) -> tuple[Setting, ...]:
        """Return the values of a setting that are at least as strong."""
        grid = self.grids[name]
        return grid[grid.index(value) :]


def _coded(name: str, **settings: float) -> CodecSpec:
    return CodecSpec(name=name, settings=settings)


def _num(settings: Settings, key: str) -> float:
    return float(settings[key])


def _plain(s: Settings) -> Exchange:
    return AllReduce(codec=None if s["bits"] == 32 else _coded("bf16"))


def _delayed(s: Settings) -> Exchange:
    return Delayed(inner=_plain(s))


def _quantized(s: Settings) -> Exchange:
    codecs = {2: _coded("ternary"), 4: _coded("qsgd", bits=4), 8: _coded("minmax8")}
    return ScatterGather(codec=codecs[int(_num(s, "bits"))])


def _error_feedback(s: Settings) -> Exchange:
    return ScatterGather(codec=_coded("sign" if s["bits"] == 1 else "int4"), feedback="both")


def _low_rank(s: Settings) -> Exchange:
    return LowRank(rank=int(_num(s, "rank")))


def _sparse(s: Settings) -> Exchange:
    codec = _coded(str(s["choice"]), ratio=_num(s, "ratio"))
    return AllReduce(codec=codec) if codec.facts.kind == "shared" else AllGather(codec=codec)


def _gossip(s: Settings) -> Exchange:
    return Gossip(graph=_graph(s), period=int(_num(s, "every")))


def _choco(s: Settings) -> Exchange:
    one_bit = s["bits"] == 1
    codec = _coded("sign" if one_bit else "minmax8")
    return CodedGossip(codec=codec, graph=_graph(s), gamma=0.1 if one_bit else 0.5)


def _graph(s: Settings) -> Graph:
    return Graph(kind=s["graph"])  # pyright: ignore[reportArgumentType]  Graph says which kinds there are


def _local(s: Settings) -> Exchange:
    return LocalSteps(period=int(_num(s, "every")))


def _diloco(s: Settings) -> Exchange:
    period = int(_num(s, "every"))
    return LocalSteps(
        period=period,
        averaging=AllReduce() if s["bits"] == 32 else _error_feedback({"bits": 4}),
        outer=Outer(lr=0.7, momentum=0.9),
        fragments=min(int(_num(s, "fragments")), period),
        delay_steps=min(int(_num(s, "delay_steps")), period),
    )


def _exact_shards(s: Settings) -> Exchange:
    codec = None if s["bits"] == 32 else _coded("bf16")
    return Sharded(gradients=ReduceScatter(codec=codec), weights=WeightGather(regather=s["regather"] == "yes"))


def _coded_shards(s: Settings) -> Exchange:
    codec = _coded({8: "minmax8", 4: "int4", 1: "sign"}[int(_num(s, "bits"))])
    residual = cast(Residual, s.get("residual", "none"))
    weights = {
        "exact": WeightGather(),
        "int8": WeightGather(codec=_coded("minmax8")),
        "differences": WeightGather.of_differences(_coded("int4")),
    }[str(s["weights"])]
    return sharded(gradients=codec, residual=residual, weights=weights, regather=False)


_SPARED_SHARDS = ("exact_shards", MappingProxyType[str, Setting]({"bits": 32, "regather": "no"}))
_WEIGHTS = ("exact", "int8", "differences")


def family_name(name: str) -> str:
    """Return the name of an algorithm's family: its oldest name, since that is in the genes of data sets."""
    return (*ALGORITHMS[name].aliases, name)[0]


def _of_row(name: str) -> Family:
    """Return the family of an algorithm whose row has a grid."""
    row = ALGORITHMS[name]
    grids = row.grid or {}

    def make(settings: Settings) -> Exchange:
        meant = {key: parse(str(value)) if key == "averaging" else value for key, value in settings.items()}
        return node_of(row.make(**meant))

    return Family(name=family_name(name), grids=grids, make=make, optimizers=row.optimizers)


NAMED_FAMILIES = {
    family.name: family
    for family in (
        Family(name="exact", grids={"bits": (32, 16)}, make=_plain),
        _of_row("sharded_optimizer"),
        Family(name="late", grids={"bits": (32, 16)}, make=_delayed),
        Family(name="quantized", grids={"bits": (8, 4, 2)}, make=_quantized),
        Family(name="fed_back", grids={"bits": (4, 1)}, make=_error_feedback),
        Family(name="low_rank", grids={"rank": (8, 4, 2, 1)}, make=_low_rank),
        Family(
            name="sparse",
            grids={"choice": ("topk", "blocktopk", "randomk"), "ratio": (0.1, 0.05, 0.02, 0.01)},
            make=_sparse,
        ),
        _of_row("tasc"),
        Family(
            name="gossip",
            grids={"graph": ("exponential", "one_peer", "ring"), "every": (1, 2, 4)},
            make=_gossip,
        ),
        Family(
            name="choco",
            grids={"graph": ("exponential", "ring"), "bits": (8, 1)},
            make=_choco,
        ),
        Family(name="local", grids={"every": (2, 4, 8, 16, 32)}, make=_local),
        Family(
            name="diloco",
            grids={
                "every": (8, 16, 32, 64),
                "fragments": (1, 2, 4),
                "delay_steps": (0, 1, 2),
                "bits": (32, 4),
            },
            make=_diloco,
        ),
        *(_of_row(name) for name, row in ALGORITHMS.items() if row.grid is not None),
        Family(
            name="torch_shards",
            grids={},
            make=lambda _: Sharded(),
            sharded=True,
            spared=_SPARED_SHARDS,
        ),
        Family(
            name="exact_shards",
            grids={"bits": (32, 16), "regather": ("yes", "no")},
            make=_exact_shards,
            sharded=True,
            spared=_SPARED_SHARDS,
        ),
        Family(
            name="coded_shards",
            grids={"bits": (8, 4, 1), "residual": ("full", "int8"), "weights": _WEIGHTS},
            make=_coded_shards,
            sharded=True,
            spared=_SPARED_SHARDS,
        ),
        Family(
            name="unbiased_shards",
            grids={"bits": (8, 4), "weights": _WEIGHTS},
            make=_coded_shards,
            sharded=True,
            spared=_SPARED_SHARDS,
        ),
    )
}
"""By name: families of several algorithms, and one for each row of the registry that has a grid, in an order that stays
as it is, since what is drawn depends on it."""

FAMILIES: Mapping[str, Family | NodeFamily] = MappingProxyType({**NAMED_FAMILIES, **node_families()})
"""By name: those, and after them one of each class of nodes."""
