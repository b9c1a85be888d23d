"""May a simulator's rows be published? Only if it predicts measured cells of which it has seen neither part."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pliant.planner.predictor import Predictor, TransferPrior
from pliant_bench.dataset.judge import judged
from pliant_bench.dataset.measured import MeasuredCell

__all__ = ["LIMITS", "ValidationGate", "validate"]

LIMITS = {"pair": 0.90, "tau": 0.75, "error": 0.10, "p90": 0.20, "regret@10": 0.03}
"""At least so many pairs in order, and so large a tau; at most so much error, and so much slower than the best."""
MOST_BIAS = 0.10
_AT_LEAST = ("pair", "tau")


@dataclass(frozen=True, kw_only=True)
class ValidationGate:
    """Outcome on cells that were held out, each with all that shares its model or its network."""

    cells: dict[str, dict[str, float]]
    """Cell -> figures of merit."""
    bias: dict[str, tuple[int, float, float]]
    """Family -> its runs, the median of log(measured / predicted), and that of its absolute value."""

    @property
    def figures(self) -> dict[str, float]:
        """Return means over all cells, each over those that have the figure; one that no cell has is left out."""
        found = {key: [cell[key] for cell in self.cells.values() if key in cell] for key in LIMITS}
        return {key: statistics.mean(each) for key, each in found.items() if each}

    @property
    def is_open(self) -> bool:
        """Whether all figures are known and within their limits."""
        found = self.figures
        return all(
            key in found and (found[key] >= limit if key in _AT_LEAST else found[key] <= limit)
            for key, limit in LIMITS.items()
        )

    @property
    def families(self) -> list[str]:
        """Those that were measured and are not off to one side."""
        return [name for name, (_, bias, _) in self.bias.items() if abs(bias) <= MOST_BIAS]

    def text(self) -> str:
        """Return the tables, as Markdown."""
        lines = [f"| cell | {' | '.join(LIMITS)} |", f"|{'---|' * (1 + len(LIMITS))}"]
        rows = {**self.cells, "**mean**": self.figures}
        lines += [
            f"| {name} | {' | '.join(_describe(key, found.get(key)) for key in LIMITS)} |"
            for name, found in rows.items()
        ]
        lines += [f"| limit | {' | '.join(_describe(key, limit) for key, limit in LIMITS.items())} |", ""]
        lines += ["| family | runs | bias | error | simulated rows |", "|---|---|---|---|---|"]
        for name, (num, bias, error) in self.bias.items():
            lines.append(f"| {name} | {num} | {bias:+.1%} | {error:.1%} | {'yes' if name in self.families else 'no'} |")
        verdict = "open" if self.is_open else "closed: no simulated rows"
        return "\n".join([*lines, "", f"The gate is {verdict}."]) + "\n"


def validate(cells: Sequence[MeasuredCell]) -> ValidationGate:
    """Hold out each cell, fit coefficients to those that share neither its model nor its network, and compare.

    Raises:
        ValueError: There are not two cells that have nothing in common.

    """
    figures: dict[str, dict[str, float]] = {}
    errors: dict[str, list[float]] = {}
    for cell in cells:
        others = [(other.physics, other.trials) for other in cells if not cell.shares(other)]
        if not others:
            continue
        predictor = Predictor(cell.physics, experience=TransferPrior.of(others))
        log_s = predictor.simulate([t.genes for t in cell.trials])
        name = cell.name if cell.name not in figures else f"{cell.model_id} {cell.topo_id}"  # of another size
        figures[name] = judged(log_s, cell.trials)
        for trial, predicted in zip(cell.trials, log_s.tolist(), strict=True):
            for family in {gene.family for gene in trial.genes.genes}:
                errors.setdefault(family, []).append(float(np.log(trial.step_s)) - predicted)
    if not figures:
        raise ValueError(
            "every measured cell shares its model or its network with each other one, so that none can be held out; "
            "collect a cell of another model on another network."
        )
    bias = {
        family: (len(found), statistics.median(found), statistics.median(abs(e) for e in found))
        for family, found in sorted(errors.items())
    }
    return ValidationGate(cells=figures, bias=bias)


def _describe(key: str, figure: float | None) -> str:
    if figure is None:
        return "-"
    return f"{figure:.2f}" if key in _AT_LEAST else f"{figure:.1%}"
