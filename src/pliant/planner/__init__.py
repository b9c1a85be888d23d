"""Search for a plan: a space of plans, predicted costs, and a search that measures few of them."""

from pliant.planner.advice import Advice, AppliedAdvice, advise, apply
from pliant.planner.allot import allot
from pliant.planner.budgeted import MENUS, ErrorBudgetResult, budgeted, budgeted_seeds
from pliant.planner.builders import BUILDERS
from pliant.planner.errors import LOW_RANKS, CodecErrors, lossy_codecs
from pliant.planner.families import FAMILIES, Family
from pliant.planner.genes import Gene, Genes, all_of
from pliant.planner.quality import Quality
from pliant.planner.search import SearchLimits, SearchResult, StepTimeModel, search, searching
from pliant.planner.space import Space
from pliant.planner.trials import Measure, Trial
from pliant.planner.workloads import WORKLOADS, shrunk

__all__ = [
    "BUILDERS",
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
    "allot",
    "apply",
    "budgeted",
    "budgeted_seeds",
    "lossy_codecs",
    "search",
    "searching",
    "shrunk",
]
