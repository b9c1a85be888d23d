"""Draw time to accuracy over rate, a panel for each delay, from a grid's JSON: needs matplotlib.

``python benchmarks/draw_grid.py GRID.json docs/images/grid.svg``, of `grid/page.py --json`
"""

import json
import statistics
import sys
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt

from pliant.spec.units import parse_rate, parse_time

STYLES = {
    "ddp": ("DDP, 32 bits", "#888888", ":"),
    "ddp-bf16": ("DDP, 16 bits", "#000000", ":"),
    "qsgd4": ("qsgd, 4 bits", "#4c78a8", "-"),
    "powersgd": ("powersgd", "#54a24b", "-"),
    "choco": ("choco", "#72b7b2", "-"),
    "dcd": ("dcd", "#b279a2", "-"),
    "local_sgd": ("local_sgd", "#f58518", "-"),
    "diloco(averaging=int4)": ("diloco, 4 bits", "#e45756", "--"),
}


def main(source: str, target: str) -> None:
    mpl.rcParams["svg.hashsalt"] = "pliant"  # the same figure gives the same file
    result = json.loads(Path(source).read_text())
    steps = {arm: found["steps"] for arm, found in result["trained"].items()}
    cells = [r for r in result["records"] if r["kind"] == "cell" and not r["slow_share"]]
    delays = sorted({r["delay"] for r in cells}, key=parse_time)
    figure, panels = plt.subplots(1, len(delays), figsize=(11, 3.8), sharey=True, layout="constrained")
    for delay, panel in zip(delays, panels, strict=True):
        mine = sorted((r for r in cells if r["delay"] == delay), key=lambda r: parse_rate(r["rate"]))
        rates = [parse_rate(r["rate"]) * 8e-6 for r in mine]
        for arm, (label, colour, line) in STYLES.items():
            times = [statistics.median(r["arms"][arm]["step_s"]) * steps[arm] for r in mine]
            panel.loglog(rates, times, line, color=colour, label=label, marker=".")
        panel.set(title=f"{delay} extra delay", xlabel="Mbit/s of each host")
    panels[0].set_ylabel("s to 85 %")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(target, metadata={"Date": None})


if __name__ == "__main__":
    main(*sys.argv[1:])
