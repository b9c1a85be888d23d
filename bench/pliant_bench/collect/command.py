"""`pliant collect`: runs plans on emulated hosts, one after the other, and makes a data set of what they took."""

import os
import platform
import shlex
import signal
import sys
import time
from contextlib import nullcontext
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pliant.cli.emulate import topology_from_flags
from pliant.network import emulate_cluster
from pliant.network.local_hosts import LocalHosts
from pliant.planner import WORKLOADS, scaled_down
from pliant.spec.units import parse_bytes, parse_time
from pliant_bench.collect import options
from pliant_bench.collect.collector import collect as run_job
from pliant_bench.collect.export import export_to
from pliant_bench.collect.job import Job, WorkloadCell, entries_of
from pliant_bench.collect.journal import Journal
from pliant_bench.harness.grid import cells_of
from pliant_bench.harness.setup import Cell

__all__ = ["collect"]


def collect(
    out: options.Out,
    models: options.Models = "vgg16,bert",
    rates: options.Rates = "100mbit,1gbit",
    delays: options.Delays = "0ms,5ms",
    hosts: options.Hosts = 4,
    ranks_per_host: options.RanksPerHost = 1,
    plans: options.Plans = 100,
    seconds_per_trial: options.Seconds = 4.0,
    seed: options.Seed = 0,
    budget: options.Budget = 3.5,
    slow_host: options.SlowHost = 0.0,
    size: options.Size = "25MB",
    timeout: options.Timeout = "120s",
    local: options.Local = False,
    export: options.Export = None,
    accuracy: options.Accuracy = None,
    micro: options.Micro = None,
) -> None:
    """Run many plans on emulated hosts, in one process group, and write what each took; --export makes a data set."""
    if export is not None:
        export_to(export, out, accuracy or [], micro or [])
        return
    if len(out) != 1 or accuracy or micro:
        raise ValueError(
            "trials are written to one folder, and several of them, --accuracy and --micro are for --export; give one "
            "--out, or add --export."
        )
    settings: dict[str, Any] = {
        "models": _list(models),
        "rates": _list(rates),
        "delays": _list(delays),
        "hosts": hosts,
        "ranks_per_host": ranks_per_host,
        "plans": plans,
        "seconds_per_trial": seconds_per_trial,
        "seed": seed,
        "budget": budget,
        "slow_host": slow_host,
        "size_bytes": parse_bytes(size),
        "timeout_s": parse_time(timeout),
        "local": local,
    }
    _check(settings)
    job = _job(settings)
    journal = Journal(out[0], settings)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    start_s = time.monotonic()

    def note(text: str) -> None:
        print(f"{time.monotonic() - start_s:6.0f} s  {text}", flush=True)

    first = topology_from_flags(hosts, "none", "0ms", [], ranks_per_host, 0.0)
    with nullcontext(LocalHosts(first.num_ranks)) if local else emulate_cluster(first) as cluster:
        run_job(job, cluster, journal, _machine(), note)


def _job(settings: dict[str, Any]) -> Job:
    places = tuple(
        _place(cell, settings)
        for cell in cells_of(settings["models"], settings["rates"], settings["delays"], settings["slow_host"])
    )
    return Job(
        places=places,
        seconds_per_trial=settings["seconds_per_trial"],
        timeout_s=settings["timeout_s"],
        seed=settings["seed"],
        ranks_per_host=settings["ranks_per_host"],
        emulated=not settings["local"],
    )


def _place(cell: Cell, settings: dict[str, Any]) -> WorkloadCell:
    workload, share = scaled_down(WORKLOADS[cell.model](), settings["size_bytes"])
    topology = topology_from_flags(
        settings["hosts"], cell.rate, cell.delay, [], settings["ranks_per_host"], cpus_per_host=0.0
    )
    entries = entries_of(cell, workload, topology, settings["plans"], settings["budget"], settings["seed"])
    return WorkloadCell(cell=cell, workload=workload, size_share=share, topology=topology, entries=tuple(entries))


def _check(settings: dict[str, Any]) -> None:
    if not all(settings[key] for key in ("models", "rates", "delays")):
        raise ValueError("there are no cells; name at least one model, one rate and one delay.")
    if unknown := [name for name in settings["models"] if name not in WORKLOADS]:
        raise ValueError(f"there is no model {unknown[0]!r}; there are {', '.join(WORKLOADS)}.")
    limited = [r for r in settings["rates"] if r != "none"] + [d for d in settings["delays"] if parse_time(d)]
    if settings["local"] and limited:
        raise ValueError(
            f"ranks of --local have no links that could be made {limited[0]}; leave --local out, or give --rates none "
            "--delays 0ms."
        )
    if settings["hosts"] * settings["ranks_per_host"] < 2:
        raise ValueError("a single rank exchanges nothing; give at least two --hosts or --ranks-per-host.")
    if not 0 <= settings["slow_host"] < 1:
        raise ValueError(
            f"--slow-host is {settings['slow_host']}, but it is a share of the others' speed: more than 0, below 1."
        )
    for flag, value, least in (("--plans", settings["plans"], 0), ("--size", settings["size_bytes"], 1)):
        if value < least:
            raise ValueError(f"{flag} is {value}, but there must be at least {least}.")
    for flag, name in (("--seconds-per-trial", "seconds_per_trial"), ("--timeout", "timeout_s")):
        if settings[name] <= 0:
            raise ValueError(f"{flag} is {settings[name]}, but a trial takes some time; give more than 0.")
    if settings["timeout_s"] <= settings["seconds_per_trial"]:
        raise ValueError(
            f"--timeout is {settings['timeout_s']:g} s, but a trial may take --seconds-per-trial "
            f"{settings['seconds_per_trial']:g} and what it has begun; give a longer timeout."
        )


def _machine() -> dict[str, str]:
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "command": shlex.join(["pliant", *sys.argv[1:]]),
        "cpu": names[0].partition(":")[2].strip() if names else platform.machine(),
        "num_cpus": str(os.cpu_count()),
        "kernel": f"{platform.system()} {platform.release()}",
        "torch": version("torch"),
        "pliant": _own_version(),
    }


def _own_version() -> str:
    try:
        return version("pliant")
    except PackageNotFoundError:  # sources that were never installed
        return "not installed"


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
