"""Ratios that were fitted with an optimizer come before those of one model with SGD, and admit by their worst task."""

import json
import math

import pytest

from pliant.planner import Gene, Genome, Quality, quality, risk, risk_of
from pliant.planner.quality import MEASURED_STEPS_RATIO
from pliant.planner.steps_ratios import STEPS_RATIOS_PATH, fitted_ratios, read_ratios

LOCAL, WIDER = Gene("local", {"every": 8}), Gene("local", {"every": 16})
DILOCO = Gene("diloco", {"bits": 4, "delay_steps": 0, "every": 32, "fragments": 1})


@pytest.fixture
def fitted(tmp_path, monkeypatch):
    """Let the planner have a table of two rows with AdamW and one of more ranks."""

    def row(gene, ratio, highest, ranks=4):
        facts = {"family": gene.family, "settings": dict(gene.settings), "optimizer": "AdamW"}
        return {**facts, "ratio": ratio, "highest": highest, "tasks": 5, "ranks": ranks}

    path = tmp_path / "ratios.json"
    rows = [row(LOCAL, 9.0, 9.0, ranks=8), row(LOCAL, 1.1, 1.3), row(DILOCO, 1.6, None)]
    path.write_text(json.dumps({"rows": rows}))
    found = read_ratios(path)
    for module in (quality, risk):
        monkeypatch.setattr(module, "fitted_ratios", lambda optimizer: found.get(optimizer, {}))
    caches = (quality._parts_known_with, risk.is_losing)  # of what was found with the table that is shipped
    for each in caches:
        each.cache_clear()
    yield found["AdamW"]
    for each in caches:
        each.cache_clear()


def test_the_table_that_is_shipped_can_be_read():
    for rows in read_ratios(STEPS_RATIOS_PATH).values():
        assert all(1 <= row.ratio <= row.highest and row.tasks >= 3 for row in rows.values())
    assert fitted_ratios("an optimizer that nobody has measured") == {}


def test_a_row_counts_with_its_optimizer_alone(fitted):
    assert fitted[LOCAL].ranks == 4
    assert Quality(optimizer="AdamW").ratio_of(LOCAL) == 1.1
    assert Quality(optimizer="SGD").ratio_of(LOCAL) == MEASURED_STEPS_RATIO[LOCAL]
    assert Quality(optimizer="AdamW", ratios={LOCAL: 1.5}).ratio_of(LOCAL) == 1.5


def test_a_row_admits_within_the_budget_of_its_worst_task(fitted):
    assert not Quality(budget=1.2, optimizer="AdamW").admits(LOCAL)
    assert Quality(budget=1.3, optimizer="AdamW").admits(LOCAL)
    assert not Quality(budget=100, optimizer="AdamW").admits(DILOCO)
    assert not Quality(budget=100, optimizer="AdamW").admits(WIDER)
    assert not Quality(budget=100, optimizer="Muon").admits(LOCAL)
    assert not Quality(budget=1, optimizer="AdamW").admits(LOCAL)
    assert Quality(budget=1.2, optimizer="AdamW", ratios={LOCAL: 1.1}).admits(LOCAL)
    assert "plans that were measured with it" in Quality(budget=1.2, optimizer="AdamW").sentence


def test_the_risk_says_what_was_measured(fitted):
    told = risk_of(Genome(LOCAL), "AdamW")
    assert not told.loses
    assert told.sentence == f"{fitted[LOCAL].sentence}, with AdamW"
    assert told.sentence.startswith("1.10 times the steps at the median of 5 small tasks, 1.30 times")
    lost = risk_of(Genome(DILOCO), "AdamW")
    assert lost.loses
    assert "the loss not reached in twice the steps at the worst" in lost.sentence
    assert math.isinf(fitted[DILOCO].highest)
    assert risk_of(Genome(LOCAL, layers=(("LSTM", WIDER),)), "AdamW").sentence.startswith("LOSES")
