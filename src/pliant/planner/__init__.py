"""Search for a plan: a space of plans, predicted costs, and a search that measures few of them."""

from pliant.planner.advice import Advice, AppliedAdvice, advise, apply
from pliant.planner.baselines import (
    BASELINES,
    OWN_EXCHANGE,
    SHARDED_BASELINES,
    measured_genomes,
    named_genomes,
)
from pliant.planner.codec_errors import LOW_RANKS, CodecErrors, lossy_codecs
from pliant.planner.error_budget import MENUS, ErrorBudgetResult, error_budget_seeds, solve_error_budget
from pliant.planner.families import FAMILIES, Family
from pliant.planner.frontier import (
    FRONTIER_LIMITS,
    FrontierPoint,
    frontier,
    frontier_text,
    remembering,
    search_predicted,
)
from pliant.planner.genome import Gene, Genome, all_of
from pliant.planner.knapsack import solve_knapsack
from pliant.planner.least_times import LeastTimes
from pliant.planner.left_out import LeftOut, left_out, limits_text
from pliant.planner.quality import Quality
from pliant.planner.risk import Risk, risk_of
from pliant.planner.search import SearchLimits, SearchResult, StepTimeModel, search, search_steps
from pliant.planner.space import Space
from pliant.planner.steps_ratios import Scale
from pliant.planner.trials import Measure, Trial
from pliant.planner.workloads import WORKLOADS, divided, scaled_down

__all__ = [
    "BASELINES",
    "FAMILIES",
    "FRONTIER_LIMITS",
    "LOW_RANKS",
    "MENUS",
    "OWN_EXCHANGE",
    "SHARDED_BASELINES",
    "WORKLOADS",
    "Advice",
    "AppliedAdvice",
    "CodecErrors",
    "ErrorBudgetResult",
    "Family",
    "FrontierPoint",
    "Gene",
    "Genome",
    "LeastTimes",
    "LeftOut",
    "Measure",
    "Quality",
    "Risk",
    "Scale",
    "SearchLimits",
    "SearchResult",
    "Space",
    "StepTimeModel",
    "Trial",
    "advise",
    "all_of",
    "apply",
    "divided",
    "error_budget_seeds",
    "frontier",
    "frontier_text",
    "left_out",
    "limits_text",
    "lossy_codecs",
    "measured_genomes",
    "named_genomes",
    "remembering",
    "risk_of",
    "scaled_down",
    "search",
    "search_predicted",
    "search_steps",
    "solve_error_budget",
    "solve_knapsack",
]
