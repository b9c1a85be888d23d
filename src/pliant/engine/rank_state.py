"""State of a run that belongs to this rank: written for a checkpoint, and read back."""

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pliant.buckets import real_shape
from pliant.comm.base import Comm
from pliant.engine.generators import load_generators, save_generators
from pliant.engine.optimizer_state import (
    check_optimizer_state,
    load_optimizer_state,
    optimizer_state,
    parameter_names,
)
from pliant.engine.plan_executor import PlanExecutor
from pliant.engine.rank_checks import gather_numbers, raise_together
from pliant.engine.relaxed_model import name_without_wrappers
from pliant.engine.same_structure import require_same_structure
from pliant.engine.saved_layout import SavedLayout, check_layout, layout_tensor, read_layout
from pliant.engine.shard_optimizer import as_local
from pliant.engine.step_counts import StepCounts, describe_difference, has_free_pace, plan_number
from pliant.spec import SyncPlan

__all__ = ["ResumePoint", "Saver"]


@dataclass(frozen=True, kw_only=True)
class ResumePoint:
    """Step, pass and layout from which a resumed run continues."""

    step: int
    num_backwards: int
    layout: SavedLayout | None
    unit: float
    """Loss scale of the kept gradients; 0 if a GradScaler was not seen."""


@dataclass(frozen=True, kw_only=True)
class Saver:
    """Writes and reads this rank's state, under the plan in force.

    Args:
        executor: Executor of the plan; nothing is in flight.
        plan: The plan.
        comm: Of the run.
        module: The model without its DDP.
        optimizer: Its optimizer.
        parameters: Name -> parameter, of those that are trained.

    """

    executor: PlanExecutor
    plan: SyncPlan
    comm: Comm
    module: nn.Module
    optimizer: Optimizer
    parameters: Mapping[str, Tensor]

    def write(
        self, layout: Mapping[int, Sequence[str]], *, step: int, num_backwards: int, unit: float = 0.0
    ) -> dict[str, Any]:
        """Return {'rank<i>': {...}} of tensors whose shapes depend only on the model, the optimizer and the ranks."""
        executor, owed = self.executor, self.executor.gradients.owed
        trained = {name_without_wrappers(name) for name, _ in self.module.named_parameters(remove_duplicate=False)}
        # Copies, since a loader may fill a checkpoint's own entry for the model, of one rank only, in place.
        model = {
            name: tensor.clone() for name, tensor in self._live.items() if executor.ranks_differ or name not in trained
        }
        numbers = [step, num_backwards, self.comm.size, plan_number(self.plan), len(owed)]
        own: dict[str, Any] = {
            "counters": torch.tensor(numbers, dtype=torch.int64),
            "layout": layout_tensor(layout, list(executor.gradients.store.tensors)),
            "slots": {name: dict(slots) for name, slots in executor.gradients.store.tensors.items() if slots},
            "model": model,  # buffers only where parameters are equal on all ranks
            "optimizer": optimizer_state(self.optimizer, self._named, self._kept, self.executor.owners.mine),
            "random": save_generators(self._device),
            "scale": torch.tensor(unit, dtype=torch.float64),  # of the loss, in which slots are
        }
        if owed:
            own |= {"owed": dict(owed)}
        own |= {part.key: part.state for part in executor.parts if part.key}
        own["counters"][-1] += _owed_by_shards(own)
        return {f"rank{self.comm.rank}": own}

    def read(self, state: Mapping[str, Any]) -> ResumePoint:
        """Put saved tensors where they belong. Collective.

        Raises:
            ValueError: On all ranks, before anything is changed, if they do not fit, or differ between ranks.

        """
        own, error, doing = cast("Mapping[str, Any]", {}), None, StepCounts()
        try:
            own = self._check(state)
            doing = self._counts_of(own)
        except ValueError as found:
            error = found
        except (AttributeError, KeyError, TypeError, RuntimeError) as found:
            error = ValueError(f"this is no state of a run ({type(found).__name__}: {found}); give state_dict()'s own.")
        raise_together(error, self.comm, self._device, kind=ValueError)
        if told := describe_difference(gather_numbers(doing.row(), self.comm, self._device)):
            raise ValueError(
                f"ranks would load states of different moments: {told}. Nothing was changed; load on all ranks what "
                "all of them saved after the same step."
            )
        return self._put(own)

    # - Before anything is changed

    def _check(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        own = state.get(f"rank{self.comm.rank}")
        if own is None:
            held = ", ".join(map(str, state)) or "nothing"
            raise ValueError(f"the state holds {held}, but this is rank {self.comm.rank}; load its own part.")
        wanted = self.write({}, step=0, num_backwards=0)[f"rank{self.comm.rank}"]
        wanted.pop("governor", None)  # a state made for more ranks from that of one has none
        wanted.pop("owed", None)
        if missing := [key for key in wanted if key not in own]:
            raise ValueError(_what_is_missing(missing, apart=self.executor.ranks_differ))
        require_same_structure(own["counters"], wanted["counters"], "counters")
        step, num_backwards, size, plan_hash, num_owed = own["counters"].tolist()
        if size != self.comm.size:
            raise ValueError(
                f"the state was saved by {size} ranks, this run has {self.comm.size}; residuals belong to ranks. "
                "Resume with as many, or let pliant.resize() make states for this number from those of all ranks."
            )
        if plan_hash != plan_number(self.plan):
            raise ValueError("the state was saved under another plan; relax() with that plan, load, then switch().")
        if min(step, num_backwards, num_owed) < 0:
            told = f"it counts {step} steps, {num_backwards} exchanges, {num_owed} debts"
            raise ValueError(f"the state is damaged: {told}.")
        if not 0 <= float(own["scale"]) < math.inf:
            raise ValueError(f"the state is damaged: it has a loss scale of {float(own['scale'])}.")
        if not own["random"]:
            wanted["random"] = {}
        optimizer = wanted.pop("optimizer")
        for part in (each for each in self.executor.parts if each.checks_structure):
            wanted.pop(part.key, None)
        require_same_structure({key: own[key] for key in wanted}, wanted, "")
        require_same_structure(own["optimizer"]["held"], optimizer["held"], "optimizer held")
        check_optimizer_state(
            self._of_this_rank(own), self.optimizer, self._here, self._kept, self.executor.owners.mine
        )
        check_layout(own["layout"])
        self._check_debts(own.get("owed", {}), num_owed, _owed_by_shards(own))
        for part in self.executor.parts:
            if part.key in own:
                part.check_state(own[part.key], step)
        return own

    def _check_debts(self, owed: Mapping[str, Tensor], count: int, of_shards: int) -> None:
        if not len(owed) <= count <= (found := len(owed) + of_shards):
            raise ValueError(
                f"the state holds {found} of {count} gradients that a switch of plans had left to be paid, so "
                "something is lost; make one step between switch() and saving, or save with run.save()."
            )
        for name, tensor in owed.items():
            if name not in self.parameters:
                raise ValueError(f"the state holds a debt for {name}, which is no parameter of the model.")
            like = torch.empty(real_shape(self.parameters[name]), dtype=torch.float32)
            require_same_structure(tensor, like, f"owed {name}")

    def _counts_of(self, own: Mapping[str, Any]) -> StepCounts:
        """Return the counts of this rank when it saved, which must be the same on all."""
        step, num_backwards, _, plan, _ = own["counters"].tolist()
        exchanges = int(own["weights"]["counters"][:, 1].sum()) if "weights" in own else 0
        nodes = self.executor.gradients.store.nodes
        held = parameter_names(self.optimizer, self.parameters)
        if has_free_pace([nodes[name] for name in held if name in nodes]):
            return StepCounts(exchanges=exchanges, plan=plan)
        layout = zlib.crc32(repr(own["layout"].tolist()).encode())
        return StepCounts(step=step, num_backwards=num_backwards, exchanges=exchanges, plan=plan, layout=layout)

    # - Afterwards

    @torch.no_grad()
    def _put(self, own: Mapping[str, Any]) -> ResumePoint:
        executor = self.executor
        tensors = executor.gradients.store.tensors
        for name, slots in own["slots"].items():
            for slot, saved in slots.items():
                tensors[name][slot].copy_(saved)
        executor.gradients.owed.clear()
        executor.gradients.owed.update({n: t.clone().to(self._device) for n, t in own.get("owed", {}).items()})
        live = self._live
        for name, saved in own["model"].items():
            live[name].copy_(saved)
        load_optimizer_state(self._of_this_rank(own), self.optimizer, self._here, self._kept, executor.owners.mine)
        for part in executor.parts:
            part.after_load()
            if part.key in own:
                part.state = own[part.key]
        load_generators(own["random"], self._device)
        step, num_backwards, *_ = own["counters"].tolist()
        layout = None if (found := read_layout(own["layout"], list(tensors))) is None else SavedLayout(buckets=found)
        return ResumePoint(step=step, num_backwards=num_backwards, layout=layout, unit=float(own["scale"]))

    @property
    def _live(self) -> dict[str, Tensor]:
        """The model's own tensors; of those that are divided among ranks this one's part."""
        tensors = ((n, value) for n, value in self.module.state_dict().items() if isinstance(value, Tensor))
        return {name_without_wrappers(n): as_local(value) for n, value in tensors}

    @property
    def _device(self) -> torch.device:
        return next(iter(self.parameters.values())).device

    def _of_this_rank(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """Return what was saved of the optimizer, without parameters of which this rank owns nothing."""
        here, saved = self._here, own["optimizer"]
        held = [count for name, count in zip(self._named, saved["held"].tolist(), strict=True) if name in here]
        return {**saved, "held": torch.tensor(held, dtype=torch.int64)}

    @property
    def _named(self) -> dict[str, Tensor]:
        """Return the parameters of the optimizer."""
        return parameter_names(self.optimizer, self.parameters)

    @property
    def _here(self) -> dict[str, Tensor]:
        """Return those of which the optimizer has a state on this rank."""
        others = self.executor.owners.names - self.executor.owners.mine.keys()
        return {n: p for n, p in self._named.items() if n not in others}

    @property
    def _kept(self) -> set[str]:
        """Return the parameters whose optimizer state is on this rank only."""
        return set(self._here) if self.executor.ranks_differ else set(self.executor.owners.mine)


def _owed_by_shards(own: Mapping[str, Any]) -> int:
    """Return how many groups of a sharded model hold gradients that a switch of plans has left."""
    return sum("owed" in kept for kept in own.get("shards", {"groups": {}})["groups"].values())


def _what_is_missing(missing: Sequence[str], *, apart: bool) -> str:
    told = f"the state lacks {', '.join(missing)}"
    if apart and "optimizer" in missing:
        told += ", and under a plan that exchanges weights each rank has an optimizer state of its own"
    return f"{told}: it was saved by an earlier Pliant, or in part; load what run.state_dict() returns, whole."
