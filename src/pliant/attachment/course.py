"""Course of a training under `pliant run`: plain steps, a search, and the steps after the decision."""

import atexit
import contextlib
import json
import os
import statistics
import time
from collections import deque
from collections.abc import Generator
from itertools import pairwise
from pathlib import Path
from typing import cast

import torch.distributed as dist
from torch import nn
from torch.distributed import ProcessGroup
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from pliant.attachment.choices import PlanChoice, auto_of, recall_for
from pliant.attachment.paste import line_for
from pliant.attachment.verdict import OTHER_RANK_FILE, RunOptions, RunVerdict
from pliant.attachment.wrapped import parameters_of
from pliant.autotune.recall import Recalled
from pliant.comm.ballot import collect_votes
from pliant.engine.ddp_hook import has_other_hook
from pliant.engine.joint_optimizer import optimizer_name
from pliant.engine.relaxed_model import RelaxedModel, claim, release, unwrap
from pliant.engine.stats import RunStats
from pliant.profiling.observe import Observation, observe
from pliant.spec import SyncPlan, to_json

__all__ = ["Course"]

_TIMED, _WARM_UP = 5, 2
"""Plain steps that are timed, and those before them that are not."""
_VOTE_S = 60.0
"""Time in which all ranks must come to the vote: one without Pliant never does."""
_SAVE_EVERY_S = 1.0
_LEAST_AFTER = 3
"""Steps after the decision from which on their median is the step time."""
_REMEMBERED = 1024
"""Steps of which that median is, the last ones: it is taken again and again for as long as the script trains."""

_BLIND = (
    "Pliant could not see when backward begins, since the model's output has no tensor that it finds (in lists, dicts "
    "and dataclasses); call pliant.relax() in the script."
)


class Course:
    """Course of one training, on one rank.

    Args:
        models: Wrapped models that the optimizers step.
        optimizers: Optimizers of a round, in their order.
        options: As the user gave them.
        folder: Folder of this run.

    """

    def __init__(self, models: list[nn.Module], optimizers: list[Optimizer], options: RunOptions, folder: Path) -> None:
        self._models, self._options, self._folder = models, options, folder
        self.optimizers = [each for each in optimizers if self._holds(each)]
        """Those that hold parameters of the wrapped models."""
        self._verdict = RunVerdict(
            quality=options.quality, optimizer=" and ".join(type(o).__name__ for o in optimizers)
        )
        self._ends_s: deque[float] = deque(maxlen=_REMEMBERED + 1)
        """When the last steps of the present phase have ended."""
        self._steps_before = 0  # that phase
        self._saved_s = 0.0
        self._pid = os.getpid()
        self._choice: PlanChoice | None = None
        self._plan: SyncPlan | None = None
        self._before: RunStats | None = None
        """Cost of the run when the plan came into force."""
        group = self._group()
        self._rank = 0 if group is None else group.rank()
        if self._rank:
            (folder / OTHER_RANK_FILE).touch()

    def steps(self) -> Generator[None]:
        """Go through the course; each `yield` is the end of a step."""
        atexit.register(self._save_at_exit)
        held, reason = self._look()
        if held is not None:
            self._describe(held)
        reason = self._agree("run", reason)
        if held is not None and not reason:
            recalled = self._recall(held)
            observation = None if recalled.known is not None else (yield from self._measure(held))
            reason = "" if observation is None else self._agree("backward", _BLIND if observation.blind else "")
            if not reason:
                yield from self._choose(held, observation, recalled)
                return
            if observation is not None:
                observation.close()
        self._verdict.reason = reason
        yield from self._go_on()

    # - What is known, and plain steps

    def _look(self) -> tuple[RelaxedModel | None, str]:
        """Return the model with its optimizers, or None and why Pliant leaves it alone. No communication."""
        if len(self._models) > 1:
            names = " and ".join(sorted({type(_inner(model)).__name__ for model in self._models}))
            return None, (
                f"The script steps {len(self._models)} wrapped models ({names}), and pliant run attaches itself to "
                "one; call pliant.relax() for each in the script."
            )
        try:
            held = unwrap(self._models[0], self.optimizers)
            claim(held)  # which the script's own run would refuse
            release(held)
        except (TypeError, ValueError, RuntimeError) as error:
            return None, f"Pliant cannot take the model: {error}"
        if held.ddp is not None and has_other_hook(held.ddp):
            return None, (
                "The model has a communication hook of the script, and Pliant needs that place; leave out "
                "register_comm_hook() to see what Pliant would do."
            )
        size = 1 if (group := self._group()) is None else group.size()
        if size == 1:
            return None, "The model is trained by one rank, so nothing is exchanged; start more ranks."
        return held, ""

    def _recall(self, held: RelaxedModel) -> Recalled:
        """Return what earlier runs have left of this training. Collective."""
        group = self._group()
        return Recalled() if group is None else recall_for(held, auto_of(self._options), group)

    def _measure(self, held: RelaxedModel) -> Generator[None, None, Observation]:
        last = self.optimizers[-1]
        observation = observe(held.called, last, steps=_TIMED, warmup_steps=_WARM_UP, gradient_steps=0)
        self._mark()
        while len(self._ends_s) <= _WARM_UP + _TIMED or not observation.done:
            yield
            self._mark()
        self._verdict.baseline_step_s = self._median_s(_WARM_UP)
        return observation

    def _agree(self, name: str, reason: str) -> str:
        """Return the first rank's reason to leave the training alone, the same on all ranks; "" without any."""
        group = self._group()
        votes = [reason] if group is None else collect_votes(group, name, reason, _VOTE_S)
        if votes is None:
            return (
                f"Some ranks did not come to the vote within {_VOTE_S:.0f} s; start every rank under pliant run, and "
                "let all ranks step the same model."
            )
        return next((vote for vote in votes if vote), "")

    def _describe(self, held: RelaxedModel) -> None:
        verdict, group = self._verdict, self._group()
        verdict.how = "DDP" if held.sharded is None else "FSDP2"
        verdict.optimizer = optimizer_name(held.optimizer)
        verdict.num_ranks = group.size() if group is not None else 1
        num_bytes = sum(p.numel() * p.element_size() for p in held.module.parameters() if p.requires_grad)
        parts = 2 if held.sharded is None else 3  # an all-reduce is two; FSDP2 gathers twice and scatters once
        verdict.baseline_sent_bytes = parts * num_bytes * (verdict.num_ranks - 1) / verdict.num_ranks

    # - The search

    def _choose(self, held: RelaxedModel, observation: Observation | None, recalled: Recalled) -> Generator[None]:
        verdict, start_s, first = self._verdict, time.perf_counter(), self._verdict.num_steps
        try:
            choice = PlanChoice(held, auto_of(self._options), observation, recalled)
        except ValueError as error:  # on all ranks alike: the backend, or a model that no plan fits
            if observation is not None:
                observation.close()
            verdict.reason = f"Pliant cannot relax this training: {error}"
            yield from self._go_on()
            return
        while (chosen := choice.chosen()) is None:
            verdict.explanation = choice.explanation
            verdict.search_s, verdict.search_steps = time.perf_counter() - start_s, verdict.num_steps - first
            if time.perf_counter() - self._saved_s > _SAVE_EVERY_S:
                self._save()
            yield
            self._mark()
        verdict.explanation, verdict.decided = choice.explanation, True
        if observation is None:
            verdict.baseline_step_s, verdict.remembered = choice.base_s, choice.is_remembered
        verdict.frontier, verdict.frontier_text = chosen.frontier, chosen.frontier_text
        verdict.search_s, verdict.search_steps = time.perf_counter() - start_s, verdict.num_steps - first
        if chosen.plan is None:
            choice.close()
            verdict.reason = f"Pliant does not help here: {chosen.why}; {verdict.how} goes on alone."
            yield from self._go_on()
        else:
            self._adopt(choice, chosen.steps_ratio)
            yield from self._go_on(choice)

    def _adopt(self, choice: PlanChoice, steps_ratio: float) -> None:
        """Note the plan that is in force, and begin to measure it."""
        verdict, plan = self._verdict, choice.run.plan
        verdict.plan, verdict.plan_text, verdict.steps_ratio = json.loads(to_json(plan)), str(plan), steps_ratio
        verdict.line = line_for(plan, choice.run.optimizer, self._options.plan_file)
        self._plan, self._before = plan, choice.run.stats()
        self._begin_phase()

    def _note_given_up(self, choice: PlanChoice) -> None:
        """Note that the plan was given up for torch's own exchange, and begin to measure that."""
        verdict = self._verdict
        self._adopt(choice, 1.0)
        verdict.explanation = choice.explanation
        why = verdict.explanation.splitlines()[0]
        verdict.plan, verdict.line, verdict.reason = None, "", f"{verdict.how}'s own exchange is in force again. {why}"

    # - Steps after the decision

    def _go_on(self, choice: PlanChoice | None = None) -> Generator[None]:
        self._choice = choice
        self._begin_phase()
        self._save()
        while True:
            yield
            self._mark()
            if choice is not None and choice.run.plan is not self._plan:
                self._note_given_up(choice)
            if time.perf_counter() - self._saved_s > _SAVE_EVERY_S:
                self._note_after()
                self._save()

    def _note_after(self) -> None:
        verdict, steps = self._verdict, self._verdict.num_steps - self._steps_before
        if verdict.decided and steps >= _LEAST_AFTER:
            verdict.step_s = self._median_s(0)
        if self._choice is not None and self._before is not None and steps:
            now = self._choice.run.stats()
            verdict.waited_s = (now["exposed_s"] - self._before["exposed_s"]) / steps
            verdict.sent_bytes = (now["sent_bytes"] - self._before["sent_bytes"]) / steps

    # - Records

    def _holds(self, optimizer: Optimizer) -> bool:
        mine = {id(p) for model in self._models for p in model.parameters()}
        return not mine.isdisjoint(parameters_of([optimizer]))

    def _group(self) -> ProcessGroup | None:
        """Return the ranks that train the model; None without any."""
        model = self._models[0]
        if isinstance(model, DistributedDataParallel):
            return cast(ProcessGroup, model.process_group)
        return cast(ProcessGroup, dist.group.WORLD) if dist.is_initialized() else None

    def _begin_phase(self) -> None:
        self._ends_s.clear()
        self._ends_s.append(time.perf_counter())
        self._steps_before = self._verdict.num_steps

    def _mark(self) -> None:
        self._ends_s.append(time.perf_counter())
        self._verdict.num_steps += 1

    def _median_s(self, skipped: int) -> float | None:
        steps_s = [b - a for a, b in pairwise(self._ends_s)][skipped:]
        return statistics.median(steps_s) if steps_s else None

    def _save(self) -> None:
        if self._rank == 0:
            with contextlib.suppress(OSError):  # a full disk must not end the script, and the other ranks with it
                self._verdict.save(self._folder)
        self._saved_s = time.perf_counter()

    def _save_at_exit(self) -> None:
        if os.getpid() != self._pid or not self._folder.exists():
            return
        with contextlib.suppress(Exception):  # what has ended before us must not change the script's end
            self._note_after()
        self._save()


def _inner(model: nn.Module) -> nn.Module:
    return cast(nn.Module, model.module) if isinstance(model, DistributedDataParallel) else model
