"""Parts of a way of exchanging: nodes around others, each of which was measured by itself."""

from collections.abc import Collection, Iterator
from functools import cache
from itertools import product

from pliant.planner.families import FAMILIES, NAMED_FAMILIES
from pliant.planner.genome import Gene, all_of, genes_of, is_new, is_valid
from pliant.planner.node_families import NodeFamily
from pliant.spec import AllReduce, BetweenRacks, Exchange, ScatterGather, ShardedOptimizer, text_of

__all__ = ["composition", "searched_genes"]

_OWNERS = ShardedOptimizer.__name__


@cache
def composition(gene: Gene) -> tuple[Gene, ...]:
    """Return the genes of families with a name that a gene consists of: itself, or the node around and the node inside.

    The node around is taken with an exact average inside; one that is exact then, such as an exchange between racks,
    does not count. Owners of gradients in codes count as averages in these codes, which code the mean a second time.
    Nothing if a part has no name, unless the whole is exact.
    """
    if gene.family in NAMED_FAMILIES or gene.exact:
        return (gene,)
    family = FAMILIES[gene.family]
    if gene.family == _OWNERS and isinstance(node := gene.exchange, ShardedOptimizer):
        twin = None if node.codec is None else _genes_of_nodes().get(ScatterGather(codec=node.codec))
        return () if twin is None else (twin,)
    if not isinstance(family, NodeFamily) or not family.holds:
        return ()
    inside = _genes_of_texts().get(str(gene.settings[family.holds]))
    around = _part_around(Gene(gene.family, {**gene.settings, family.holds: text_of(AllReduce())}))
    return () if inside is None or around is None else (*around, inside)


@cache
def _part_around(around: Gene) -> tuple[Gene, ...] | None:
    """Return what a node with an exact average inside counts as: nothing if it is exact; None if it has no name."""
    if not is_valid(around):
        return None
    if around.exact:
        return ()
    return (_genes_of_nodes()[around.exchange],) if around.exchange in _genes_of_nodes() else None


@cache
def _named() -> tuple[Gene, ...]:
    return tuple(gene for name in NAMED_FAMILIES for gene in all_of(name))


@cache
def _genes_of_nodes() -> dict[Exchange, Gene]:
    """Return the genes of families with a name by their nodes; of several with one node the first."""
    return {gene.exchange: gene for gene in reversed(_named())}


@cache
def _genes_of_texts() -> dict[str, Gene]:
    return {text_of(node): gene for node, gene in _genes_of_nodes().items() if not node.children}


@cache
def _inside() -> tuple[Exchange, ...]:
    """Return the nodes that may be inside others, and have a name or are exact."""
    leaves = [node for node in _genes_of_nodes() if not node.children]
    leaves += [gene.exchange for family in _families_of_nodes() if not family.holds for gene in _composed_of(family)]
    return tuple(leaves)


def _families_of_nodes() -> list[NodeFamily]:
    return [family for family in FAMILIES.values() if isinstance(family, NodeFamily)]


@cache
def _composed(*, racks: bool) -> tuple[Gene, ...]:
    others = [family for family in _families_of_nodes() if racks or not issubclass(family.node, BetweenRacks)]
    return (*_named(), *(gene for family in others for gene in _composed_of(family)))


def _composed_of(family: NodeFamily) -> Iterator[Gene]:
    """Yield the genes of a class of nodes that have a composition, without making all others."""
    if not family.holds:
        first = next(filter(is_valid, genes_of(family.name)), None)
        if first is not None and not first.between_steps:  # which have no parts
            yield from (gene for gene in all_of(family.name) if composition(gene))
        return
    texts = [text_of(node) for node in _inside() if family.takes(node)]
    for each in product(*family.others.values()):
        settings = dict(zip(family.others, each, strict=True))
        around = Gene(family.name, {**settings, family.holds: text_of(AllReduce())})
        if _part_around(around) is not None:
            genes = (Gene(family.name, {**settings, family.holds: text}) for text in texts)
            yield from (gene for gene in genes if is_valid(gene) and is_new(gene) and composition(gene))


def searched_genes(
    measured: Collection[Gene] = (), *, combined: bool = True, racks: bool = True, owners: bool = False
) -> tuple[Gene, ...]:
    """Return the genes of which a ratio of steps can be known: by their parts, or by others of their class.

    Args:
        measured: Genes whose ratio somebody has measured.
        combined: Whether those that consist of others are among them.
        racks: Whether exchanges between racks are among them.
        owners: Whether owners with gradients in codes are among them in any case.

    """
    coded = tuple(_composed_of(NodeFamily(ShardedOptimizer))) if owners else ()
    composed = _composed(racks=racks) if combined else (*_named(), *coded)
    others = dict.fromkeys(gene.family for gene in measured if gene.family not in NAMED_FAMILIES)
    return (
        tuple(dict.fromkeys((*composed, *(gene for name in others for gene in all_of(name))))) if others else composed
    )
