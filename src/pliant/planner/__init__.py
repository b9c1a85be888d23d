"""Which plan pays here: a space of plans, what each is predicted to cost, and a search that measures few of them."""

from pliant.planner.advice import Advice, AppliedAdvice, advise, apply
from pliant.planner.baselines import BASELINES
from pliant.planner.codec_errors import LOW_RANKS, CodecErrors, lossy_codecs
from pliant.planner.error_budget import MENUS, ErrorBudgetResult, error_budget_seeds, solve_error_budget
from pliant.planner.families import FAMILIES, Family
from pliant.planner.genes import Gene, Genes, all_of
from pliant.planner.knapsack import solve_knapsack
from pliant.planner.quality import Quality
from pliant.planner.search import SearchLimits, SearchResult, StepTimeModel, search, search_steps
from pliant.planner.space import Space
from pliant.planner.trials import Measure, Trial
from pliant.planner.workloads import WORKLOADS, scaled_down

__all__ = [
    "BASELINES",
    "FAMILIES",
    "LOW_RANKS",
    "MENUS",
    "WORKLOADS",
    "Advice",
    "AppliedAdvice",
    "CodecErrors",
    "ErrorBudgetResult",
    "Family",
    "Gene",
    "Genes",
    "Measure",
    "Quality",
    "SearchLimits",
    "SearchResult",
    "Space",
    "StepTimeModel",
    "Trial",
    "advise",
    "all_of",
    "solve_knapsack",
    "apply",
    "solve_error_budget",
    "error_budget_seeds",
    "lossy_codecs",
    "search",
    "search_steps",
    "scaled_down",
]
