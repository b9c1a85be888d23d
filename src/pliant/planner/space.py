"""Space of plans: samples, neighbours and crossovers."""

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import replace

from pliant.planner.baselines import BASELINES, SHARDED_BASELINES
from pliant.planner.codec_errors import CodecErrors
from pliant.planner.compositions import searched_genes
from pliant.planner.genome import SMALL_NUMEL, Gene, Genome, is_valid
from pliant.planner.grids import beside, distance, separating, useful
from pliant.planner.placements import OwnerPlaces
from pliant.planner.quality import Quality
from pliant.spec import BlockSparse, Sharded, Topology, Workload
from pliant.spec.owners import ELEMENTWISE_OPTIMIZERS, Cut
from pliant.spec.plan import SparseWay

__all__ = ["Space"]

_BUCKETS = tuple(int(mib * 2**20) for mib in (0.5, 1, 2, 5, 10, 25, 50, 128))
_CHUNKS = tuple(int(mib * 2**20) for mib in (0.25, 1, 4, 16))
_SMALL_APART = 0.1
"""Share of samples in which small parameters are exchanged otherwise than the rest."""
_APART = 0.3
"""Share of samples in which a class of layers is exchanged otherwise than the rest."""
_TRIES = 200


class Space:
    """Plans for one workload on one topology, within a budget of quality.

    Samples are hierarchical: first how all layers are exchanged, then, rarely, how one class of layers differs. Drawn
    tensor by tensor, as AutoSync does, all plans of a model with hundreds of tensors would be about the same mixture.

    Args:
        workload: The classes of its layers are told apart.
        topology: Hierarchy is offered where a host has several ranks and there are several hosts, schedules where pairs
            of hosts have links of their own, owners by bandwidth and by name where ranks' rates differ.
        quality: What a plan may cost in steps, and the optimizer: owners cut parameters where it works element by
            element, which is never slower, and nowhere else.
        error_budget: How much of the gradient a plan may lose, as `CodecErrors.of` says; None for no such bound. With
            one, only what the workload was measured under is inside.
        combined: Whether nodes around others, and small parameters apart, are drawn too; it takes more candidates.

    Raises:
        ValueError: There is a budget of errors, but no codec was measured on the workload.

    """

    def __init__(
        self,
        workload: Workload,
        topology: Topology,
        quality: Quality,
        error_budget: float | None = None,
        *,
        combined: bool = False,
    ) -> None:
        self.quality = quality
        self._error_budget, self._errors = error_budget, CodecErrors(workload)
        if error_budget is not None:
            self._errors.require_some()
        self._is_sharded, self._has_replicas = workload.is_sharded, workload.has_replicas(topology.num_ranks)
        self._cut: Cut = "auto" if quality.optimizer in ELEMENTWISE_OPTIMIZERS else "whole"
        self._places = OwnerPlaces(topology)
        has_rows = any(tensor.sparse_rows for tensor in workload.tensors)
        self._ways: tuple[SparseWay, ...] = ("auto", "gather", "owners", "dense") if has_rows else ("auto",)
        named = SHARDED_BASELINES if self._is_sharded and not self._has_replicas else BASELINES
        self.baselines = {name: replace(genes, cut=self._cut) for name, genes in named.items()}
        """Plans that a person would try first here, by name; not all need be inside."""
        total = workload.numel
        self._buckets, self._chunks = useful(_BUCKETS, 4 * total), useful(_CHUNKS, 4 * total)
        numels: dict[str, int] = {}
        for tensor in workload.tensors:
            if tensor.numel > SMALL_NUMEL:
                numels[tensor.layer] = numels.get(tensor.layer, 0) + tensor.numel
        ordered = sorted(numels, key=lambda layer: -numels[layer])
        self.layers = tuple(layer for layer in ordered if numels[layer] > 0.01 * total)[:8]
        """Classes of layers that hold more than 1 % of the elements, largest first."""
        several = any(host.num_ranks > 1 for host in topology.hosts)
        self._with_schedules = len(topology.hosts) > 2 and bool(topology.links) and not self._is_sharded
        self._with_hosts = len(topology.hosts) > 1 and several and not self._is_sharded
        self._with_racks = bool(topology.racks) and not self._is_sharded
        self.sizes = separating(workload) if combined else ()
        """Numbers of elements that divide the parameters that weigh into smaller and larger ones, if combined."""
        coded = self._places.has_choice
        self._genes = [
            gene
            for gene in searched_genes(quality.ratios, combined=combined, racks=self._with_racks, owners=coded)
            if (gene.exact or quality.budget > 1)
            and self._is_possible(gene)
            and quality.admits(gene)
            and (error_budget is None or self._errors.of(Genome(gene).plan()) is not None)
        ]
        self._by_family: dict[str, list[Gene]] = {}
        for gene in self._genes:
            self._by_family.setdefault(gene.family, []).append(gene)

    def __contains__(self, genes: Genome) -> bool:
        """Say whether a plan is valid, within the budget, and possible on this topology."""
        if (genes.by_hosts and not self._with_hosts) or (genes.at_end and self._is_sharded):
            return False
        if (genes.by_schedule and not self._with_schedules) or genes.sparse not in self._ways:
            return False
        if genes != replace(genes, cut=self._cut) or genes not in self._places:
            return False
        if not all(is_valid(gene) and self._is_possible(gene) for gene in genes.genes):
            return False
        try:
            plan = genes.plan()
        except ValueError:
            return False
        if self._error_budget is not None:
            error = self._errors.of(plan)
            if error is None or error > self._error_budget:
                return False
        return all(self.quality.admits(gene) for gene in genes.genes)

    def sample(self, rng: random.Random) -> Genome:
        """Draw a plan: families with equal probability, then settings, then, rarely, a class of layers of its own."""
        return self._first_inside(lambda: self._draw(rng))

    def distinct(
        self, rng: random.Random, tries: int, wanted: Callable[[Genome], bool] = lambda _: True
    ) -> Iterator[tuple[str, Genome]]:
        """Yield the builders that are inside, by name, and then samples, 'sample', no plan twice.

        Args:
            rng: Of the samples.
            tries: Samples in a row that bring nothing new, after which the space counts as exhausted.
            wanted: Others are left out.

        """
        known: set[str] = set()

        def is_new(genes: Genome) -> bool:
            if not wanted(genes) or (key := genes.plan().hash) in known:
                return False
            known.add(key)
            return True

        yield from ((name, genes) for name, genes in self.baselines.items() if genes in self and is_new(genes))
        in_vain = 0
        while in_vain < tries:
            genes = self.sample(rng)
            in_vain = 0 if is_new(genes) else in_vain + 1
            if in_vain == 0:
                yield "sample", genes

    def mutate(self, genes: Genome, rng: random.Random) -> Genome:
        """Change one thing: a size by one place on its grid, a switch, a setting, or how a class is exchanged."""
        changes = (*self._changes, Space._change_schedule) if self._with_schedules else self._changes
        changes += (lambda _, genes, rng: self._places.changed(genes, rng),) if self._places.has_choice else ()
        changes += (Space._change_sizes,) if self.sizes else ()
        changes += (Space._change_sparse,) if len(self._ways) > 1 else ()
        return self._first_inside(lambda: rng.choice(changes)(self, genes, rng), instead=genes)

    def cross(self, one: Genome, other: Genome, rng: random.Random) -> Genome:
        """Take each free setting from one of two plans."""

        def draw() -> Genome:
            pick = [rng.choice((one, other)) for _ in range(6)]
            last = rng.choice((one, other)) if self._with_schedules else pick[5]
            placed = rng.choice((one, other)) if self._places.has_choice else one
            return Genome(
                base=pick[0].base,
                layers=pick[1].layers,
                names=pick[1].names,
                bucket_bytes=pick[2].bucket_bytes,
                chunk_bytes=pick[3].chunk_bytes,
                at_end=pick[4].at_end,
                by_hosts=pick[5].by_hosts,
                by_schedule=last.by_schedule,
                bandwidths=placed.bandwidths,
                owners=placed.owners,
                sizes=rng.choice((one, other)).sizes if self.sizes else (),
                sparse=rng.choice((one, other)).sparse if len(self._ways) > 1 else "auto",
            )

        return self._first_inside(draw, instead=one)

    def enumerate(self) -> Iterator[Genome]:
        """Yield every plan that exchanges all layers alike: small enough to be tried whole."""
        by_hosts = (False, True) if self._with_hosts else (False,)
        by_schedule = (False, True) if self._with_schedules else (False,)
        settings = itertools.product(self._genes, self._buckets, (False, True), by_hosts, by_schedule)
        apart = tuple(itertools.product(self._places.tried, self._ways))
        every = dict.fromkeys(
            replace(
                Genome(g, bucket_bytes=b, at_end=end, by_hosts=by, by_schedule=scheduled, cut=self._cut, sparse=way),
                bandwidths=bandwidths,
                owners=owners,
            )
            for g, b, end, by, scheduled in settings
            for (bandwidths, owners), way in apart
        )
        yield from (genes for genes in every if genes in self)

    def _draw(self, rng: random.Random) -> Genome:
        def gene() -> Gene:
            return rng.choice(self._by_family[rng.choice(sorted(self._by_family))])

        drawn = Genome(
            base=gene(),
            layers=tuple((layer, gene()) for layer in self.layers if rng.random() < _APART / len(self.layers)),
            bucket_bytes=rng.choice(self._buckets),
            chunk_bytes=rng.choice(self._chunks),
            at_end=rng.random() < 0.2 and not self._is_sharded,
            by_hosts=self._with_hosts and rng.random() < 0.5,
            by_schedule=self._with_schedules and rng.random() < 0.5,
            sizes=((rng.choice(self.sizes), gene()),) if self.sizes and rng.random() < _SMALL_APART else (),
            sparse=rng.choice(self._ways) if len(self._ways) > 1 else "auto",
        )
        return self._places.placed(drawn, rng)

    def _change_bucket(self, genes: Genome, rng: random.Random) -> Genome:
        return replace(genes, bucket_bytes=beside(self._buckets, genes.bucket_bytes, rng))

    def _change_chunk(self, genes: Genome, rng: random.Random) -> Genome:
        return replace(genes, chunk_bytes=beside(self._chunks, genes.chunk_bytes, rng))

    def _change_order(self, genes: Genome, _: random.Random) -> Genome:
        return replace(genes, at_end=not genes.at_end)

    def _change_hosts(self, genes: Genome, _: random.Random) -> Genome:
        return replace(genes, by_hosts=not genes.by_hosts)

    def _change_schedule(self, genes: Genome, _: random.Random) -> Genome:
        return replace(genes, by_schedule=not genes.by_schedule)

    def _change_sparse(self, genes: Genome, rng: random.Random) -> Genome:
        return replace(genes, sparse=rng.choice(self._ways))

    def _change_base(self, genes: Genome, rng: random.Random) -> Genome:
        return replace(genes, base=self._near(genes.base, rng))

    def _change_layer(self, genes: Genome, rng: random.Random) -> Genome:
        if not self.layers:
            return genes
        layer = rng.choice(self.layers)
        kept = tuple((name, gene) for name, gene in genes.layers if name != layer)
        if len(kept) < len(genes.layers) and rng.random() < 0.5:
            return replace(genes, layers=kept)
        return replace(genes, layers=(*kept, (layer, rng.choice(self._genes))))

    def _change_sizes(self, genes: Genome, rng: random.Random) -> Genome:
        if genes.sizes and rng.random() < 0.5:
            return replace(genes, sizes=())
        numel, gene = genes.sizes[0] if genes.sizes else (rng.choice(self.sizes), genes.base)
        if genes.sizes and rng.random() < 0.5:
            return replace(genes, sizes=((beside(self.sizes, numel, rng), gene),))
        return replace(genes, sizes=((numel, rng.choice(self._genes)),))

    _changes = (_change_bucket, _change_chunk, _change_order, _change_hosts, _change_base, _change_layer)

    def _near(self, gene: Gene, rng: random.Random) -> Gene:
        """Return one setting's neighbour of the same family, or, half of the time, any gene."""
        alike = [g for g in self._by_family.get(gene.family, ()) if distance(g, gene) == 1]
        return rng.choice(alike) if alike and rng.random() < 0.5 else rng.choice(self._genes)

    def _is_possible(self, gene: Gene) -> bool:
        """Say whether a gene fits the network's levels, and the way in which the model is divided, or whole."""
        node = gene.exchange
        if "rack" in node.levels and not self._with_racks:
            return False
        if not self._is_sharded or not self._has_replicas:
            return isinstance(node, Sharded) == self._is_sharded
        if isinstance(node, Sharded):
            return node.is_torchs
        return not node.has_owners and not isinstance(node.core, BlockSparse)  # which looks at whole gradients

    def _first_inside(self, draw: Callable[[], Genome], instead: Genome | None = None) -> Genome:
        for _ in range(_TRIES):
            if (genes := replace(draw(), cut=self._cut)) in self and genes != instead:
                return genes
        if instead is not None:
            return instead
        raise ValueError("no plan is valid here within the quality budget; raise the budget.")
