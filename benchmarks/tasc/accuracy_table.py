"""Tables of paired runs: mean, deviation, and how much better than dense training, with a bootstrap interval."""

import random
import statistics
from collections.abc import Sequence

from accuracy_book import Record

from pliant_bench.harness.metric import METRICS, Metric

_RESAMPLES = 10_000
METRIC = {"images": METRICS["images"], "large": METRICS["images"], "language": METRICS["lm"]}


def interval(differences: Sequence[float], share: float = 0.95) -> tuple[float, float]:
    """Return the percentile bootstrap interval of a mean, from 10,000 resamples with a fixed seed."""
    rng = random.Random(0)
    num = len(differences)
    means = sorted(statistics.fmean(rng.choices(differences, k=num)) for _ in range(_RESAMPLES))
    cut = int(_RESAMPLES * (1 - share) / 2)
    return means[cut], means[-1 - cut]


def table(records: Sequence[Record], dense: dict[tuple[str, str], float]) -> str:
    """Return a Markdown table for each task and optimizer.

    Args:
        records: Of finished runs.
        dense: (task, optimizer) -> bytes per step of a dense float32 all-reduce.

    """
    parts: list[str] = []
    for task, optimizer in dict.fromkeys((r["task"], r["optimizer"]) for r in records):
        mine = [r for r in records if (r["task"], r["optimizer"]) == (task, optimizer)]
        metric = METRIC[task]
        unit = "points" if metric.higher else "%"
        parts.append(
            f"### {task}, {optimizer}: {metric.name}\n\n"
            f"| arm | asked | bytes fewer | {metric.name} | deviation | seeds | to dense, {unit} | 95 % interval |\n"
            "|---|---|---|---|---|---|---|---|"
        )
        base = {r["seed"]: r["value"] for r in mine if r["arm"] == "dense" and r["value"] is not None}
        groups = dict.fromkeys((r["ratio"], r["arm"]) for r in mine)
        for ratio, arm in sorted(groups, key=lambda group: (group[0], list(groups).index(group))):
            runs = [r for r in mine if (r["ratio"], r["arm"]) == (ratio, arm)]
            parts.append(_row(arm, ratio, runs, base, metric, dense[task, optimizer]))
        parts.append("")
    return "\n".join(parts)


def _row(
    arm: str, ratio: int, runs: Sequence[Record], base: dict[int, float], metric: Metric, dense_bytes: float
) -> str:
    fewer = statistics.fmean(dense_bytes / r["sent_bytes"] for r in runs)
    ended = {r["seed"]: r["value"] for r in runs if r["value"] is not None}
    lost = f", {len(runs) - len(ended)} diverged" if len(ended) < len(runs) else ""
    head = f"| {arm} | {f'{ratio}x' if ratio > 2 else ''} | {fewer:.1f}x |"
    if not ended:
        return f"{head} | | {len(runs)}{lost} | | |"
    values = list(ended.values())
    deviation = statistics.stdev(values) if len(values) > 1 else None
    spread = "" if deviation is None else f"{100 * deviation:.2f}" if metric.higher else f"{deviation:.3f}"
    pairs = [metric.gap(value, base[seed]) for seed, value in ended.items() if seed in base]
    against = " | |"
    if pairs and arm != "dense":
        low, high = interval(pairs)
        between = f"{low:+.2f} to {high:+.2f}" if len(pairs) > 1 else ""  # one pair says nothing about another
        against = f" {statistics.fmean(pairs):+.2f} | {between} |"
    return f"{head} {metric.text(statistics.fmean(values))} | {spread} | {len(runs)}{lost} |{against}"
