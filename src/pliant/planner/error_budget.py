"""The fastest division of a budget of errors among parts of a model: each gets the setting that it can bear.

L-GreCo (Markov et al., "L-GreCo: Layerwise-Adaptive Gradient Compression for Efficient and Accurate Deep Learning",
arXiv:2210.17357): choose for each layer l one setting c_l so that the exchange takes least, subject to
sum_l error_l(c_l) <= E. The sum is over disjoint parts of one vector, so it is the whole gradient's squared error. As
there, a knapsack with one choice per layer, solved by dynamic programming (`solve_knapsack`).
"""

import glob
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pliant.planner.codec_errors import CodecErrors
from pliant.planner.genome import SMALL_NUMEL, Gene, Genome, all_of
from pliant.planner.knapsack import solve_knapsack
from pliant.planner.quality import Quality
from pliant.simulator.layout import itemsize
from pliant.spec import SyncPlan, Workload

__all__ = ["MENUS", "ErrorBudgetResult", "StepTimes", "error_budget_seeds", "solve_error_budget"]

Floats = NDArray[np.float64]
StepTimes = Callable[[Workload, Sequence[SyncPlan]], Sequence[float] | Floats]
"""A simulator, bound to a topology and to costs: step times in s, (num_plans,), of plans on a workload."""

_DDP_BYTES = 25 << 20
_MOST_TENSORS = 256
"""Large tensors up to which each may be a part of its own: a plan has a rule for each that differs."""
_WHOLE = 1 << 40
"""Bytes of a bucket that nothing fills."""
_EXACT = all_of("exact")
_DDP = Genome(_EXACT[0], bucket_bytes=_DDP_BYTES)

MENUS: Mapping[str, tuple[Gene, ...]] = {
    **{
        choice: (*_EXACT, *(gene for gene in all_of("sparse") if gene.settings["choice"] == choice))
        for choice in ("topk", "blocktopk", "randomk")
    },
    **{name: (*_EXACT, *all_of(name)) for name in ("low_rank", "quantized", "fed_back")},
}
"""Name -> settings to choose from for each part of a model, the mildest first: a family's, and exact exchange."""


@dataclass(frozen=True, kw_only=True)
class ErrorBudgetResult:
    """Best use of a budget of errors, by simulation."""

    genes: Genome
    """The fastest: divided by layer classes, buckets or tensors, or one setting for all if nothing beats that."""
    error: float
    """Relative squared error of the whole gradient: at most the budget."""
    step_s: float
    uniform: Genome | None
    """The fastest with one setting for all within the budget; None if every single setting exceeds it."""
    uniform_s: float
    """Its simulated step; infinite if there is none."""


def solve_error_budget(
    workload: Workload,
    budget: float,
    menu: Sequence[Gene],
    step_s: StepTimes,
    *,
    like: Genome = _DDP,
) -> ErrorBudgetResult:
    """Find the fastest plan whose gradient errs by at most the budget: one setting for all, or one for each part.

    Parts are classes of layers, buckets, or tensors; each division is tried. A part costs what it adds to an exchange:
    a step that does nothing but exchange the part twice takes that much longer than one that exchanges it once. So
    costs are taken to be linear in what is exchanged; latency, messages and overlap with backward are in none of them.
    Therefore the plans that come of it, and every single setting within the budget, are simulated whole, and the
    fastest is returned: never a slower one than the best single setting.

    Args:
        workload: With gradient_share and gradient_error, as `pliant.observe(codecs=...)` measures them.
        budget: On the relative squared error of the whole gradient, 0.3 for instance.
        menu: Settings to choose from; those that were not measured on the workload are left out.
        step_s: The simulator.
        like: What the plan's other settings are: buckets, chunks, order, hierarchy.

    Raises:
        ValueError: Nothing that could be chosen was measured, or even the mildest settings exceed the budget.

    """
    return _Divider(workload, menu, step_s, like).best(budget)


def error_budget_seeds(
    workload: Workload,
    quality: Quality,
    step_s: StepTimes,
    *,
    budget: float | None = None,
    like: Genome = _DDP,
) -> dict[str, Genome]:
    """Return divided plans for a search to begin with, by name; none where the workload was not measured.

    With a budget, one of each menu. Without, L-GreCo's own question: each single setting's error is a budget, which the
    plan that divides it keeps, in less time. Only what the quality admits is chosen from.
    """
    errors = CodecErrors(workload)
    found: dict[str, Genome] = {}
    for name, menu in MENUS.items():
        admitted = [gene for gene in menu if quality.admits(gene)]
        known = {gene: errors.of(_all(gene, like).plan()) for gene in admitted if gene.lossy}
        budgets = {b for b in known.values() if b is not None} if budget is None else {budget}
        if not any(error is not None for error in known.values()):
            continue
        divider = _Divider(workload, admitted, step_s, like)
        for bound in sorted(budgets):
            best = divider.best(bound)
            if len(set(best.genes.genes)) > 1 or budget is not None:
                found[f"{name} within {bound:.3g}"] = best.genes
    return found


class _Divider:
    """A menu on a workload: what each part would err and cost under each setting, found once for all budgets."""

    def __init__(self, workload: Workload, menu: Sequence[Gene], step_s: StepTimes, like: Genome) -> None:
        self._workload, self._step_s, self._like = workload, step_s, like
        self._errors = CodecErrors(workload)
        self._errors.require_some()
        self._offered = [gene for gene in menu if self._errors.of(_all(gene, like).plan()) is not None]
        if not self._offered:
            raise ValueError(
                f"none of {len(menu)} settings was measured on the workload {workload.name!r}, which knows "
                f"{', '.join(sorted(map(str, self._errors.measured)))}; name their codecs in "
                "pliant.observe(codecs=...)."
            )
        tensors = [[place] for place, tensor in enumerate(workload.tensors) if tensor.numel > SMALL_NUMEL]
        kinds = [(_by_class(workload), _as_classes), (_by_bucket(workload, like.bucket_bytes), _as_names)]
        kinds += [(tensors, _as_names)] if len(tensors) <= _MOST_TENSORS else []
        self._divisions = [
            (groups, self._table(groups), _marginal_s(groups, self._offered, workload, step_s, like), written)
            for groups, written in kinds
            if groups
        ]

    def best(self, budget: float) -> ErrorBudgetResult:
        found: dict[Genome, float] = {}
        for genes in (_all(gene, self._like) for gene in self._offered):
            if (error := self._error(genes)) <= budget:
                found[genes] = error
        num_uniform = len(found)
        for groups, table, costs, written in self._divisions:
            picked = [self._offered[k] for k in solve_knapsack(table, costs, budget)]
            genes = written(self._workload, groups, picked, self._like)
            found.setdefault(genes, self._error(genes))
        times_s = [float(s) for s in self._step_s(self._workload, [genes.plan() for genes in found])]
        ranked = list(zip(found, times_s, strict=True))
        best, best_s = min(ranked, key=lambda item: item[1])  # the first of equal ones: one setting for all
        uniform, uniform_s = min(ranked[:num_uniform], key=lambda item: item[1], default=(None, float("inf")))
        return ErrorBudgetResult(genes=best, error=found[best], step_s=best_s, uniform=uniform, uniform_s=uniform_s)

    def _error(self, genes: Genome) -> float:
        error = self._errors.of(genes.plan())
        return float("inf") if error is None else error

    def _table(self, groups: Sequence[Sequence[int]]) -> Floats:
        """Return each group's error under each setting, (num_groups, num_settings)."""
        nodes = [gene.exchange for gene in self._offered]
        rows = [
            [sum(self._errors.of_tensor(place, node) or 0.0 for place in group) for node in nodes] for group in groups
        ]
        return np.array(rows)


def _all(gene: Gene, like: Genome) -> Genome:
    return replace(like, base=gene, layers=(), names=())


def _by_class(workload: Workload) -> list[list[int]]:
    """Return the places of large tensors, class by class of their layers."""
    groups: dict[str, list[int]] = {}
    for place, tensor in enumerate(workload.tensors):
        if tensor.numel > SMALL_NUMEL:
            groups.setdefault(tensor.layer, []).append(place)
    return list(groups.values())


def _by_bucket(workload: Workload, bucket_bytes: int) -> list[list[int]]:
    """Return the places of large tensors, bucket by bucket: a bucket is full when it has reached its size."""
    groups: list[list[int]] = [[]]
    held = 0
    for place, tensor in enumerate(workload.tensors):
        if tensor.numel > SMALL_NUMEL:
            groups[-1].append(place)
        held += tensor.numel * itemsize(tensor)
        if held >= (bucket_bytes or _DDP_BYTES):
            groups.append([])
            held = 0
    return [group for group in groups if group]


def _marginal_s(
    groups: Sequence[Sequence[int]], menu: Sequence[Gene], workload: Workload, step_s: StepTimes, like: Genome
) -> Floats:
    """Return what each group adds to an exchange under each setting, (num_groups, num_settings)."""
    plans = [replace(_all(gene, like), bucket_bytes=_WHOLE).plan() for gene in menu]
    idle = replace(workload, forward_s=0.0, backward_s=0.0, step_s=0.0)
    known: dict[tuple[tuple[tuple[int, ...], str], ...], Floats] = {}  # parts of equal shapes cost the same
    rows: list[Floats] = []
    for group in groups:
        tensors = tuple(replace(workload.tensors[place], ready_s=0.0) for place in group)
        key = tuple((tensor.shape, tensor.dtype) for tensor in tensors)
        if key not in known:
            once, twice = (np.array(step_s(replace(idle, tensors=held), plans)) for held in (tensors, tensors * 2))
            known[key] = np.maximum(twice - once, 0.0)
        rows.append(known[key])
    return np.array(rows)


def _as_classes(workload: Workload, groups: Sequence[Sequence[int]], picked: Sequence[Gene], like: Genome) -> Genome:
    """Return genes by class of layer; what most elements have is the base."""
    base = _most_common(workload, groups, picked)
    named = [(workload.tensors[group[0]].layer, gene) for group, gene in zip(groups, picked, strict=True)]
    return replace(_all(base, like), layers=tuple((layer, gene) for layer, gene in named if gene != base))


def _as_names(workload: Workload, groups: Sequence[Sequence[int]], picked: Sequence[Gene], like: Genome) -> Genome:
    """Return genes by parameter; what most elements have is the base."""
    base = _most_common(workload, groups, picked)
    named = [
        (glob.escape(workload.tensors[place].name), gene)
        for group, gene in zip(groups, picked, strict=True)
        for place in group
        if gene != base
    ]
    return replace(_all(base, like), names=tuple(named))


def _most_common(workload: Workload, groups: Sequence[Sequence[int]], picked: Sequence[Gene]) -> Gene:
    numel: dict[Gene, int] = {}
    for group, gene in zip(groups, picked, strict=True):
        numel[gene] = numel.get(gene, 0) + sum(workload.tensors[place].numel for place in group)
    return max(numel, key=lambda gene: numel[gene])
