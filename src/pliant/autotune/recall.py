"""Experience of earlier runs, as a run uses it: found before its first step, and written after a search."""

import json
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from torch import nn
from torch.optim import Optimizer

from pliant.autotune.coordination import holds_on_all
from pliant.autotune.experience_store import ExperienceStore, setup_of
from pliant.autotune.options import Auto
from pliant.comm.base import Comm
from pliant.comm.text_broadcast import broadcast_text
from pliant.engine.joint_optimizer import optimizer_name
from pliant.engine.relaxed_model import module_of
from pliant.netmodel import Overheads
from pliant.network.rank_places import ranks_of_hosts
from pliant.planner import OWN_EXCHANGE, Genome, Quality, Scale, SearchResult
from pliant.planner.experience import Experience
from pliant.spec import Topology, Workload, from_json, to_json

__all__ = ["Conditions", "Recalled", "recall"]

_log = logging.getLogger("pliant")


@dataclass(frozen=True)
class Conditions:
    """Conditions of a search: what was trained on what."""

    workload: Workload
    topology: Topology
    overheads: Overheads
    bytes_per_s: float = 0.0
    """Rate of the watched steps' own messages; 0 if it is not known."""
    base_s: float = 0.0
    """Step time under torch's own exchange; 0 if it is not known."""
    knows_links: bool = True
    """Whether all links were measured; else the topology is of a first look at hosts that are not even."""


class Recalled:
    """Experience that an earlier run has left, and that this one leaves.

    Args:
        store: Files of experience, on the first rank; None elsewhere, and where nothing is kept.
        experience: What was found, on the first rank.
        known: Conditions of an experience of these ranks and machines, on all ranks, whose plan may be put in force at
            once; None without one.

    """

    def __init__(
        self,
        store: ExperienceStore | None = None,
        experience: Experience | None = None,
        known: Conditions | None = None,
    ) -> None:
        self._store, self.experience, self.known = store, experience, known
        self._last: Experience | None = None

    @property
    def notes(self) -> Sequence[str]:
        """Sentences on the origin of the experience, and on what was refused; on the first rank."""
        return () if self._store is None else tuple(self._store.notes)

    def note(self, sentence: str) -> None:
        """Add a sentence to the notes."""
        if self._store is not None:
            self._store.notes.append(sentence)

    def write(
        self,
        found: SearchResult,
        kept: Genome,
        kept_s: float,
        conditions: Conditions,
        coefficients: Sequence[float],
        quality: Quality,
        *,
        complete: bool,
    ) -> None:
        """Write what a search has found, on the first rank, if it has predicted what it tried.

        Args:
            found: Its trials, with what was predicted of them.
            kept: Plan that is in force, or the best so far.
            kept_s: Its step time; NaN if it is not known.
            conditions: Of the search.
            coefficients: Fitted to the trials.
            quality: Knows the ratios of steps.
            complete: Whether the search has come to its end.

        """
        if self._store is None or not found.predicted_s:
            return
        self._last = Experience(
            setup=self._store.setup,
            workload=conditions.workload,
            topology=conditions.topology,
            overheads=conditions.overheads,
            coefficients=tuple(coefficients),
            trials=found.trials,
            predicted_s=found.predicted_s,
            ratios=tuple(quality.factor(trial.genes) for trial in found.trials),
            kept=kept,
            kept_s=0.0 if math.isnan(kept_s) else kept_s,
            bytes_per_s=conditions.bytes_per_s,
            written=datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
            complete=complete,
            knows_links=conditions.knows_links,
        )
        self._store.write(self._last)

    def give_up(self, exact: Genome, why: str) -> None:
        """Write that the kept plan was given up for torch's own exchange, on the first rank."""
        if self._store is not None and self._last is not None:
            self._last = replace(self._last, kept=exact, kept_s=0.0, refused=(*self._last.refused, why))
            self._store.write(self._last)


def recall(
    model: nn.Module,
    optimizer: Optimizer,
    auto: Auto,
    comm: Comm,
    num_shards: int = 0,
    hosts: Sequence[Sequence[int]] | None = None,
) -> Recalled:
    """Look for experience of this training. Collective: the first rank reads, and tells the others what it found.

    The plan of an earlier run may be put in force at once if shapes, types, shards, optimizer, hosts, ranks of each and
    quality are the same. All ranks must have them, the plan's step time must be known, and this run must be allowed it.

    Args:
        model: With or without wrappers.
        optimizer: Of the model.
        auto: Options.
        comm: Ranks of the run.
        num_shards: Ranks among which parameters are divided; 0 for a whole model.
        hosts: Ranks of each host; those of each machine if None.

    """
    if auto.experience is None:
        return Recalled()
    names, places = ranks_of_hosts(comm, hosts, in_order=False)
    kind = optimizer_name(optimizer)
    setup = setup_of(module_of(model), kind, auto.quality, names, [len(place) for place in places], num_shards)
    if not holds_on_all(comm, broadcast_text(setup.file_name, comm) == setup.file_name):
        if comm.rank == 0:
            _log.warning("auto: no experience is used, since ranks have other parameters or optimizers.")
        return Recalled()
    store, experience, text = None, None, ""
    if comm.rank == 0:
        store = ExperienceStore(auto.experience, setup)
        experience, is_ours = store.find()
        if experience is not None and is_ours:
            text = _told(experience, auto, kind, store)
    text = broadcast_text(text, comm)
    if not text:
        return Recalled(store, experience)
    workload, topology, overheads, *figures = json.loads(text)
    known = from_json(Workload, workload), from_json(Topology, topology), from_json(Overheads, overheads)
    return Recalled(store, experience, Conditions(*known, *figures))


def _told(found: Experience, auto: Auto, optimizer: str, store: ExperienceStore) -> str:
    """Return what all ranks need to know of an experience; "" if its plan cannot be put in force at once."""
    quality = auto.quality_with(optimizer, Scale.of(found.workload, found.topology))
    if not found.kept_s or not all(map(quality.admits, found.kept.genes)):
        store.notes.append("Its plan is not put in force at once: its time is not known, or this run may not take it.")
        return ""
    texts = to_json(found.workload), to_json(found.topology), to_json(found.overheads)
    base_s = found.step_s(OWN_EXCHANGE[found.workload.is_sharded])
    return json.dumps([*texts, found.bytes_per_s, base_s, found.knows_links])
