"""What was measured of layouts beside what the cost framework says of them."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from layout_data import clicks_of
from pliant_arms import hot_of
from scipy.stats import kendalltau

from pliant.cli.emulate import topology_from_flags
from pliant.cli.racks import split_into_racks
from pliant.netmodel import Links
from pliant.recsys.placement.cost import StepCost, step_cost
from pliant.recsys.placement.counted_traffic import count_traffic
from pliant.recsys.placement.rates import Rates, fit_rates
from pliant.recsys.placement.traffic import Traffic
from pliant.spec import EmbeddingPlan, Topology, from_json
from pliant.spec.units import format_bytes, format_time

Record = dict[str, Any]

_HEAD = ("rate", "layout", "measured", "lowest to highest", "predicted", "off by", "sent by the busiest rank", "bytes")
_NOTES = """\
- measured: median over the rounds of the slowest rank's step: lookup, gradients back, optimizer; no dense part.
- predicted: by rates that were fitted to the other half of the layouts (of each data set and rate, every other line).
- sent: what our recorder counted in whole periods, per step; bytes: "equal" if the framework's count from the same ids
  is the same for every rank, to the byte.
- tau: Kendall's, of the orders by measured and by predicted time; 1 if they are the same.
"""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A line, and what the framework says of its ids."""

    line: Record
    plan: EmbeddingPlan
    topology: Topology
    traffic: Sequence[Traffic]
    """Of each step that was counted."""

    @property
    def step_s(self) -> float:
        """Measured."""
        return statistics.median(r["step_s"] for r in self.line["rounds"])

    @property
    def sent_bytes(self) -> list[int]:
        """Of each rank, as the framework counts it in the counted steps."""
        return [round(x) for x in np.sum([t.sent_bytes(self.topology) for t in self.traffic], axis=0)]

    def cost(self, rates: Rates) -> tuple[float, np.ndarray, float]:
        """Return the predicted mean time of the steps, their features, and what links and delays are of it."""
        links = Links(self.topology, rates.overheads)
        costs: list[StepCost] = [step_cost(t, links, rates) for t in self.traffic]
        features = np.mean([c.features for c in costs], axis=0)
        return statistics.mean(c.total_s for c in costs), features, statistics.mean(c.wire_s for c in costs)


def topology_of(line: Record) -> Topology:
    """Return the network of a line."""
    flat = topology_from_flags(line["hosts"], line["rate"], line["delay"], [], line["ranks_per_host"], 0.0)
    return split_into_racks(flat, line["racks"], line["uplink"])


def seen(line: Record, cache: dict[str, Any]) -> Seen:
    """Count what a line's layout sends for the ids that it was measured on."""
    plan = from_json(EmbeddingPlan, line["plan"])
    clicks = clicks_of(line)
    key = f"{line['data']} {line['skew']} {line['seed']} {line['batch']} {plan.num_ranks}"
    if key not in cache:
        found = [
            [clicks.batch(k, rank, line["batch"]) for rank in range(plan.num_ranks)]
            for k in range(line["distinct_batches"])
        ]
        cache[key] = [[list(zip(b.ids, b.offsets, strict=True)) for b in ranks] for ranks in found]
    steps = [cache[key][k % len(cache[key])] for k in range(line["counted_steps"])]
    return Seen(
        line=line,
        plan=plan,
        topology=replace(topology_of(line), num_cpus=_num_cores(line)),
        traffic=count_traffic(plan, steps, hot_of(plan, clicks.frequencies())),
    )


def predicted(all_seen: Sequence[Seen], start: Rates) -> list[float]:
    """Return the time of each, by rates fitted to every other one of the rest."""
    halves = [all_seen[0::2], all_seen[1::2]]
    rates = [_fit(half, start) for half in halves]
    return [each.cost(rates[1 - k % 2])[0] for k, each in enumerate(all_seen)]


def _num_cores(line: Record) -> int:
    """Return how many cores the emulated hosts have shared: '2 cores, ...'."""
    return int(line["machine"].split()[0])


def _fit(half: Sequence[Seen], start: Rates) -> Rates:
    if not half:
        return start
    costs = [each.cost(start) for each in half]
    _, features, wire_s = zip(*costs, strict=True)
    return fit_rates(features, wire_s, [each.step_s for each in half], start)


def fitted_to(lines: Sequence[Record]) -> Rates:
    """Return rates of the machine that explain all lines best."""
    cache: dict[str, Any] = {}
    return _fit([seen(line, cache) for line in lines], Rates())


def markdown(lines: Sequence[Record]) -> str:
    """Return a table for each data set, with how far predictions are off."""
    cache: dict[str, Any] = {}
    text: list[str] = []
    groups: dict[str, list[Record]] = {}
    for line in lines:
        where = f"{line['hosts']} hosts" + (f" of {line['ranks_per_host']} ranks" if line["ranks_per_host"] > 1 else "")
        racks = f" in {line['racks']} racks, {line['uplink']} between them" if line["racks"] else ""
        groups.setdefault(f"{line['data']}, {where}{racks}", []).append(line)
    for data, its in groups.items():
        all_seen = [seen(line, cache) for line in its]
        text += _group(data, all_seen, predicted(all_seen, Rates()))
    if lines:
        last = lines[-1]
        text += [f"`{last['command']}`, {last['machine']}, load before {last['load_before']:.1f}, {last['time']}", ""]
    return "\n".join([*text, _NOTES])


def _group(data: str, all_seen: Sequence[Seen], predicted_s: Sequence[float]) -> list[str]:
    off = [p / s.step_s - 1 for s, p in zip(all_seen, predicted_s, strict=True)]
    equal = sum(_same_bytes(s) for s in all_seen)
    rates = list(dict.fromkeys(s.line["rate"] for s in all_seen))
    both = [[(s.step_s, p) for s, p in zip(all_seen, predicted_s, strict=True) if s.line["rate"] == r] for r in rates]
    taus = {rate: float(kendalltau(*zip(*its, strict=True)).statistic) for rate, its in zip(rates, both, strict=True)}
    wrong = {
        rate: s.line["links_wrong"]
        for rate in rates
        for s in all_seen
        if s.line["rate"] == rate and s.line["links_wrong"]
    }
    lines = [
        f"**{data}**: {len(all_seen)} layouts and rates; bytes equal in {equal}; times within 15 % in "
        f"{sum(abs(x) <= 0.15 for x in off)}, median {statistics.median(map(abs, off)):.1%} off, most "
        f"{max(map(abs, off)):.0%}; tau {', '.join(f'{tau:.3f} at {rate}' for rate, tau in taus.items())}",
        "",
        *[f"Links at {rate} were not what was asked for: {'; '.join(words)}." for rate, words in wrong.items()],
        _line(_HEAD),
        _line(["---"] * len(_HEAD)),
    ]
    lines += [_line(_row(s, p)) for s, p in zip(all_seen, predicted_s, strict=True)]
    return [*lines, ""]


def _row(s: Seen, predicted_s: float) -> list[str]:
    steps = [r["step_s"] for r in s.line["rounds"]]
    return [
        s.line["rate"],
        s.line["layout"],
        format_time(s.step_s),
        f"{format_time(min(steps))} to {format_time(max(steps))}",
        format_time(predicted_s),
        f"{predicted_s / s.step_s - 1:+.0%}",
        format_bytes(max(s.line["counted_bytes"]) / s.line["counted_steps"]),
        "equal" if _same_bytes(s) else f"framework {format_bytes(max(s.sent_bytes) / s.line['counted_steps'])}",
    ]


def _same_bytes(s: Seen) -> bool:
    return s.sent_bytes == [round(x) for x in s.line["counted_bytes"]]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
