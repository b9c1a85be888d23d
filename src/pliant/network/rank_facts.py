"""Facts of each rank's machine: cores, accelerators, versions, clock."""

import json
import os
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from pliant.accelerator import device_names, synchronize
from pliant.comm import Comm
from pliant.comm.small_gather import gather_small

__all__ = ["RankFacts", "clock_offsets", "gather_facts", "installed_version", "local_facts", "starts_slowly"]

_TEXT_BYTES = 4096
_TCP = Path("/proc/sys/net/ipv4")
_TRIPS = 8
_SIDE = 1024
_LIMIT_S = 0.3


@dataclass(frozen=True, kw_only=True)
class RankFacts:
    """One rank's machine, as that rank sees it."""

    rank: int
    host: str
    num_cores: int
    """Cores that the process may use."""
    accelerators: tuple[str, ...]
    operations_per_s: float
    """Floating-point operations per second of a product of two matrices of 1024 x 1024, float32."""
    python: str
    torch: str
    pliant: str
    backends: tuple[str, ...]
    """Backends of torch.distributed, with the version of NCCL."""
    send_buffer_bytes: int = 0
    """Most bytes of a TCP connection's send buffer that the system gives by itself; 0: not known."""
    receive_buffer_bytes: int = 0
    """The same of its receive buffer."""
    slow_start_after_idle: bool = False
    """Whether a TCP connection starts slowly again after a pause."""
    clock_offset_s: float = 0.0
    """Time of its clock less that of rank 0's."""
    clock_error_s: float = 0.0
    """Half of the shortest round trip: bound on the error of the offset."""


def local_facts(rank: int, host: str) -> RankFacts:
    """Return what this process sees of its machine."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return RankFacts(
        rank=rank,
        host=host,
        num_cores=cores,
        accelerators=tuple(device_names()),
        operations_per_s=_operations_per_s(),
        python=platform.python_version(),
        torch=str(torch.__version__),
        pliant=installed_version(),
        backends=_backends(),
        send_buffer_bytes=_tcp_setting("tcp_wmem"),
        receive_buffer_bytes=_tcp_setting("tcp_rmem"),
        slow_start_after_idle=bool(_tcp_setting("tcp_slow_start_after_idle")),
    )


def gather_facts(comm: Comm, host: str, *, clocks: bool = True) -> list[RankFacts]:
    """Return the facts of all ranks, in their order, with the offsets of their clocks if asked for. Collective."""
    raw = json.dumps(asdict(local_facts(comm.rank, host))).encode()[:_TEXT_BYTES]
    mine = torch.zeros(_TEXT_BYTES, dtype=torch.uint8)
    mine[: len(raw)] = torch.tensor(list(raw), dtype=torch.uint8)
    found = [_read(bytes(row).rstrip(b"\0")) for row in gather_small(comm, mine).tolist()]
    if not clocks:
        return found
    offsets = clock_offsets(comm)
    return [
        replace(facts, clock_offset_s=offset_s, clock_error_s=error_s)
        for facts, (offset_s, error_s) in zip(found, offsets, strict=True)
    ]


def starts_slowly(comm: Comm) -> bool:
    """Say whether any rank's system lets TCP start slowly again after a pause; the same on all ranks. Collective."""
    return bool(gather_small(comm, torch.tensor([float(_tcp_setting("tcp_slow_start_after_idle") > 0)])).any())


def clock_offsets(comm: Comm, now: Callable[[], float] = time.time) -> list[tuple[float, float]]:
    """Return each rank's clock less rank 0's, and the bound on the error, in s: the same on all ranks. Collective.

    Rank 0 asks each other rank in turn for its time, eight times. The shortest round trip counts: in its middle the
    other's clock was read, with an error of at most half of it (Cristian, Distributed Computing 3, 1989).
    """
    table = torch.zeros(comm.size, 2, dtype=torch.float64)
    question, answer = torch.zeros(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    for peer in range(1, comm.size):
        trips: list[tuple[float, float]] = []
        for _ in range(_TRIPS):
            if comm.rank == 0:
                asked_s = now()
                comm.exchange([(peer, question)], []).wait()
                comm.exchange([], [(peer, answer)]).wait()
                answered_s = now()
                trips.append((answered_s - asked_s, float(answer) - (asked_s + answered_s) / 2))
            elif comm.rank == peer:
                comm.exchange([], [(0, question)]).wait()
                answer[0] = now()
                comm.exchange([(0, answer)], []).wait()
        if trips:
            trip_s, offset_s = min(trips)
            table[peer, 0], table[peer, 1] = offset_s, trip_s / 2
    comm.broadcast(table, 0).wait()
    return [(row[0], row[1]) for row in table.tolist()]


def _read(raw: bytes) -> RankFacts:
    fields: dict[str, Any] = json.loads(raw)
    for name in ("accelerators", "backends"):
        fields[name] = tuple(fields[name])
    return RankFacts(**fields)


def _operations_per_s() -> float:
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    x = torch.ones(_SIDE, _SIDE, device=device or "cpu")
    torch.mm(x, x)  # the first may have to load a library
    synchronize(x.device)
    start_s, count = time.perf_counter(), 0
    while count == 0 or (time.perf_counter() - start_s < _LIMIT_S and count < 1000):
        torch.mm(x, x)
        synchronize(x.device)
        count += 1
    return count * 2 * _SIDE**3 / (time.perf_counter() - start_s)


def _tcp_setting(name: str) -> int:
    """Return the last number of a setting of this network namespace; 0 where there is none."""
    path = _TCP / name
    return int(path.read_text().split()[-1]) if path.exists() else 0


def _backends() -> tuple[str, ...]:
    found = [name for name in ("gloo", "mpi", "xccl") if getattr(dist, f"is_{name}_available")()]
    if dist.is_nccl_available():
        cuda: Any = torch.cuda
        found.append("nccl " + ".".join(map(str, cuda.nccl.version())))
    return tuple(sorted(found))


def installed_version() -> str:
    """Return the version of Pliant, or 'not installed'."""
    try:
        return version("pliant")
    except PackageNotFoundError:
        return "not installed"
