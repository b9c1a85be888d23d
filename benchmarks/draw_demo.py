"""Draw how soon each arm of the demo reached the target.

``python benchmarks/draw_demo.py results/demo.json docs/images/demo.svg``; needs matplotlib, which no extra brings.
"""

import json
import sys
from pathlib import Path

import matplotlib.pyplot as plt

from pliant_bench.harness.metric import METRICS
from pliant_bench.tables.results import train_rows
from pliant_bench.tables.winners import is_ours

OURS, THEIRS = "#2a9d78", "#9aa5b1"


def main(source, target):
    """Draw bars, the slowest on top."""
    result = json.loads(Path(source).read_text())
    metric = METRICS[result["setup"]["task"]]
    rows = [row for row in train_rows(result["records"], metric) if row.time_to_target_s is not None]
    rows.sort(key=lambda row: row.time_to_target_s)
    plt.rcParams.update({"svg.hashsalt": "demo", "font.size": 11, "font.family": "sans-serif", "svg.fonttype": "none"})
    figure, axes = plt.subplots(figsize=(8, 0.42 * len(rows) + 0.9))
    bars = axes.barh(
        [row.arm for row in rows],
        [row.time_to_target_s for row in rows],
        color=[OURS if is_ours(row.arm) else THEIRS for row in rows],
    )
    axes.bar_label(bars, [f"{row.time_to_target_s:.1f} s" for row in rows], padding=4, color="#7a8691")
    axes.set_xlabel(f"seconds of training to {metric.name} {metric.goal(result['setup']['target'])}", color="#7a8691")
    axes.tick_params(colors="#7a8691", length=0)
    axes.spines[:].set_visible(False)
    axes.margins(x=0.12)
    figure.savefig(target, transparent=True, bbox_inches="tight", metadata={"Date": None})


if __name__ == "__main__":
    main(*sys.argv[1:3])
