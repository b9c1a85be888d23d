"""What a way of exchanging consists of: nodes around others, each of which was measured by itself."""

from collections.abc import Collection, Iterator
from dataclasses import fields, replace
from functools import cache
from itertools import product

from pliant.planner.families import FAMILIES, NAMED_FAMILIES
from pliant.planner.genome import Gene, all_of, is_exact, is_new, is_valid
from pliant.planner.node_families import NodeFamily
from pliant.spec import AllReduce, Exchange, text_of

__all__ = ["composition", "searched_genes"]


@cache
def composition(gene: Gene) -> tuple[Gene, ...]:
    """Return the genes of families with a name that a gene consists of: itself, or the node around and the node inside.

    The node around is taken with an exact average inside; one that is exact then, such as an exchange between racks,
    does not count. Nothing if a part has no name, unless the whole is exact.
    """
    if gene.family in NAMED_FAMILIES or gene.exact:
        return (gene,)
    node = gene.exchange
    if len(node.children) != 1:
        return ()
    inside = node.children[0]
    plain = {own.name: AllReduce() for own in fields(node) if getattr(node, own.name) is inside}
    around = replace(node, **plain)
    counted = (inside,) if is_exact(around) else (around, inside)
    parts = tuple(_genes_of_nodes()[each] for each in counted if each in _genes_of_nodes())
    return parts if len(parts) == len(counted) else ()


@cache
def _genes_of_nodes() -> dict[Exchange, Gene]:
    """Return the genes of families with a name by their nodes; of several with one node the first."""
    genes = [gene for name in NAMED_FAMILIES for gene in all_of(name)]
    return {gene.exchange: gene for gene in reversed(genes)}


@cache
def _composed() -> tuple[Gene, ...]:
    named = [gene for name in NAMED_FAMILIES for gene in all_of(name)]
    others = (family for family in FAMILIES.values() if isinstance(family, NodeFamily))
    return (*named, *(gene for family in others for gene in _composed_of(family)))


def _composed_of(family: NodeFamily) -> Iterator[Gene]:
    """Yield the genes of a class of nodes that have a composition; of nodes around others without making them all."""
    if not family.holds:
        yield from (gene for gene in all_of(family.name) if composition(gene))
        return
    grids = {name: grid for name, grid in family.grids.items() if name != family.holds}
    for each in product(*grids.values()):
        settings = dict(zip(grids, each, strict=True))
        around = Gene(family.name, {**settings, family.holds: text_of(AllReduce())})
        if is_valid(around) and (around.exact or around.exchange in _genes_of_nodes()):
            genes = (Gene(family.name, {**settings, family.holds: inside}) for inside in family.grids[family.holds])
            yield from (gene for gene in genes if is_valid(gene) and is_new(gene) and composition(gene))


def searched_genes(measured: Collection[Gene] = ()) -> tuple[Gene, ...]:
    """Return the genes of which a ratio of steps can be known: by their parts, or by others of their class.

    Args:
        measured: Genes whose ratio somebody has measured.

    """
    others = dict.fromkeys(gene.family for gene in measured if gene.family not in NAMED_FAMILIES)
    return tuple(dict.fromkeys((*_composed(), *(gene for name in others for gene in all_of(name)))))
