"""Risk of a plan with a given optimizer: what is known of its accuracy, and what is not."""

import math
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from pliant.planner.compositions import composition
from pliant.planner.genome import Gene, Genome
from pliant.planner.quality import MEASURED_WITH, NOT_ELSEWHERE, Quality
from pliant.planner.steps_ratios import UNKNOWN_SCALE, Scale, refused_around, row_for

__all__ = ["LOSES_WITH_ADAPTIVE", "Risk", "is_adaptive_name", "is_losing", "risk_of"]

_ADAPTIVE = ("adam", "rmsprop", "adagrad", "lamb", "adadelta", "adafactor")

LOSES_WITH_ADAPTIVE = MappingProxyType({"choco": 16.0, "gossip": 16.6, "local": 23.9, "diloco": 108.2})
"""Family -> percent by which perplexity was higher than that of DDP in bfloat16: 0.42 M parameters, AdamW, 500 steps,
mean of three seeds (benchmarks/results/lm_2core_2026-11-21.md)."""


@dataclass(frozen=True, kw_only=True)
class Risk:
    """Risk of a plan for the accuracy of a training."""

    loses: bool
    """Whether the plan is known to lose accuracy with this optimizer."""
    sentence: str
    """Clause on what was measured, and with which optimizer."""


def is_adaptive_name(optimizer: str) -> bool:
    """Say whether an optimizer's class name is of those that divide by what they have seen of the gradient's size.

    >>> is_adaptive_name("AdamW"), is_adaptive_name("SGD")
    (True, False)
    """
    return any(word in optimizer.lower() for word in _ADAPTIVE)


def risk_of(genes: Genome, optimizer: str, scale: Scale = UNKNOWN_SCALE) -> Risk:
    """Return the risk of a plan with an optimizer: the worst that is known of its genes.

    Args:
        genes: Settings of the plan.
        optimizer: Name of the optimizer's class, such as 'AdamW'.
        scale: Size of the training.

    >>> risk_of(Genome(Gene("local", {"every": 32})), "AdamW").loses
    True

    """
    lossy = [gene for gene in genes.genes if not gene.exact]
    if not lossy:
        rounded = any(gene.exchange.payload_codec is not None for gene in genes.genes)
        return Risk(loses=False, sentence="rounding to 16 bits" if rounded else "none: exact")
    lossy = [part for gene in lossy for part in _parts(gene)]
    rows = [row for gene in lossy if (row := row_for(gene, optimizer, scale)) is not None]
    if len(rows) == len(lossy):
        worst = max(rows, key=lambda row: (row.worst, row.highest, row.ratio))
        beyond = f"; {worst.beyond}" if worst.beyond else ""
        return Risk(loses=math.isinf(worst.highest), sentence=f"{worst.sentence}, with {optimizer}{beyond}")
    lost = [sentence for gene in lossy if (sentence := _loss_of(gene, optimizer, scale))]
    if lost:
        return Risk(loses=True, sentence=lost[0])
    refused = [found for gene in lossy if (found := refused_around(gene, optimizer, scale)) is not None]
    if refused:
        stronger, row = refused[0]
        told = f"it was not measured, and {stronger.summary} had {row.sentence}, with {optimizer}; {row.beyond}"
        return Risk(loses=False, sentence=told)
    ratio = Quality().ratio(genes)
    if ratio is None:
        return Risk(loses=False, sentence=f"not measured with {optimizer}")
    if optimizer == MEASURED_WITH:
        return Risk(loses=False, sentence=f"{ratio:.2f} times the steps with {MEASURED_WITH}, on one small model")
    others = risk_of(genes, MEASURED_WITH, scale).sentence
    return Risk(loses=False, sentence=f"not measured with {optimizer}; {others}")


@cache
def is_losing(gene: Gene, optimizer: str, scale: Scale = UNKNOWN_SCALE) -> bool:
    """Say whether a plan of one gene is known to lose accuracy with an optimizer: `Risk.loses`, without a sentence."""
    parts = _parts(gene) if not gene.exact else ()
    return any(_loss_of(part, optimizer, scale) for part in parts)


def _parts(gene: Gene) -> tuple[Gene, ...]:
    return composition(gene) or (gene,)


def _loss_of(gene: Gene, optimizer: str, scale: Scale) -> str:
    """Return a clause on what a way of exchanging has lost: its row's, or without one what is known; "" if nothing."""
    row = row_for(gene, optimizer, scale)
    if row is not None:
        return f"{row.sentence}, with {optimizer}" if math.isinf(row.highest) else ""
    lost = refused_around(gene, optimizer, scale)
    if lost is not None and math.isinf(lost[1].highest):
        return f"LOSES, perhaps: it was not measured, and {lost[0].summary} had {lost[1].sentence}, with {optimizer}"
    if is_adaptive_name(optimizer) and gene.family in LOSES_WITH_ADAPTIVE:
        percent = LOSES_WITH_ADAPTIVE[gene.family]
        return f"LOSES with {optimizer}: perplexity was {percent:.0f} % higher on a small language model"
    if gene.family in NOT_ELSEWHERE:
        return "LOSES: on other models the loss was 6 to 25 % higher than DDP's after 1.5 times its steps"
    return ""
