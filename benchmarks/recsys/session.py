"""Ranks on emulated hosts whose links change while they live: start them, shape links, hear what they say."""

import json
import os
import platform
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jobs import EXAMPLES, HERE, PYTHON, SOURCES, UNLIMITED

from pliant.network import EmulatedCluster, emulate_cluster
from pliant.network.link_check import link_faults
from pliant.spec import Topology, save
from pliant.spec.files import write_atomically
from pliant_bench.harness.setup import MARK

_BURST_BYTES = 32_000
"""That a link lets pass at once after a pause: little beside what a phase of a step sends."""

Record = dict[str, Any]


def run_ranks(
    worker: str,
    job_of: Callable[[Path, Mapping[str, str]], Record],
    topologies: Mapping[str, Topology],
    hear: Callable[[str, Record], None],
    *,
    minutes: float,
    quiet: bool = False,
) -> None:
    """Run a worker on every rank, under one topology after another, as it asks for them.

    Args:
        worker: Its file in this folder.
        job_of: Given a folder and the files of the topologies by name: what the worker reads as JSON.
        topologies: By name; that without limits, `UNLIMITED`, is where ranks begin.
        hear: Is told the kind and the rest of what rank 0 says; of 'ready', after links were checked, what is wrong.
        minutes: After which all ranks are ended.
        quiet: Not to show what else ranks print.

    Raises:
        RuntimeError: A rank failed.

    """

    def on_line(rank: int, text: str) -> None:
        if not text.startswith(MARK):
            if text.strip() and not quiet:
                print(f"[{rank}] {text}", flush=True)
            return
        record = json.loads(text.removeprefix(MARK))
        kind = record.pop("kind")
        if kind == "ready":
            record["links_wrong"] = _shaped(cluster, topologies[record["rate"]], record["rate"])
            hear(kind, record)
            (Path(folder) / record["rate"]).touch()
        else:
            hear(kind, record)

    with (
        tempfile.TemporaryDirectory() as folder,
        emulate_cluster(topologies[UNLIMITED], check=False, burst=_BURST_BYTES) as cluster,
    ):
        files: dict[str, str] = {}
        for name, topology in topologies.items():
            files[name] = str(Path(folder) / f"topology-{name}.json")
            save(topology, files[name])
        path = Path(folder) / "job.json"
        path.write_text(json.dumps(job_of(Path(folder), files)), encoding="utf-8")
        env = {"PYTHONPATH": os.pathsep.join([str(SOURCES), str(EXAMPLES)]), "TORCH_CPP_LOG_LEVEL": "ERROR"}
        argv = [str(PYTHON), str(HERE / worker), str(path)]
        results = cluster.run(argv, env=env, on_line=on_line, timeout_s=60 * minutes)
    if any(r.exit_code for r in results):
        raise RuntimeError(f"ranks failed: exit codes {[r.exit_code for r in results]}.")


def _shaped(cluster: EmulatedCluster, topology: Topology, name: str) -> list[str]:
    """Set the links; return what is wrong with them."""
    cluster.reshape(topology)
    return [] if name == UNLIMITED else link_faults(cluster.check_links())


def meet(flags: str, name: str, barrier: Callable[[], None], say: Callable[[str, Record], None]) -> None:
    """In a worker: wait until links are as the topology of this name has them. Collective."""
    barrier()
    say("ready", {"rate": name})
    deadline_s = time.monotonic() + 600
    while not (Path(flags) / name).exists():  # each rank looks by itself, so that no packet is on its way
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"links did not become {name} within 10 minutes; has the starting process failed?")
        time.sleep(0.05)
    barrier()


def provenance() -> Record:
    """Return how and where this is measured."""
    return {
        "command": shlex.join(["python", *sys.argv]),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
        "load_before": os.getloadavg()[0],
    }


def now() -> str:
    """Return the time, for a record."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())


def read(path: Path) -> list[Record]:
    """Return the lines of a file, or none."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def append(path: Path, line: Record) -> None:
    """Add a line; a file is never half written."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    write_atomically(path, text + json.dumps(line) + "\n")
