"""A table of steps ratios that a test makes up, in the place of the one that is shipped."""

import json

import pytest

from pliant.planner import quality, risk, steps_ratios

__all__ = ["ratio_row", "table"]


def ratio_row(gene, optimizer, ratio, highest, *, ranks=4, tasks=5, **size):
    """Return a row of the table; one of a single size has its parameters, steps and limit."""
    facts = {"family": gene.family, "settings": dict(gene.settings), "optimizer": optimizer, "ranks": ranks}
    return {**facts, "ratio": ratio, "highest": highest, "tasks": tasks, **size}


@pytest.fixture
def table(tmp_path, monkeypatch):
    """Return what lets the planner have these rows alone, as long as a test takes."""
    path = tmp_path / "ratios.json"

    def forget():
        for each in (steps_ratios.fitted_ratios, quality._parts_known_with, risk.is_losing):
            each.cache_clear()

    def have(*rows):
        path.write_text(json.dumps({"rows": rows}))
        monkeypatch.setattr(steps_ratios, "_shipped", lambda: steps_ratios.read_ratios(path))
        forget()

    yield have
    forget()
