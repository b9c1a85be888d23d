"""Measured beside predicted quantities. Pure."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from pliant.cli.report.steps import BucketTimes, Step, buckets_of, steps_of
from pliant.simulator import Simulated
from pliant.spec import SyncPlan, Timeline, Topology
from pliant.spec.units import format_bytes, format_time

__all__ = [
    "QUANTITIES",
    "Measured",
    "Quantity",
    "Table",
    "bucket_table",
    "check",
    "check_prediction",
    "comparison",
    "measured_of",
    "predicted_buckets",
    "predicted_value",
]

Table = tuple[tuple[str, ...], list[tuple[str, ...]]]
"""(head, rows)."""


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """Something of a step that is both measured and predicted."""

    key: str
    name: str
    is_time: bool = True

    def text(self, value: float | None) -> str:
        """Return it as people write it."""
        if value is None:
            return ""
        return format_time(value) if self.is_time else format_bytes(value)


QUANTITIES = (
    Quantity(key="step_s", name="step"),
    Quantity(key="compute_s", name="compute"),
    Quantity(key="exposed_s", name="exposed"),
    Quantity(key="exchange_s", name="exchange"),
    Quantity(key="codec_s", name="coding"),
    Quantity(key="sent_bytes", name="sent", is_time=False),
)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The timelines of a run's ranks, step by step."""

    timelines: tuple[Timeline, ...]
    """One a rank, the lowest rank first."""
    steps: tuple[tuple[Step, ...], ...]
    """Of each: whole periods of the plan."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """Whose timelines these are."""
        return tuple(steps[0].rank for steps in self.steps)

    def means(self) -> dict[str, float]:
        """Return each of QUANTITIES of a step: means over steps and ranks, and the bytes of the busiest rank."""
        everything = [step for mine in self.steps for step in mine]
        found = {q.key: statistics.fmean(_value(step, q.key) for step in everything) for q in QUANTITIES}
        found["sent_bytes"] = max(statistics.fmean(step.sent_bytes for step in mine) for mine in self.steps)
        return found

    def buckets(self) -> list[BucketTimes]:
        """Return what the first rank's buckets come to."""
        return buckets_of(self.timelines[0], self.steps[0])


def measured_of(timelines: Sequence[Timeline], period: int) -> Measured:
    """Return the steps of all ranks, as many of the last ones as are whole periods of the plan.

    Raises:
        ValueError: There are fewer steps than one period has.

    """
    all_steps = [steps_of(timeline, timeline.events[0].rank) for timeline in timelines]
    num = min(len(steps) for steps in all_steps)
    if num < period:
        raise ValueError(
            f"the timelines have {num} steps, but the plan repeats after {period}, so a mean over them says nothing of "
            f"it; record at least that many: pliant.profile(run, folder, steps={period})."
        )
    whole = num - num % period
    return Measured(timelines=tuple(timelines), steps=tuple(tuple(steps[-whole:]) for steps in all_steps))


def check(timelines: Sequence[Timeline], names: Sequence[str]) -> None:
    """Raise ValueError if these are not the timelines of one run, one of each rank; names say where each is from."""
    seen: dict[int, str] = {}
    for timeline, name in zip(timelines, names, strict=True):
        ranks = {event.rank for event in timeline.events}
        if len(ranks) != 1:
            raise ValueError(
                f"{name} holds events of {len(ranks)} ranks, but pliant.profile writes one file for each rank; give "
                "files that it has written."
            )
        rank = ranks.pop()
        if rank in seen:
            raise ValueError(f"{seen[rank]} and {name} are both of rank {rank}; give one file of each rank of one run.")
        seen[rank] = name
        first = timelines[0]
        if (timeline.plan, timeline.num_ranks) != (first.plan, first.num_ranks):
            raise ValueError(
                f"{names[0]} is of the plan {first.plan or '(unknown)'} on {first.num_ranks} ranks and {name} of "
                f"{timeline.plan or '(unknown)'} on {timeline.num_ranks}; give the files of one recording."
            )


def check_prediction(timeline: Timeline, name: str, plan: SyncPlan, topology: Topology) -> None:
    """Raise ValueError if what is predicted is not what was measured: another plan, or another number of ranks."""
    if timeline.plan != plan.hash:
        raise ValueError(
            f"{name} was recorded under the plan {timeline.plan or '(unknown)'}, but the one to predict, "
            f"{plan.name or 'without a name'}, is {plan.hash}; give the plan that the run had (run.plan)."
        )
    if timeline.num_ranks != topology.num_ranks:
        raise ValueError(
            f"{name} was recorded by one of {timeline.num_ranks} ranks, but the topology to predict on has "
            f"{topology.num_ranks}; give the topology that the run had."
        )


def comparison(measured: Measured, predicted: Simulated | None) -> Table:
    """Return a row for each of QUANTITIES: measured, and if there is one, predicted, and how far that is off."""
    means = measured.means()
    if predicted is None:
        return ("of a step", "measured"), [(q.name, q.text(means[q.key])) for q in QUANTITIES]
    rows: list[tuple[str, ...]] = []
    for quantity in QUANTITIES:
        found, said = means[quantity.key], predicted_value(predicted, quantity.key, measured.ranks)
        error = f"{said / found - 1:+.0%}" if found > 0 else ""
        rows.append((quantity.name, quantity.text(found), quantity.text(said), error))
    return ("of a step", "measured", "predicted", "error"), rows


def predicted_value(predicted: Simulated, key: str, ranks: Sequence[int]) -> float:
    """Return one of QUANTITIES of a simulated step; bytes are those of the busiest of these ranks."""
    return max(predicted.sent_bytes[rank] for rank in ranks) if key == "sent_bytes" else float(getattr(predicted, key))


def predicted_buckets(predicted: Simulated) -> list[BucketTimes]:
    """Return what the first rank's buckets are predicted to come to."""
    return buckets_of(predicted.timeline, steps_of(predicted.timeline, 0)[-predicted.period :])


def bucket_table(measured: Sequence[BucketTimes], predicted: Sequence[BucketTimes] | None) -> Table:
    """Return a row for each bucket; behind each figure, if there is a prediction, what was predicted."""
    said = {bucket.name: bucket for bucket in predicted or ()}
    names = list(dict.fromkeys([*(bucket.name for bucket in measured), *said]))
    found = {bucket.name: bucket for bucket in measured}
    quantities = [q for q in QUANTITIES if q.key in ("exchange_s", "codec_s", "exposed_s", "sent_bytes")]
    head: list[str] = ["bucket"]
    for quantity in quantities:
        head += [quantity.name] if predicted is None else [quantity.name, "predicted"]
    rows: list[tuple[str, ...]] = []
    for name in names:
        cells = [name]
        for quantity in quantities:
            sides = (found,) if predicted is None else (found, said)
            cells += [quantity.text(getattr(side[name], quantity.key) if name in side else None) for side in sides]
        rows.append(tuple(cells))
    return tuple(head), rows


def _value(step: Step, key: str) -> float:
    return step.seconds if key == "step_s" else float(getattr(step, key))
