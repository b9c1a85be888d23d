"""Advice on the optimizer under a plan: learning rate, large-batch optimizers, and whether ranks should wait."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from pliant.planner.buffers import buffers_reason
from pliant.planner.risk import is_adaptive_name
from pliant.spec import Exchange, LocalSteps, SyncPlan, Topology, Workload

__all__ = ["Advice", "AppliedAdvice", "OptimizerLike", "advise", "apply"]

Rule = Literal["linear", "root", "none"]

_PLAIN = ("sgd", "lars")
_LARGE = {"linear": ("LARS", "arXiv:1708.03888"), "root": ("Lamb", "arXiv:1904.00962")}
_ASYNC_PAYS = 1.25
"""Times the steps from which on a free pace is advised: what 0.75 points of accuracy cost in steps (`topk`: 1.26)."""


@dataclass(frozen=True, kw_only=True)
class Advice:
    """Settings to change beside a plan, each with its reason. Only `apply` changes something: the learning rate."""

    lr_scale: float
    """Factor for the learning rate that was tuned for `tuned_for` samples a step."""
    tuned_for: int
    batch_size: int
    """Samples of one rank; 1 where the workload does not say, and then all figures are in batches of a rank."""
    lr_reason: str
    warm_up: bool
    """Whether to rise to the new rate from the old one, over the first epochs."""
    optimizer: str
    """Another optimizer that this batch asks for: 'LARS' or 'Lamb' of pytorch_optimizer; '' to keep what there is."""
    optimizer_reason: str
    pace: Literal["lockstep", "free"]
    """Whether ranks should wait for each other."""
    pace_reason: str
    buffers_reason: str = ""
    """Why DDP should not broadcast buffers; "" to let it."""

    @property
    def sentence(self) -> str:
        """The advice in one sentence, without reasons."""
        rate = "Keep the learning rate" if self.lr_scale == 1 else f"Multiply the learning rate by {self.lr_scale:.3g}"
        rise = ", after a warm-up" if self.warm_up else ""
        other = f"; consider {self.optimizer}" if self.optimizer else ""
        wait = "let ranks wait for each other" if self.pace == "lockstep" else "let no rank wait"
        wait += "; give DDP broadcast_buffers=False" if self.buffers_reason else ""
        return f"{rate} (tuned for {_amount(self.tuned_for, self.batch_size)} a step){rise}{other}; {wait}."

    @property
    def paragraph(self) -> str:
        """The advice with its reasons."""
        reasons = (self.lr_reason, self.optimizer_reason, self.pace_reason, self.buffers_reason)
        return " ".join(filter(None, (self.sentence, *reasons)))


def advise(
    workload: Workload,
    num_ranks: int,
    plan: SyncPlan,
    *,
    optimizer: str = "SGD",
    tuned_for: int = 0,
    topology: Topology | None = None,
    step_s: float = math.nan,
) -> Advice:
    """Return the changes of the optimizer, and of DDP, that a plan asks for.

    The rate that is best for a batch B is eps_max / (1 + B_noise / B) (McCandlish et al., arXiv:1812.06162, section
    2.2): linear in B up to about the noise scale, as in Goyal et al. (arXiv:1706.02677), and constant far beyond it.
    Optimizers that divide by the gradient's size get the root of that (Malladi et al., arXiv:2205.10287). Where weights
    are exchanged, a rate that was tuned for anything between one rank's batch and that of all ranks stays.

    Args:
        workload: Its batch_size, and noise_scale and rank_factors where they were measured.
        num_ranks: Ranks that train.
        plan: The exchange of most elements decides.
        optimizer: Name of its class, such as 'SGD', 'AdamW'. A name without a known rule keeps its rate.
        tuned_for: Samples a step for which the learning rate was tuned; 0 for those of one rank.
        topology: Hosts and links, over which DDP broadcasts buffers; None if it does not.
        step_s: Time of a step under the plan, in s.

    Raises:
        ValueError: There are no ranks, or a negative number of samples.

    """
    if num_ranks < 1 or tuned_for < 0:
        raise ValueError(
            f"advice was asked for {num_ranks} ranks and a rate tuned for {tuned_for} samples; give at least one rank, "
            "and 0 samples for those of one rank, or more."
        )
    node = _main_exchange(plan, workload)
    rule = _rule(optimizer)
    before = tuned_for or workload.batch_size
    own, together = workload.batch_size, workload.batch_size * num_ranks
    batch = max(own, min(before, together)) if node.exchanges_weights else together * node.timing.period
    scale, why = _rate(before, batch, node, rule, workload, optimizer)
    other, other_why = _other_optimizer(batch, node, rule, workload, optimizer)
    pace, pace_why = _pace(workload.rank_factors, num_ranks, node, rule)
    return Advice(
        lr_scale=scale,
        tuned_for=before,
        batch_size=own,
        lr_reason=why,
        warm_up=scale > 1,
        optimizer=other,
        optimizer_reason=other_why,
        pace=pace,
        pace_reason=pace_why,
        buffers_reason=buffers_reason(workload, plan, topology, step_s),
    )


class OptimizerLike(Protocol):
    """The part of an optimizer that `apply` needs; torch's have it."""

    param_groups: Any
    """A list of dicts, each with an 'lr'."""


class AppliedAdvice:
    """Result of `apply`: `undo` takes the factor back, whatever schedules have made of the rate since."""

    def __init__(self, groups: Sequence[Mapping[str, Any]], scale: float) -> None:
        self._groups, self._scale = tuple(groups), scale

    def undo(self) -> None:
        """Divide learning rates by the factor again; a second call does nothing."""
        _multiply(self._groups, 1 / self._scale)
        self._scale = 1.0


def apply(advice: Advice, optimizer: OptimizerLike) -> AppliedAdvice:
    """Multiply the learning rate of all groups by the advice's factor, at once: a warm-up is a schedule of torch's.

    With ``warm_up``, follow it by ``torch.optim.lr_scheduler.LinearLR(optimizer, 1 / advice.lr_scale, 1.0, steps)``.

    Args:
        advice: Of `advise`.
        optimizer: Any of torch's.

    Raises:
        ValueError: A schedule was made for the optimizer before: it would set the old rate again.

    """
    if any("initial_lr" in group for group in optimizer.param_groups):
        raise ValueError(
            "a learning rate was to be scaled under a schedule that remembers the old one; apply the advice first, and "
            "then make the schedule."
        )
    _multiply(optimizer.param_groups, advice.lr_scale)
    return AppliedAdvice(optimizer.param_groups, advice.lr_scale)


def _multiply(groups: Sequence[Mapping[str, Any]], factor: float) -> None:
    """Scale 'lr', and what schedules begin from; tensors in place, and once if groups share them."""
    seen: set[int] = set()
    for group in groups:
        for key in ("lr", "initial_lr"):
            rate = group.get(key)
            if isinstance(rate, (int, float)):
                group[key] = rate * factor  # pyright: ignore[reportIndexIssue]  an optimizer's groups are dicts
            elif rate is not None and id(rate) not in seen:
                seen.add(id(rate))
                rate.mul_(factor)


def _main_exchange(plan: SyncPlan, workload: Workload) -> Exchange:
    numel: dict[Exchange, int] = {}
    for tensor in workload.tensors:
        node = plan.exchange_for(tensor.name, tensor.layer, tensor.numel)
        numel[node] = numel.get(node, 0) + tensor.numel
    return max(numel, key=lambda node: numel[node])


def _rule(optimizer: str) -> Rule:
    name = optimizer.lower()
    if is_adaptive_name(optimizer):
        return "root"
    return "linear" if any(word in name for word in _PLAIN) else "none"


def _amount(count: float, batch_size: int) -> str:
    if batch_size > 1:
        return f"{count:.4g} samples"
    return "one rank's batch" if count == 1 else f"{count:.4g} ranks' batches"


def _rate(before: int, batch: int, node: Exchange, rule: Rule, workload: Workload, optimizer: str) -> tuple[float, str]:
    """Return the factor of the learning rate, and why."""
    noise, now, then = (workload.noise_scale, *(_amount(b, workload.batch_size) for b in (batch, before)))
    if rule == "none":
        return 1.0, f"No rule is known for {optimizer} when the batch changes; try its rate at {now}."
    gain = batch / before if noise is None else (1 + noise / before) / (1 + noise / batch)
    scale = gain if rule == "linear" else math.sqrt(gain)
    law = "in proportion to" if rule == "linear" else "with the root of"
    paper = "Goyal et al., arXiv:1706.02677" if rule == "linear" else "Malladi et al., arXiv:2205.10287"
    why = f"An update takes {now} instead of {then}; {optimizer}'s rate changes {law} the batch ({paper})"
    if batch == before:
        why = "The rate stays" if node.exchanges_weights else f"The rate was tuned for {now}, as many as there are"
    elif noise is None:
        why += ", as far as that goes: the noise scale, which bounds it, was not measured"
    else:
        why += (
            f", but hardly beyond the noise scale, {_amount(noise, workload.batch_size)} as measured, which grows as "
            f"the loss falls: eps_max / (1 + B_noise / B) becomes {gain:.3g} times what it was (McCandlish et al., "
            "arXiv:1812.06162)"
        )
    timing = node.timing
    late = node.staleness_bound or (0 if node.exchanges_weights else timing.delay_steps)
    if late:
        scale /= 1 + late
        why += f"; gradients are up to {late} steps late, so divide by {1 + late} (Zhang et al., arXiv:1511.05950)"
    if timing.period > 1 and not node.exchanges_weights and rule == "linear":
        scale /= timing.period
        why += f"; gradients of {timing.period} steps are added up, so divide by as many"
    if node.exchanges_weights:
        why += _of_weights(node, rule)
    return scale, f"{why}."


def _of_weights(node: Exchange, rule: Rule) -> str:
    """Return what to know where weights are exchanged: each rank steps on its own samples."""
    why = ": each rank steps on its own, and a later average does not mend a rate that one rank's batch cannot bear"
    if node.averages_in_host:
        why += " (a host's ranks average gradients, so it may be as many times the rate)"
    outer = node.core.outer if isinstance(node.core, LocalSteps) else None
    if outer is not None and outer.momentum:
        why += f"; the outer rate {outer.lr:g} and momentum {outer.momentum:g} need hundreds of exchanges"
    else:
        why += "; a higher one, up to the number of ranks times, is worth a try after a warm-up (arXiv:1808.07217)"
    if rule == "root":
        why += "; with Adam, on a small model and few steps, averages of weights ended 16 to 109 % worse in perplexity"
    return why


def _other_optimizer(batch: int, node: Exchange, rule: Rule, workload: Workload, optimizer: str) -> tuple[str, str]:
    """Return the optimizer that a batch beyond the noise scale asks for, and why."""
    noise = workload.noise_scale
    if noise is None or rule == "none" or node.exchanges_weights or batch <= noise:
        return "", ""
    name, paper = _LARGE[rule]
    few = f"{_amount(batch, workload.batch_size)} are beyond the noise scale: more of them hardly save steps"
    if name.lower() in optimizer.lower():
        return "", f"{few}."
    return name, (
        f"{few}, and rates must be larger than some layers bear; {name} gives each layer a rate in proportion to its "
        f"weights ({paper}): pytorch_optimizer.{name}(model.parameters(), lr=...), with a rate tuned anew."
    )


def _pace(
    factors: Sequence[float], num_ranks: int, node: Exchange, rule: Rule
) -> tuple[Literal["lockstep", "free"], str]:
    """Return whether ranks should wait, and why."""
    if node.timing.pace == "free":
        return "free", "Under this plan nobody waits, or only for who is too far behind."
    if len(factors) != num_ranks:
        return "lockstep", ""
    gain = max(factors) * sum(1 / factor for factor in factors) / num_ranks
    seen = f"The slowest rank takes {max(factors):.2f} times as long as the median one"
    if gain < _ASYNC_PAYS:
        return "lockstep", f"{seen}; without waiting, ranks would make only {gain:.2f} times the steps."
    cost = "it cost 0.27 points of accuracy where an average took 1.8 steps, 0.83 where it took 4.9 (350 steps of SGD)"
    if rule == "root":
        return "lockstep", (
            f"{seen}, but what lets it lag averages weights, which served Adam badly; give that rank smaller batches."
        )
    return "free", f"{seen}; under async_average nobody waits, which makes {gain:.2f} times the steps: {cost}."
