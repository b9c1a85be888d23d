"""From a Topology to live hosts: namespaces on one bridge, links shaped both ways, ranks started on them."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from pliant.network.cpus import CpuLimit
from pliant.network.delay import DelayRelay, delay_with_netem
from pliant.network.linkcheck import LinkReport, expected_bytes_per_s, judge
from pliant.network.namespaces import Namespace, die_with_parent, require_tools
from pliant.network.shaping import shape
from pliant.spec import Topology

__all__ = ["Cluster", "RankResult", "emulated", "run_ranks"]

_NETWORK = "10.77.0"  # exists inside the namespaces only
_PORT = 29500
_GRACE_S = 5.0


@dataclass(frozen=True, kw_only=True)
class RankResult:
    """How one rank ended."""

    rank: int
    host: str
    exit_code: int
    """Negative for a signal, as in subprocess."""
    ended_by_us: bool
    """Whether it was stopped because another rank had failed, or the time was up."""


class Cluster:
    """Emulated hosts that are up. Made by `emulated`."""

    def __init__(self, topology: Topology, hosts: Sequence[Namespace], limits: Mapping[int, CpuLimit]) -> None:
        self.topology = topology
        self._hosts = hosts
        self._limits = limits

    def address(self, host_index: int) -> str:
        """Return a host's address inside the emulated network."""
        return f"{_NETWORK}.{host_index + 1}"

    def place(self, rank: int) -> tuple[int, int]:
        """Return the host of a rank, and its number there."""
        for k in range(len(self._hosts)):
            ranks = self.topology.ranks_of(k)
            if rank in ranks:
                return k, rank - ranks.start
        raise ValueError(f"there is no rank {rank}; the topology has {self.topology.num_ranks}.")

    def popen(self, rank: int, argv: Sequence[str], env: Mapping[str, str] | None = None) -> "subprocess.Popen[str]":
        """Start a command as a rank, with the environment that torchrun would set; output is one pipe of text."""
        k, local = self.place(rank)
        num_local = self.topology.hosts[k].num_ranks
        torchrun = {
            "MASTER_ADDR": self.address(0),
            "MASTER_PORT": str(_PORT),
            "RANK": str(rank),
            "WORLD_SIZE": str(self.topology.num_ranks),
            "LOCAL_RANK": str(local),
            "LOCAL_WORLD_SIZE": str(num_local),
            "GROUP_RANK": str(k),
            "GLOO_SOCKET_IFNAME": "eth0",
        }
        process = subprocess.Popen(
            [*self._hosts[k].prefix(), *argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **os.environ, **(env or {}), **torchrun},
            preexec_fn=die_with_parent(os.getpid()),
            start_new_session=True,  # so that Ctrl-C reaches us alone, and a rank can be ended with all it started
        )
        if k in self._limits:
            self._limits[k].add(process.pid)
        return process

    def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        on_line: Callable[[int, str], None] = lambda rank, line: print(f"[{rank}] {line}", flush=True),
        timeout_s: float = 0.0,
    ) -> list[RankResult]:
        """Run a command once per rank and wait. When one fails, or after timeout_s, the others are ended.

        `on_line` gets each rank's output line by line, from a thread per rank.
        """
        processes = [self.popen(rank, argv, env) for rank in range(self.topology.num_ranks)]
        names = [self.topology.hosts[self.place(rank)[0]].name for rank in range(self.topology.num_ranks)]
        return run_ranks(processes, names, on_line, timeout_s)

    def check_links(self, seconds: float = 0.8) -> list[LinkReport]:
        """Measure each host's flow to the next while all send. Raises nothing; `judge` reads the result."""
        num = len(self._hosts)
        if num < 2:
            return []
        module = [sys.executable, "-m", "pliant.network.linkprobe"]
        probes = [
            subprocess.Popen(
                [*host.prefix(), *module, self.address(k), self.address((k + 1) % num), str(seconds)],
                stdout=subprocess.PIPE,
                text=True,
                preexec_fn=die_with_parent(os.getpid()),
            )
            for k, host in enumerate(self._hosts)
        ]
        found = [json.loads(probe.communicate(timeout=60)[0]) for probe in probes]
        reports: list[LinkReport] = []
        for k, measured in enumerate(found):
            source, target = self.topology.hosts[k], self.topology.hosts[(k + 1) % num]
            reports.append(
                LinkReport(
                    source=source.name,
                    target=target.name,
                    wanted_bytes_per_s=expected_bytes_per_s(source.send_bytes_per_s, target.receive_bytes_per_s),
                    found_bytes_per_s=measured["bytes_per_s"],
                    wanted_round_trip_s=source.delay_s + target.delay_s,
                    found_round_trip_s=measured["round_trip_s"],
                )
            )
        return reports


@contextmanager
def emulated(topology: Topology, *, check: bool = True) -> Generator[Cluster]:
    """Bring hosts up, and take everything down again on every way out, a crash of this process included.

    Raises:
        CannotEmulateError: The machine lacks a program, a right or a kernel feature; the message says which.
        RuntimeError: With `check`, links are not within 25 % of what was asked for.

    """
    require_tools()
    with ExitStack() as stack:
        bridge = Namespace("bridge")
        stack.callback(bridge.close)
        bridge.run("ip", "link", "add", "br0", "type", "bridge")
        bridge.run("ip", "link", "set", "br0", "up")
        hosts: list[Namespace] = []
        limits: dict[int, CpuLimit] = {}
        for k, host in enumerate(topology.hosts):
            if host.cpu_share:
                limits[k] = CpuLimit(host.name, host.cpu_share)
                stack.callback(limits[k].close)
            hosts.append(Namespace(host.name, bridge))
            stack.callback(hosts[k].close)
            _connect(topology, k, hosts[k], bridge, stack)
        cluster = Cluster(topology, hosts, limits)
        if check and (wrong := judge(cluster.check_links())):
            raise RuntimeError(
                "the emulated links are not what was asked for: " + "; ".join(wrong) + ". The machine may be busy, or "
                "the sum of all rates too high for it (about 4 Gbit/s); lower the rates, or pass --no-check."
            )
        yield cluster


def _connect(topology: Topology, k: int, host: Namespace, bridge: Namespace, stack: ExitStack) -> None:
    """Plug a host into the bridge and shape its link both ways."""
    spec, port = topology.hosts[k], f"port{k}"
    bridge.run("ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", str(host.pid))
    bridge.run("ip", "link", "set", port, "master", "br0", "up")
    host.run("ip", "link", "set", "lo", "up")
    host.run("ip", "addr", "add", f"{_NETWORK}.{k + 1}/24", "dev", "eth0")
    host.run("ip", "link", "set", "eth0", "up")
    # bbr fights the shapers, and cubic may not be set inside a namespace.
    host.run("tee", "/proc/sys/net/ipv4/tcp_congestion_control", text="reno")
    for where, device, rate in ((host, "eth0", spec.send_bytes_per_s), (bridge, port, spec.receive_bytes_per_s)):
        if command := shape(device, rate):
            where.run(*command)
    if spec.delay_s and not delay_with_netem(host, bridge, port, spec.delay_s):
        stack.callback(DelayRelay(host, spec.delay_s).close)


def run_ranks(
    processes: Sequence["subprocess.Popen[str]"],
    hosts: Sequence[str],
    on_line: Callable[[int, str], None],
    timeout_s: float,
) -> list[RankResult]:
    """Wait for started ranks. When one fails, or after timeout_s (0: never), the others are ended."""
    readers = [threading.Thread(target=_read, args=(r, p, on_line)) for r, p in enumerate(processes)]
    for reader in readers:
        reader.start()
    stopped: set[int] = set()
    try:
        _wait(processes, timeout_s)
    finally:
        stopped = _end(processes)
        for reader in readers:
            reader.join()
    return [
        RankResult(rank=rank, host=host, exit_code=process.wait(), ended_by_us=rank in stopped)
        for rank, (process, host) in enumerate(zip(processes, hosts, strict=True))
    ]


def _read(rank: int, process: "subprocess.Popen[str]", on_line: Callable[[int, str], None]) -> None:
    if process.stdout is not None:
        with process.stdout:
            for line in process.stdout:
                on_line(rank, line.rstrip("\n"))


def _wait(processes: Sequence["subprocess.Popen[str]"], timeout_s: float) -> None:
    """Return when all have ended, or a while after one has failed, or when the time is up."""
    deadline_s = time.monotonic() + timeout_s if timeout_s else float("inf")
    failed = False
    while any(process.poll() is None for process in processes) and time.monotonic() < deadline_s:
        if not failed and any(process.poll() not in (None, 0) for process in processes):
            failed = True
            deadline_s = min(deadline_s, time.monotonic() + _GRACE_S)  # the others may still say what they saw
        time.sleep(0.02)


def _end(processes: Sequence["subprocess.Popen[str]"]) -> set[int]:
    """End what still runs, with everything it started; return which ranks those were."""
    running = {rank for rank, process in enumerate(processes) if process.poll() is None}
    for sign, patience_s in ((signal.SIGTERM, _GRACE_S), (signal.SIGKILL, _GRACE_S)):
        left = [p for p in processes if p.poll() is None]
        for process in left:
            os.killpg(process.pid, sign)
        deadline_s = time.monotonic() + patience_s
        while any(p.poll() is None for p in left) and time.monotonic() < deadline_s:
            time.sleep(0.02)
    return running
