import json
import re

import pytest

from pliant_bench.harness.metric import METRICS
from pliant_bench.tables.report import page
from pliant_bench.tables.results import TrainRow, spread, time_rows, train_rows
from pliant_bench.tables.text import markdown, time_table, train_table
from pliant_bench.tables.verdict import next_steps, verdict, verdict_of


def _timed(arm, step_s, **fields):
    others = {"sent_bytes": 0.0, "counted": False, "wire_bytes": 1e6, "exposed_s": None, "numel": 5}
    return {"kind": "time", "model": "cnn", "arm": arm, "step_s": step_s, **others, **fields}


def _trained(arm, seed, accuracy, **fields):
    curve = [
        {"step": 1, "time_s": 1.0, "accuracy": 0.5, "loss": 2.0, "wire_bytes": 1e6},
        {"step": 2, "time_s": 2.0, "accuracy": accuracy, "loss": 1.0, "wire_bytes": 2e6},
    ]
    others = {
        "step_s": 0.5,
        "sent_bytes": 1e6,
        "counted": True,
        "wire_bytes": 1.1e6,
        "exposed_s": 0.1,
        "capped": False,
        "time_to_target_s": 2.0 if accuracy >= 0.85 else None,
    }
    return {"kind": "train", "arm": arm, "seed": seed, "curve": curve, "final_accuracy": accuracy, **others, **fields}


TIMED = [
    _timed("compute", [1.0, 2.0, 1.0], wire_bytes=500.0),
    _timed("ddp", [4.0, 4.0, 6.0], sent_bytes=36e6),
    _timed("onebit", [2.0, 4.0, 2.0], sent_bytes=20e6, counted=True, exposed_s=0.25),
]
TRAINED = [
    {"kind": "alone", "step_s": 0.2},
    _trained("ddp-bf16", 0, 0.88, counted=False, exposed_s=None),
    _trained("ddp-bf16", 1, 0.90, counted=False, exposed_s=None),
    _trained("onebit", 0, 0.87),
    _trained("onebit", 1, 0.895),
    _trained("topk<script>", 0, 0.84, capped=True),
]
SETUP = {
    "mode": "train",
    "task": "images",
    "target": 0.85,
    "rate_bytes_per_s": 10e6,
    "provenance": {"command": "pliant bench <b>", "network": "n"},
}


def test_ratios_are_medians_of_paired_rounds():
    compute, ddp, onebit = time_rows(TIMED, 10e6)
    assert onebit.speedup == 2.0  # of 2, 1, 3
    assert onebit.speedup_spread == (1.5, 2.5)
    assert onebit.over_compute == 2.0
    assert ddp.over_compute == 4.0  # of 4, 2, 6
    assert onebit.efficiency == pytest.approx(20e6 / 10e6 / 2.0)
    assert ddp.efficiency == pytest.approx(36e6 / 10e6 / 4.0)
    assert (ddp.exposed_s, ddp.exposed_estimated) == (3.0, True)  # of 3, 2, 5 more than computing
    assert (onebit.exposed_s, onebit.exposed_estimated) == (0.25, False)
    assert compute.over_compute == 1.0


def test_without_the_arms_to_compare_with_there_is_no_ratio():
    (alone,) = time_rows(TIMED[2:], 0.0)
    assert (alone.speedup, alone.over_compute, alone.efficiency) == (None, None, None)
    assert time_table([alone])[1] == [["onebit", "cnn", "2s", "-", "-", "20MB", "1MB", "250ms", "-"]]


def test_gaps_are_paired_by_seed_and_capped_runs_have_none():
    bf16, onebit, capped = train_rows(TRAINED)
    assert bf16.gap == 0.0
    assert onebit.gap == pytest.approx(-0.75)  # -1.0 and -0.5 points
    assert onebit.final_range == (0.87, 0.895)
    assert (capped.gap, capped.time_to_target_s) == (None, None)
    assert (bf16.exposed_s, bf16.exposed_estimated) == (pytest.approx(0.3), True)
    cells = train_table([bf16, onebit, capped], 0.85)[1]
    assert cells[0][3] == "1MB *"
    assert cells[1][3] == "1MB"
    assert cells[2][1] == "not reached"
    assert cells[2][5] == "84.00% †"


def test_spread_of_one_value_is_that_value():
    assert spread([3.0]) == (3.0, 3.0)


def test_the_page_is_whole_in_itself_and_says_everything():
    text = page({"setup": SETUP, "records": json.loads(json.dumps(TIMED + TRAINED))})
    assert not re.search(r"""(src|href)\s*=\s*["']""", text)
    assert "pliant bench &lt;b&gt;" in text
    assert "topk&lt;script&gt;" in text
    for title in ("Accuracy over training time", "Accuracy over bytes", "where a step", "Made-up data"):
        assert title in text
    assert text.count('class="figure"') == 4
    assert len(text) < 1_000_000


def test_the_data_of_a_figure_cannot_end_its_script():
    text = page({"setup": SETUP, "records": [*TRAINED, _trained("</script><b>", 0, 0.86)]})
    data = re.findall(r'<script type="application/json" class="data">(.*?)</script>', text)
    assert len(data) == 3
    assert "</script><b>" in {trace["name"] for trace in json.loads(data[0])["data"]}


def test_the_page_begins_with_the_verdict():
    text = page({"setup": SETUP, "records": TRAINED})
    body = text[text.index("<body>") :]
    said = verdict_of({"setup": SETUP, "records": TRAINED})
    assert said
    assert body.index(said) < body.index("<h2>")


def _row(arm, time_to_target_s, gap=0.0, *, capped=False):
    return TrainRow(
        arm=arm,
        time_to_target_s=time_to_target_s,
        step_s=0.1,
        sent_bytes=1.0,
        counted=True,
        wire_bytes=None,
        final=0.86,
        final_range=(0.86, 0.86),
        gap=gap,
        exposed_s=0.0,
        exposed_estimated=False,
        capped=capped,
    )


DDP, BF16 = _row("ddp", 40.0, 0.1), _row("ddp-bf16", 20.0)
SOONER = "reached accuracy 85% {} times sooner than"
VERDICTS = [
    ([DDP, BF16, _row("onebit", 4.0, -0.2)], f"onebit {SOONER.format(5.0)} 16-bit DDP; it ended within 0.2 points"),
    ([BF16, _row("onebit", 2.0, -1.5), _row("powersgd", 10.0, 0.5)], f"powersgd {SOONER.format(2.0)}"),
    ([BF16, _row("onebit", 2.0, -1.5)], f"onebit {SOONER.format(10.0)} 16-bit DDP; it ended 1.5 points"),
    ([BF16, _row("onebit", 2.0, capped=True), _row("powersgd", None)], "None of Pliant's algorithms reached accuracy"),
    ([_row("ddp", 10.0), BF16, _row("onebit", 5.0)], f"onebit {SOONER.format(2.0)} 32-bit DDP"),
    ([BF16, _row("onebit", 19.8)], "Nothing reached accuracy 85% sooner than 16-bit DDP"),
    ([_row("ddp-bf16", None), _row("onebit", 5.0)], "onebit reached accuracy 85% after 5 s; DDP did not reach it"),
    ([BF16], ""),
    ([_row("onebit", 5.0)], ""),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "said"), VERDICTS)
def test_the_verdict_is_of_the_arm_that_keeps_the_accuracy_and_is_soonest(rows, said):
    found = verdict(rows, 0.85, METRICS["images"])
    assert found.startswith(said)
    assert bool(found) == bool(said)


def test_what_next_names_the_arm_that_won():
    for arm, what in (("onebit", '"onebit"'), ("auto", '"auto"'), ("auto(quality=1.1)", "pliant.Auto(quality=1.1)")):
        (_, line), *_ = next_steps([BF16, _row(arm, 4.0)], METRICS["images"])
        assert line == f"run = pliant.relax(model, optimizer, {what})"


def test_without_an_interface_per_host_there_is_no_plot_over_bytes():
    records = [{**r, "wire_bytes": None} for r in TRAINED if r["kind"] == "train"]
    text = page({"setup": SETUP, "records": records})
    assert "Accuracy over bytes" not in text
    assert text.count('class="figure"') == 2


def test_markdown_has_every_cell_and_how_it_came_about():
    text = markdown({"setup": SETUP, "records": [*TIMED, *TRAINED]})
    head, cells = time_table(time_rows(TIMED, 10e6))
    for cell in (*head, *(c for row in cells for c in row)):
        assert cell.replace("*", "\\*") in text
    assert "topk<script>" in text
    assert "- command: `pliant bench <b>`" in text
    widths = {line.count(" | ") for line in text.splitlines() if line.startswith("| onebit")}
    assert widths == {len(head) - 1, len(train_table([], 0.85)[0]) - 1}
