"""Genome of a plan: the settings that a search may change."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import product
from types import MappingProxyType
from typing import TypeGuard

from pliant.planner.families import FAMILIES, NAMED_FAMILIES, Family, Settings
from pliant.planner.node_families import NodeFamily
from pliant.spec import (
    AllReduce,
    BetweenHosts,
    BlockSparse,
    Exchange,
    LowRank,
    Match,
    OwnedOptimizer,
    Placement,
    Rule,
    ScatterGather,
    Sharded,
    SyncPlan,
    Timing,
)
from pliant.spec.gradients import with_few_rounds
from pliant.spec.inside import with_children
from pliant.spec.owners import Cut
from pliant.spec.plain import LATER
from pliant.spec.plan import SparseWay

__all__ = ["SMALL_NUMEL", "Gene", "Genome", "all_of", "genes_of", "is_exact", "is_new", "is_valid"]

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
        return _node_of(self)

    @property
    def summary(self) -> str:
        """Family with its settings, or the node in the grammar where the family is a class of nodes."""
        if self.family not in NAMED_FAMILIES:
            return str(self.exchange)
        numbers = {key: f"{value:g}" if isinstance(value, float) else value for key, value in self.settings.items()}
        return f"{self.family}({', '.join(f'{key}={value}' for key, value in numbers.items())})"

    @cached_property
    def exact(self) -> bool:
        """Whether it gives DDP's gradients but for rounding to 16 bits."""
        return is_exact(self.exchange)

    @cached_property
    def between_steps(self) -> bool:
        """Whether weights are exchanged between steps."""
        return self.exchange.exchanges_weights

    @cached_property
    def lossy(self) -> bool:
        """Whether gradients lose more than rounding to 16 bits does, so that small parameters are spared.

        Weights between steps are no gradients, and owners that step beside the ranks have small parameters as well.
        """
        return not self.exact and not self.between_steps and not self.exchange.steps_beside

    @cached_property
    def changes_state(self) -> bool:
        """Whether weights or optimizer state may be others than DDP's on some rank between two steps."""
        return self.exchange.exchanges_weights or self.exchange.has_owners

    def fits_optimizer(self, name: str) -> bool:
        """Say whether a run can take it with an optimizer, or several, of this name, such as 'AdamW and Muon'."""
        family = FAMILIES[self.family]
        words = family.optimizers if isinstance(family, Family) else ()
        return not words or any(word in name for word in words)

    def is_within(self, other: "Gene") -> bool:
        """Say whether it is of another's family, and at most as strong in every setting."""
        family = FAMILIES[self.family]
        return self.family == other.family and all(
            other.settings[key] in family.at_least(key, value) for key, value in self.settings.items()
        )

    @cached_property
    def fits_hosts(self) -> bool:
        """Whether it may be asked for between hosts only."""
        node = self.exchange
        return not (node.meets_in_pairs or isinstance(node, Sharded) or "host" in node.levels)


def is_exact(node: Exchange) -> bool:
    """Say whether a node gives DDP's gradients but for rounding to 16 bits, each in its own step."""
    keeps = node.error_feedback == "none" and not node.coding and (node.gives_mean or node.has_owners)
    return keeps and not node.steps_beside and node.timing == Timing()


@cache
def _node_of(gene: Gene) -> Exchange:
    try:
        return FAMILIES[gene.family](gene.settings)
    except (KeyError, TypeError, OverflowError) as error:  # of what a damaged file says
        raise ValueError(
            f"{gene.family} has no node with the settings {dict(gene.settings)}; give settings that the search tries."
        ) from error


@cache
def all_of(family: str) -> tuple[Gene, ...]:
    """Return every setting of a family, the mildest first; of a class of nodes what it does not refuse.

    What is a setting of a family with a name as well is left out of those of its class of nodes.
    """
    named = family in NAMED_FAMILIES
    return tuple(gene for gene in genes_of(family) if named or (is_valid(gene) and is_new(gene)))


def genes_of(family: str) -> Iterator[Gene]:
    """Yield every combination of the values of a family's settings, also those that its node refuses."""
    grids = FAMILIES[family].grids
    return (Gene(family, dict(zip(grids, each, strict=True))) for each in product(*grids.values()))


@cache
def _named_nodes() -> frozenset[Exchange]:
    return frozenset(gene.exchange for name in NAMED_FAMILIES for gene in all_of(name))


def is_valid(gene: Gene) -> bool:
    """Say whether the node of a gene takes its settings."""
    try:
        return bool(gene.exchange)
    except ValueError:  # the node's own checks
        return False


def is_new(gene: Gene) -> bool:
    """Say whether no family with a name has the node of a gene."""
    return gene.exchange not in _named_nodes()


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
    """Whether sums take the fastest ways through the network, and neither a ring nor straight ways to owners."""
    cut: Cut = field(default="whole", metadata=LATER)
    """Where parameters that have owners may be cut; nowhere in genes that were written down before there were cuts."""
    bandwidths: tuple[float, ...] = field(default=(), metadata=LATER)
    """Ranks' bandwidths, after which owners hold parts; equal parts if not given."""
    owners: tuple[int, ...] = field(default=(), metadata=LATER)
    """Ranks to which parts that have owners go in turn; all ranks if not given."""
    sizes: tuple[tuple[int, Gene], ...] = field(default=(), metadata=LATER)
    """Number of elements -> how parameters that have at most so many are exchanged; comes before names and layers."""
    sparse: SparseWay = field(default="auto", metadata=LATER)
    """Way of sparse gradients, whatever the genes say."""

    def __post_init__(self) -> None:
        if self.base.between_steps or isinstance(self.base.exchange, Sharded):  # DDP's buckets do not matter there
            object.__setattr__(self, "bucket_bytes", 0)
            object.__setattr__(self, "at_end", False)
        if not any(gene.fits_hosts for gene in self.genes):
            object.__setattr__(self, "by_hosts", False)
        if not any(_adds_up(node) for gene in self.genes for node in gene.exchange.walk()):
            object.__setattr__(self, "by_schedule", False)
        if not any(gene.exchange.has_owners for gene in self.genes):
            object.__setattr__(self, "cut", "whole")
            object.__setattr__(self, "bandwidths", ())
            object.__setattr__(self, "owners", ())
        if not self.names:  # otherwise what a layer says may be for all of it but a named part
            object.__setattr__(self, "layers", tuple(each for each in self.layers if each[1] != self.base))

    @property
    def genes(self) -> tuple[Gene, ...]:
        """All genes, the base first."""
        return (self.base, *(gene for _, gene in (*self.layers, *self.names, *self.sizes)))

    @property
    def summary(self) -> str:
        """Its settings in one line, as tables of plans have them."""
        parts = [self.base.summary]
        parts += [f"buckets {self.bucket_bytes / 2**20:.3g} MiB"] if self.bucket_bytes else []
        parts += [f"{layer}: {gene.summary}" for layer, gene in self.layers]
        parts += [f"parameters apart: {len(self.names)}"] if self.names else []
        parts += [f"up to {numel} elements: {gene.summary}" for numel, gene in self.sizes]
        parts += ["at the end"] if self.at_end else []
        parts += ["between hosts"] if self.by_hosts else []
        parts += ["sums by schedule"] if self.by_schedule else []
        parts += [f"cut {self.cut}"] if self.cut != "whole" else []
        parts += ["owners by bandwidth"] if self.bandwidths else []
        parts += [f"owners {_counted(self.owners)}"] if self.owners else []
        parts += [f"sparse gradients by {self.sparse}"] if self.sparse != "auto" else []
        return ", ".join(parts)

    def plan(self, name: str = "") -> SyncPlan:
        """Return the plan. Raises ValueError, from a node, for what does not go together."""
        genes = self.genes
        if len({gene.between_steps for gene in genes}) > 1:
            raise ValueError("one class of layers exchanges gradients and another weights; a searched plan does one.")
        rules = [Rule(match=Match(max_numel=numel), exchange=self._finish(gene)) for numel, gene in self.sizes]
        rules += [Rule(match=Match(pattern=name), exchange=self._finish(gene)) for name, gene in self.names]
        rules += [Rule(match=Match(layer=layer), exchange=self._finish(gene)) for layer, gene in self.layers]
        rules.append(Rule(exchange=self._finish(self.base)))
        if any(gene.lossy for gene in genes):
            spared = with_few_rounds(self._finish(Gene(*_spared(FAMILIES[self.base.family]))))
            rules.insert(0, Rule(match=Match(max_numel=SMALL_NUMEL), exchange=spared))
        order = "at_end" if self.at_end else "ready"
        return SyncPlan(rules=tuple(rules), bucket_bytes=self.bucket_bytes, order=order, name=name, sparse=self.sparse)

    def _finish(self, gene: Gene) -> Exchange:
        node = _in_chunks(gene.exchange, self.chunk_bytes)
        if isinstance(node, OwnedOptimizer):
            node = replace(node, placement=Placement(bandwidths=self.bandwidths, cut=self.cut, owners=self.owners))
        node = _by_schedule(node) if self.by_schedule else node
        return BetweenHosts(inner=node) if self.by_hosts and gene.fits_hosts else node


def _counted(owners: tuple[int, ...]) -> str:
    """Return ranks, with the number of their turns where these differ."""
    turns = {rank: owners.count(rank) for rank in dict.fromkeys(owners)}
    return " ".join(f"{rank}" if set(turns.values()) == {1} else f"{turns[rank]}x{rank}" for rank in turns)


def _adds_up(node: Exchange) -> TypeGuard[AllReduce | LowRank | ScatterGather | BlockSparse | OwnedOptimizer]:
    """Say whether sums of a node, dense, in codes, of agreed blocks or at owners, may go by a schedule."""
    if isinstance(node, BlockSparse):
        return node.selection.agreement != "local"
    return isinstance(node, AllReduce | LowRank | ScatterGather | OwnedOptimizer)


def _by_schedule(node: Exchange) -> Exchange:
    if _adds_up(node):
        return replace(node, schedule="auto")
    return with_children(node, _by_schedule)


def _in_chunks(node: Exchange, chunk_bytes: int) -> Exchange:
    if isinstance(node, ScatterGather):
        return replace(node, chunk_bytes=chunk_bytes)
    return with_children(node, lambda inner: _in_chunks(inner, chunk_bytes))


def _spared(family: Family | NodeFamily) -> tuple[str, Settings]:
    return family.spared if isinstance(family, Family) else Family.spared
