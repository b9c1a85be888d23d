"""Draw the sensitivity of each layer over time, as it was felt while training: needs matplotlib.

``python benchmarks/tasc/draw_sensitivity.py benchmarks/results/ranks_2core_2026-11-21.json sensitivity.svg``, of what
rank_correlation.py wrote.
"""

import json
import sys
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt


def main(source: str, target: str) -> None:
    mpl.rcParams["svg.hashsalt"] = "pliant"  # the same figure gives the same file
    found = json.loads(Path(source).read_text())
    figure, panels = plt.subplots(1, len(found), figsize=(4.2 * len(found), 4.4), layout="constrained", squeeze=False)
    for (model, own), panel in zip(found.items(), panels[0], strict=True):
        steps = [look["step"] for look in own["history"]]
        names = [name for name in own["history"][0] if name != "step"]
        colours = plt.get_cmap("viridis")
        for k, name in enumerate(names):
            means = [look[name] for look in own["history"]]
            label = name if len(names) <= 12 or k in (0, len(names) // 2, len(names) - 1) else None
            panel.semilogy(steps, means, color=colours(0.92 * k / max(1, len(names) - 1)), label=label, linewidth=1.2)
        panel.set(title=f"{model}: {len(names)} layers, first to last", xlabel="step")
        panel.legend(fontsize=7, frameon=False)
    panels[0][0].set_ylabel("mean of the Hessian's diagonal, as felt")
    figure.savefig(target, metadata={"Date": None})


if __name__ == "__main__":
    main(*sys.argv[1:])
