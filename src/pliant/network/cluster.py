"""Emulated hosts that are running: ranks on them, and links that change."""

import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pliant.network.addresses import SWITCH, address_of
from pliant.network.changes import Change, Timetable, with_links_of
from pliant.network.cpus import CpuLimit
from pliant.network.feasible import require_possible
from pliant.network.host_shape import host_shapes
from pliant.network.link_check import LinkReport, link_faults, measure_links
from pliant.network.namespaces import Namespace
from pliant.network.rack_switch import RackSwitch, shape_uplinks
from pliant.network.ranks import RankResult, Restart, run_ranks
from pliant.network.shaped_link import ShapedLink
from pliant.spec import Topology

__all__ = ["STORE_PORT", "EmulatedCluster", "Parts"]

STORE_PORT = 29500
"""Port of torch's store, on the first host or, for elastic runs, on the switch."""
_TRIES = 3
_log = logging.getLogger("pliant")


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Namespaces, links and uplinks of an emulated network, as far as they were brought up."""

    hosts: list[Namespace] = field(default_factory=list[Namespace])
    links: list[ShapedLink] = field(default_factory=list[ShapedLink])
    uplinks: list[RackSwitch] = field(default_factory=list[RackSwitch])
    limits: dict[int, CpuLimit] = field(default_factory=dict[int, CpuLimit])
    secret_file: Path | None = None
    """Secret file of elastic runs."""


class EmulatedCluster:
    """Emulated hosts that are running."""

    def __init__(self, topology: Topology, made: Parts, *, burst: int) -> None:
        self.topology = topology
        self._secret_file = made.secret_file
        self._elastic = made.secret_file is not None
        self._burst = burst
        self._hosts, self._limits = made.hosts, made.limits
        self._links, self._uplinks = made.links, made.uplinks

    def address(self, host_index: int) -> str:
        """Return a host's address inside the emulated network."""
        return address_of(host_index)

    def namespace(self, host_index: int) -> Namespace:
        """Return the namespaces of a host, to run tools in them."""
        return self._hosts[host_index]

    def place(self, rank: int) -> tuple[int, int]:
        """Return the host of a rank, and its number there."""
        for k in range(len(self._hosts)):
            ranks = self.topology.ranks_of(k)
            if rank in ranks:
                return k, rank - ranks.start
        raise ValueError(f"there is no rank {rank}; the topology has {self.topology.num_ranks}.")

    def popen(self, rank: int, argv: Sequence[str], env: Mapping[str, str] | None = None) -> "subprocess.Popen[str]":
        """Start a command as a rank, with the environment that torchrun would set; output is one pipe of text.

        Note [one session]: ranks, relays and stores stay in our session. Linux shares CPUs among sessions
        (sched_autogroup), and on full cores the threads of one were seen to wait 12 s for those of another.
        """
        k, local = self.place(rank)
        num_local = self.topology.hosts[k].num_ranks
        torchrun = {
            "MASTER_ADDR": self.address(0),
            "MASTER_PORT": str(STORE_PORT),
            "RANK": str(rank),
            "WORLD_SIZE": str(self.topology.num_ranks),
            "LOCAL_RANK": str(local),
            "LOCAL_WORLD_SIZE": str(num_local),
            "GROUP_RANK": str(k),
            "GLOO_SOCKET_IFNAME": "eth0",
        }
        if self._secret_file is not None:
            torchrun["PLIANT_SECRET_FILE"] = str(self._secret_file)
        if self._elastic:  # a store is there already, as torchrun's agent says it
            agent = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
            torchrun |= {"MASTER_ADDR": SWITCH, **agent}
        limit = self._limits.get(k)

        def before_exec() -> None:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # see Namespace.rank_prefix
            if limit is not None:
                limit.join()

        return subprocess.Popen(
            [*self._hosts[k].rank_prefix(), *argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **os.environ, **(env or {}), **torchrun},
            preexec_fn=before_exec,
            process_group=0,  # so that Ctrl-C reaches us alone, and a rank can be ended with all it started
        )

    def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        on_line: Callable[[int, str], None] = lambda rank, line: print(f"[{rank}] {line}\n", end="", flush=True),
        timeout_s: float = 0.0,
        restarts: int = 0,
        changes: Sequence[Change] = (),
    ) -> list[RankResult]:
        """Run a command once per rank and wait. When one fails, or after timeout_s, the others are ended.

        On elastic hosts the others continue when one fails, and it is started again up to `restarts` times. `on_line`
        gets each rank's output line by line, from a thread per rank. Links change at the times of `changes`, and stay
        so; a run that ends before one of them says so in the log.

        Raises:
            ValueError: Restarts are asked for, but the hosts are not elastic, so that a restarted rank finds no store;
                or a change is not one of rates and delays alone.

        """
        if restarts and not self._elastic:
            raise ValueError(
                f"{restarts} restarts are asked for, but these hosts are not elastic: the others end when a rank "
                "fails; make them with elastic=True."
            )

        def start(rank: int) -> "subprocess.Popen[str]":
            return self.popen(rank, argv, env)

        for change in changes:
            self._require_same_hosts(change.topology)
        if changes:
            every = [self.topology, *(change.topology for change in changes)]
            self.reshape(with_links_of(self.topology, every))
            changes = [replace(change, topology=with_links_of(change.topology, every)) for change in changes]
        names = [self.topology.hosts[self.place(rank)[0]].name for rank in range(self.topology.num_ranks)]
        processes = [start(rank) for rank in range(self.topology.num_ranks)]
        again = Restart(start=start, restarts=restarts) if self._elastic else None
        timetable = Timetable(changes, self.reshape)
        results = run_ranks(processes, names, on_line, timeout_s, again, timetable.tick)
        if timetable.left:
            _log.warning("the run has ended before its links changed at %g s.", timetable.left[0].at_s)
        return results

    def reshape(self, topology: Topology) -> None:
        """Give the links of live hosts other rates, delays, jitters and losses; running ranks keep their connections.

        Packets that wait are kept where the same pairs have links as before; otherwise some are lost, and TCP sends
        them again. The calling thread must live as long as the delays shall.

        Raises:
            ValueError: The topology has other hosts, ranks, CPU shares or racks, which cannot change while ranks run.

        """
        self._require_same_hosts(topology)
        shapes = host_shapes(topology)
        for link, shape in zip(self._links, shapes, strict=True):
            link.shape(shape)
        shape_uplinks(self._uplinks, topology, shapes)
        self.topology = topology

    def _require_same_hosts(self, topology: Topology) -> None:
        require_possible(topology)
        new, old = (
            [(h.name, h.num_ranks, h.cpu_share, rack) for h, rack in zip(t.hosts, t.rack_of(), strict=True)]
            for t in (topology, self.topology)
        )
        if new != old or len(topology.racks) != len(self._uplinks):
            raise ValueError(
                f"the live hosts are {old} (name, ranks, CPUs, rack) in {len(self._uplinks)} racks, but the new "
                f"topology has {new} in {len(topology.racks)}; only rates and delays can change while ranks run."
            )

    def check_links(self) -> list[LinkReport]:
        """Measure links between hosts, and racks, in some seconds; `require_links` checks what was found.

        Each host's to the next, and each pair's that has one of its own, over as many TCP connections as fill it.
        Losses are left out meanwhile. Up to three times while a rate is wrong, since the machine may be busy for a
        moment; the last rates are returned.
        """
        asked = self.topology
        if any(link.loss for link in asked.links):
            self.reshape(replace(asked, links=tuple(replace(link, loss=0.0) for link in asked.links)))
        addresses = [self.address(k) for k in range(len(self._hosts))]
        try:
            reports = measure_links(asked, self._hosts, addresses, self._burst)
            for _ in range(_TRIES - 1):
                if not link_faults(reports):
                    break
                time.sleep(1.0)
                reports = measure_links(asked, self._hosts, addresses, self._burst)
        finally:
            if self.topology != asked:
                self.reshape(asked)
        return reports
