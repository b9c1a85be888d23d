"""Experience of earlier runs, as a run uses it: found before its first step, and written after a search."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from pliant.autotune.experience_store import ExperienceStore, setup_of
from pliant.autotune.options import Auto
from pliant.autotune.trials import TunableRun
from pliant.comm.base import Comm
from pliant.comm.text_broadcast import broadcast_text
from pliant.engine.joint_optimizer import optimizer_name
from pliant.engine.relaxed_model import module_of
from pliant.netmodel import Overheads
from pliant.network.rank_places import ranks_of_hosts
from pliant.planner import Genome, Quality, SearchResult
from pliant.planner.experience import Experience
from pliant.spec import Topology, Workload, from_json, to_json

__all__ = ["Conditions", "Recalled", "recall"]


@dataclass(frozen=True)
class Conditions:
    """Conditions of a search: what was trained on what."""

    workload: Workload
    topology: Topology
    overheads: Overheads
    bytes_per_s: float = 0.0
    """Rate of the watched steps' own messages; 0 if it is not known."""


class Recalled:
    """Experience that an earlier run has left, and that this one leaves.

    Args:
        store: Files of experience, on the first rank; None elsewhere, and where nothing is kept.
        experience: What was found, on the first rank.
        links: Topology, overheads and rate of the messages in an experience of these ranks and machines, on all ranks;
            None without one.

    """

    def __init__(
        self,
        store: ExperienceStore | None = None,
        experience: Experience | None = None,
        links: tuple[Topology, Overheads, float] | None = None,
    ) -> None:
        self._store, self.experience, self.links = store, experience, links
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
        )
        self._store.write(self._last)

    def give_up(self, exact: Genome, why: str) -> None:
        """Write that the kept plan was given up for torch's own exchange, on the first rank."""
        if self._store is not None and self._last is not None:
            self._last = replace(self._last, kept=exact, kept_s=0.0, refused=(*self._last.refused, why))
            self._store.write(self._last)


def recall(run: TunableRun, auto: Auto, comm: Comm) -> Recalled:
    """Look for experience of this training. Collective: the first rank reads, and tells the others what it found."""
    if auto.experience is None:
        return Recalled()
    names, places = ranks_of_hosts(comm, None, in_order=False)
    store, experience, text = None, None, ""
    if comm.rank == 0:
        setup = setup_of(
            module_of(run.model), optimizer_name(run.optimizer), auto.quality, names, [len(p) for p in places]
        )
        store = ExperienceStore(auto.experience, setup)
        experience, is_ours = store.find()
        if experience is not None and is_ours:
            links = to_json(experience.topology), to_json(experience.overheads), experience.bytes_per_s
            text = json.dumps(links)
    text = broadcast_text(text, comm)
    if not text:
        return Recalled(store, experience)
    topology, overheads, bytes_per_s = json.loads(text)
    return Recalled(store, experience, (from_json(Topology, topology), from_json(Overheads, overheads), bytes_per_s))
