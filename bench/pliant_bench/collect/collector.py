"""Beside the ranks: gives them their networks, keeps what they find, and starts them again where a plan has hung."""

import json
import os
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pliant.network import EmulatedCluster, LinkReport, RankResult
from pliant.network.changes import without_limits
from pliant.network.link_check import link_faults
from pliant.spec import save, to_json
from pliant_bench.collect.job import CHECK, Job, PlannedTrial, WorkloadCell, left_of, place_of
from pliant_bench.collect.journal import Journal
from pliant_bench.harness.grid import Reshaped
from pliant_bench.harness.local import LocalHosts
from pliant_bench.harness.setup import MARK, OPEN, answer

__all__ = ["Collector", "collect"]

_DRIFT = 0.1
_LAST_WORDS = 25


class Collector:
    """One life of the ranks.

    Args:
        job: What they shall do.
        cluster: Hosts whose links can change; None for ranks on loopback.
        folder: Where ranks look for answers.
        journal: Keeps what they find.
        machine: What they run on.
        note: Tells a person.

    """

    def __init__(
        self,
        job: Job,
        cluster: Reshaped | None,
        folder: Path,
        journal: Journal,
        machine: Mapping[str, str],
        note: Callable[[str], None],
    ) -> None:
        self._job, self._cluster, self._folder = job, cluster, folder
        self._journal, self._machine, self._note = journal, machine, note
        self._links: list[LinkReport] = []
        self._session = ""
        self._control_s: list[float] = []
        self._words: dict[int, list[str]] = {}
        self._left = sum(len(place.entries) for place in job.places)
        self._num_ended = 0
        self._start_s = time.monotonic()
        self.begun: tuple[int, int] | None = None
        """Place and number of a trial that was begun and has not ended."""
        self.num_ok = 0
        self.error: Exception | None = None
        """What went wrong here; the ranks have been told to stop."""

    def take(self, rank: int, line: str) -> None:
        """Take one line that a rank has printed. Runs in the thread that reads this rank, as long as it lives."""
        if rank != 0 or not line.startswith(MARK):
            self._words.setdefault(rank, []).append(line)
            return
        said: dict[str, Any] = json.loads(line.removeprefix(MARK))
        if said["kind"] == "want":
            self.error = answer(self._folder, said, self._set_up) or self.error
        elif said["kind"] == "begin":
            self.begun = said["place"], said["number"]
        elif said["kind"] == "session":
            self._open_session(self._job.places[said["place"]], said["compute_s"])
        elif said["kind"] == "trial":
            self._keep(self._job.places[said["place"]], said)

    def last_words(self, rank: int) -> str:
        """Return the end of what a rank has printed."""
        return "\n".join(self._words.get(rank, [])[-_LAST_WORDS:])

    def fail(self, result: RankResult) -> None:
        """Note that the trial which was running has ended its ranks."""
        if self.begun is None:
            return
        place, number = self.begun
        words = self._words.get(result.rank, [""])
        hung = any(text.startswith("Timeout (") for text in words)  # as faulthandler begins
        reason = (
            f"rank {result.rank}: no end within {self._job.timeout_s:g} s"
            if hung
            else f"rank {result.rank}: exit code {result.exit_code}: {words[-1]}"
        )
        self._keep(self._job.places[place], {"number": number, "status": "failed", "reason": reason})

    def _set_up(self, wanted: int) -> None:
        if self._cluster is not None and wanted != CHECK:
            topology = self._job.places[max(wanted, 0)].topology
            self._cluster.reshape(without_limits(topology) if wanted == OPEN else topology)
        if wanted == OPEN:
            return
        self._links = self._cluster.check_links() if self._cluster is not None else []
        if wrong := link_faults(self._links):
            self._note(f"links are not what was asked for: {'; '.join(wrong)}")
        if wanted == CHECK:
            self._journal.write({"kind": "session_end", "session_id": self._session, **self._found_links()})

    def _found_links(self) -> dict[str, Any]:
        return {"links": [asdict(link) for link in self._links], "links_wrong": link_faults(self._links)}

    def _open_session(self, place: WorkloadCell, compute_s: float) -> None:
        self._session, self._control_s = uuid.uuid4().hex[:12], []
        self._journal.write(
            {
                "kind": "session",
                "session_id": self._session,
                "cell": asdict(place.cell),
                "workload": json.loads(to_json(place.workload)),
                "size_share": place.size_share,
                "topology": json.loads(to_json(place.topology)),
                "emulated": self._job.emulated,
                "compute_s": compute_s,
                "began": _now(),
                "machine": dict(self._machine),
                **self._found_links(),
            }
        )
        self._note(f"{place_of(place.cell)}: {len(place.entries)} trials; {compute_s:.3g} s of computing a step")

    def _keep(self, place: WorkloadCell, said: dict[str, Any]) -> None:
        entry = next(entry for entry in place.entries if entry.number == said["number"])
        found = {key: value for key, value in said.items() if key not in ("kind", "place")}
        self._journal.write(
            {
                "kind": "trial",
                "session_id": self._session,
                "entry": entry.kind,
                "name": entry.name,
                "genes": json.loads(to_json(entry.genes)),
                "ended": _now(),
                "load": os.getloadavg()[0],
                **found,
            }
        )
        self.begun = None
        self._num_ended += 1
        self.num_ok += found["status"] == "ok"
        self._tell(place, entry, found)

    def _tell(self, place: WorkloadCell, entry: PlannedTrial, found: dict[str, Any]) -> None:
        left = self._left - self._num_ended
        left_s = (time.monotonic() - self._start_s) / self._num_ended * left
        if found["status"] == "ok":
            step_s = statistics.median(mean for mean, _, _ in found["samples"])
            text = f"{step_s:.4g} s a step ({len(found['samples'])} samples, {found['took_s']:.1f} s)"
            if entry.kind == "control":
                self._control_s.append(step_s)
                settled_s = self._control_s[1:] or self._control_s  # the first finds connections cold
                if abs(step_s / settled_s[0] - 1) > _DRIFT:
                    text += "; the control has moved since the session began"
        else:
            text = f"{found['status']}: {found['reason']}"
        self._note(
            f"{place_of(place.cell)}: {entry.number} {entry.kind} {entry.name}: {text}; {left} left, "
            f"about {left_s / 60:.0f} min"
        )


def collect(
    job: Job,
    cluster: EmulatedCluster | LocalHosts,
    journal: Journal,
    machine: Mapping[str, str],
    note: Callable[[str], None],
) -> None:
    """Run what is left of a job; ranks that a plan has ended are started again, and go on behind it.

    Raises:
        RuntimeError: Ranks ended before any trial had come to an end, with the last words of who failed.

    """
    while (left := left_of(job, journal.done)).places:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            save(left, folder / "job.json")
            if isinstance(cluster, EmulatedCluster):  # delays end with the thread that set them, and ranks have to meet
                cluster.reshape(without_limits(cluster.topology))
            hosts = cluster if isinstance(cluster, EmulatedCluster) else None
            collector = Collector(left, hosts, folder, journal, machine, note)
            argv = [sys.executable, "-m", "pliant_bench.collect.worker", str(folder / "job.json")]
            results = cluster.run(argv, on_line=collector.take)
        if collector.error is not None:
            raise collector.error
        failed = [r for r in results if r.exit_code and not r.ended_by_us] or [r for r in results if r.exit_code]
        if not failed:
            return
        collector.fail(failed[0])
        if not collector.num_ok:  # the control is the first of all, and should work anywhere
            words = collector.last_words(failed[0].rank)
            raise RuntimeError(f"rank {failed[0].rank} failed with exit code {failed[0].exit_code}:\n{words}")
        note(f"rank {failed[0].rank} failed with exit code {failed[0].exit_code}; starting the ranks again")


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
