"""Genome of a plan: the settings that a search may change."""

from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property
from types import MappingProxyType
from typing import TypeGuard

from pliant.planner.families import FAMILIES, Settings
from pliant.spec import (
    AllReduce,
    BetweenHosts,
    BlockSparse,
    Exchange,
    LocalSteps,
    LowRank,
    Match,
    Placement,
    Rule,
    ScatterGather,
    ShardedOptimizer,
    SyncPlan,
)
from pliant.spec.owners import Cut
from pliant.spec.plain import LATER

__all__ = ["SMALL_NUMEL", "Gene", "Genome", "all_of"]

SMALL_NUMEL = 8192
"""Parameters of at most so many elements are never coded with a loss: they hardly weigh on the network."""


@dataclass(frozen=True)
class Gene:
    """Family and settings of one class of layers."""

    family: str
    settings: Settings

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise ValueError(f"there is no family {self.family!r}; there are {', '.join(FAMILIES)}.")
        object.__setattr__(self, "settings", MappingProxyType(dict(self.settings)))

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.family, tuple(sorted(self.settings.items()))))

    @cached_property
    def exchange(self) -> Exchange:
        """Node of a plan, before what `Genome` say of chunks and hosts."""
        return FAMILIES[self.family](self.settings)

    @property
    def lossy(self) -> bool:
        """Whether gradients lose more than rounding to 16 bits does; weights between steps are no gradients."""
        return not FAMILIES[self.family].exact and not FAMILIES[self.family].between_steps

    @property
    def changes_state(self) -> bool:
        """Whether weights or optimizer state may be others than DDP's on some rank between two steps."""
        return self.exchange.exchanges_weights or self.exchange.has_owners


@cache
def all_of(family: str) -> tuple[Gene, ...]:
    """Return every setting of a family, the mildest first."""
    combinations: list[dict[str, float | str]] = [{}]
    for key, values in FAMILIES[family].grids.items():
        combinations = [{**settings, key: value} for settings in combinations for value in values]
    return tuple(Gene(family, settings) for settings in combinations)


@dataclass(frozen=True)
class Genome:
    """A plan's free settings. Layer classes that are not named are exchanged like the first gene says."""

    base: Gene
    layers: tuple[tuple[str, Gene], ...] = ()
    """Pattern of a layer's class -> how it is exchanged, where that is not the base."""
    bucket_bytes: int = 0
    chunk_bytes: int = 1 << 20
    at_end: bool = False
    by_hosts: bool = False
    names: tuple[tuple[str, Gene], ...] = ()
    """Pattern of a parameter's name -> how it is exchanged; comes before its layer's class."""
    by_schedule: bool = False
    """Whether sums take the fastest ways through the network, and neither a ring nor owners of equal parts."""
    cut: Cut = field(default="whole", metadata=LATER)
    """Where parameters that have owners may be cut; nowhere in genes that were written down before there were cuts."""
    bandwidths: tuple[float, ...] = field(default=(), metadata=LATER)
    """Ranks' bandwidths, after which owners hold parts; equal parts if not given."""

    def __post_init__(self) -> None:
        base = FAMILIES[self.base.family]
        if base.between_steps or base.sharded:  # DDP's buckets and their order do not matter there
            object.__setattr__(self, "bucket_bytes", 0)
            object.__setattr__(self, "at_end", False)
        if not any(FAMILIES[gene.family].by_hosts for gene in self.genes):
            object.__setattr__(self, "by_hosts", False)
        if not any(_adds_up(node) for gene in self.genes for node in gene.exchange.walk()):
            object.__setattr__(self, "by_schedule", False)
        if not any(gene.exchange.has_owners for gene in self.genes):
            object.__setattr__(self, "cut", "whole")
            object.__setattr__(self, "bandwidths", ())
        if not self.names:  # otherwise what a layer says may be for all of it but a named part
            object.__setattr__(self, "layers", tuple(each for each in self.layers if each[1] != self.base))

    @property
    def genes(self) -> tuple[Gene, ...]:
        """All genes, the base first."""
        return (self.base, *(gene for _, gene in self.layers), *(gene for _, gene in self.names))

    @property
    def summary(self) -> str:
        """Its settings in one line, as tables of plans have them."""
        base, numbers = self.base, {k: f"{v:g}" if isinstance(v, float) else v for k, v in self.base.settings.items()}
        parts = [f"{base.family}({', '.join(f'{k}={v}' for k, v in numbers.items())})"]
        parts += [f"buckets {self.bucket_bytes / 2**20:.3g} MiB"] if self.bucket_bytes else []
        parts += [f"{layer}: {gene.family}" for layer, gene in self.layers]
        parts += [f"parameters apart: {len(self.names)}"] if self.names else []
        parts += ["at the end"] if self.at_end else []
        parts += ["between hosts"] if self.by_hosts else []
        parts += ["sums by schedule"] if self.by_schedule else []
        parts += [f"cut {self.cut}"] if self.cut != "whole" else []
        parts += ["owners by bandwidth"] if self.bandwidths else []
        return ", ".join(parts)

    def plan(self, name: str = "") -> SyncPlan:
        """Return the plan. Raises ValueError, from a node, for what does not go together."""
        genes = self.genes
        if len({FAMILIES[gene.family].between_steps for gene in genes}) > 1:
            raise ValueError("one class of layers exchanges gradients and another weights; a searched plan does one.")
        rules = [Rule(match=Match(pattern=name), exchange=self._finish(gene)) for name, gene in self.names]
        rules += [Rule(match=Match(layer=layer), exchange=self._finish(gene)) for layer, gene in self.layers]
        rules.append(Rule(exchange=self._finish(self.base)))
        if any(gene.lossy for gene in genes):
            spared = self._finish(Gene(*FAMILIES[self.base.family].spared))
            rules.insert(0, Rule(match=Match(max_numel=SMALL_NUMEL), exchange=spared))
        order = "at_end" if self.at_end else "ready"
        return SyncPlan(rules=tuple(rules), bucket_bytes=self.bucket_bytes, order=order, name=name)

    def _finish(self, gene: Gene) -> Exchange:
        node = _in_chunks(gene.exchange, self.chunk_bytes)
        if isinstance(node, ShardedOptimizer):
            return replace(node, placement=Placement(bandwidths=self.bandwidths, cut=self.cut))
        node = _by_schedule(node) if self.by_schedule else node
        return BetweenHosts(inner=node) if self.by_hosts and FAMILIES[gene.family].by_hosts else node


def _adds_up(node: Exchange) -> TypeGuard[AllReduce | LowRank | ScatterGather | BlockSparse]:
    """Say whether sums of a node, dense, in codes or of agreed blocks, may go by a schedule."""
    if isinstance(node, BlockSparse):
        return node.selection.agreement != "local"
    return isinstance(node, AllReduce | LowRank | ScatterGather)


def _by_schedule(node: Exchange) -> Exchange:
    if _adds_up(node):
        return replace(node, schedule="auto")
    inside = ((own.name, getattr(node, own.name)) for own in fields(node))
    return replace(node, **{name: _by_schedule(inner) for name, inner in inside if isinstance(inner, Exchange)})


def _in_chunks(node: Exchange, chunk_bytes: int) -> Exchange:
    if isinstance(node, LocalSteps):
        return replace(node, averaging=_in_chunks(node.averaging, chunk_bytes))
    return replace(node, chunk_bytes=chunk_bytes) if isinstance(node, ScatterGather) else node
