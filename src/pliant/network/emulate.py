"""From a Topology to live hosts: namespaces on a bridge, or one a rack, links shaped both ways, ranks on them."""

import os
import re
import secrets
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pliant.network.cpus import CpuLimit
from pliant.network.link_check import LinkReport, link_faults, measure_links, require_links
from pliant.network.namespaces import Namespace, require_tools
from pliant.network.rack_switch import CORE, RackSwitch
from pliant.network.ranks import RankResult, Restart, run_ranks
from pliant.network.shaped_link import ShapedLink
from pliant.network.shaping import LEAST_BURST
from pliant.network.store_host import StoreHost
from pliant.spec import Topology

__all__ = ["EmulatedCluster", "RankResult", "emulate_cluster", "run_ranks"]

_NETWORK = "10.77.0"  # exists inside the namespaces only
_MAX_HOSTS = 250
_SWITCH = f"{_NETWORK}.254"
_PORT = 29500
_TRIES = 3
_HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,62}[A-Za-z0-9])?")


@dataclass(frozen=True, kw_only=True)
class _Made:
    """Parts of an emulated network that were brought up."""

    hosts: list[Namespace] = field(default_factory=list[Namespace])
    links: list[ShapedLink] = field(default_factory=list[ShapedLink])
    uplinks: list[RackSwitch] = field(default_factory=list[RackSwitch])
    limits: dict[int, CpuLimit] = field(default_factory=dict[int, CpuLimit])
    secret_file: Path | None = None
    """Of elastic runs."""


class EmulatedCluster:
    """Emulated hosts that are up. Made by `emulate_cluster`."""

    def __init__(self, topology: Topology, made: _Made, *, burst: int) -> None:
        self.topology = topology
        self._secret_file = made.secret_file
        self._elastic = made.secret_file is not None
        self._burst = burst
        self._hosts, self._limits = made.hosts, made.limits
        self._links, self._uplinks = made.links, made.uplinks

    def address(self, host_index: int) -> str:
        """Return a host's address inside the emulated network."""
        return _address(host_index)

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
        if self._secret_file is not None:
            torchrun["PLIANT_SECRET_FILE"] = str(self._secret_file)
        if self._elastic:  # a store is there already, as torchrun's agent says it
            agent = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
            torchrun |= {"MASTER_ADDR": _SWITCH, **agent}
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
            start_new_session=True,  # so that Ctrl-C reaches us alone, and a rank can be ended with all it started
        )

    def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        on_line: Callable[[int, str], None] = lambda rank, line: print(f"[{rank}] {line}\n", end="", flush=True),
        timeout_s: float = 0.0,
        restarts: int = 0,
    ) -> list[RankResult]:
        """Run a command once per rank and wait. When one fails, or after timeout_s, the others are ended.

        On elastic hosts the others go on when one fails, and it is started again up to `restarts` times. `on_line` gets
        each rank's output line by line, from a thread per rank.

        Raises:
            ValueError: Restarts are asked for, but the hosts are not elastic, so that who comes back finds no store.

        """
        if restarts and not self._elastic:
            raise ValueError(
                f"{restarts} restarts are asked for, but these hosts are not elastic: the others end when a rank "
                "fails; make them with elastic=True."
            )

        def start(rank: int) -> "subprocess.Popen[str]":
            return self.popen(rank, argv, env)

        names = [self.topology.hosts[self.place(rank)[0]].name for rank in range(self.topology.num_ranks)]
        processes = [start(rank) for rank in range(self.topology.num_ranks)]
        again = Restart(start=start, restarts=restarts) if self._elastic else None
        return run_ranks(processes, names, on_line, timeout_s, again)

    def reshape(self, topology: Topology) -> None:
        """Give the links of live hosts other rates and delays; running ranks keep their connections.

        Nothing should be on its way: packets that are held for a delay are lost, and TCP sends them again. The calling
        thread must live as long as the delays shall.

        Raises:
            ValueError: The topology has other hosts, ranks, CPU shares or racks, which cannot change while ranks run.

        """
        _require_possible(topology)
        new, old = (
            [(h.name, h.num_ranks, h.cpu_share, rack) for h, rack in zip(t.hosts, t.rack_of(), strict=True)]
            for t in (topology, self.topology)
        )
        if new != old or len(topology.racks) != len(self._uplinks):
            raise ValueError(
                f"the live hosts are {old} (name, ranks, CPUs, rack) in {len(self._uplinks)} racks, but the new "
                f"topology has {new} in {len(topology.racks)}; only rates and delays can change while ranks run."
            )
        for link, host in zip(self._links, topology.hosts, strict=True):
            link.shape(host)
        for uplink, rack in zip(self._uplinks, topology.racks, strict=True):
            uplink.shape(rack)
        self.topology = topology

    def check_links(self) -> list[LinkReport]:
        """Measure each host's link, and each rack's, to the next, in some seconds; `require_links` judges them.

        Up to three times while one is not what was asked for, since the machine may be busy for a moment; what was
        found last is returned.
        """
        addresses = [self.address(k) for k in range(len(self._hosts))]
        reports = measure_links(self.topology, self._hosts, addresses, self._burst)
        for _ in range(_TRIES - 1):
            if not link_faults(reports):
                break
            time.sleep(1.0)
            reports = measure_links(self.topology, self._hosts, addresses, self._burst)
        return reports


@contextmanager
def emulate_cluster(
    topology: Topology, *, check: bool = True, elastic: bool = False, burst: int = LEAST_BURST
) -> Generator[EmulatedCluster]:
    """Bring hosts up, and take everything down again on every way out, a crash of this process included.

    For elastic runs a store is hosted on the switch, which is no rank's host, and a failed rank does not end others.
    Each run of hosts has a secret of its own, in a file that ranks find in PLIANT_SECRET_FILE, for
    ``pliant.Elastic(secret_file=os.environ["PLIANT_SECRET_FILE"])``.

    Args:
        topology: Hosts, and racks if it has any; no links of their own.
        check: Whether to measure the links before anything else.
        elastic: See above.
        burst: Bytes that a link lets pass at once after a pause, at least; 2 ms of its rate if that is more.

    Raises:
        CannotEmulateError: The machine lacks a program, a right or a kernel feature; the message says which.
        RuntimeError: With `check`, links are not within 25 % of what was asked for.

    """
    _require_possible(topology)
    require_tools()
    with ExitStack() as stack:
        bridge = Namespace("bridge")
        stack.callback(bridge.close)
        bridge.run("ip", "link", "add", CORE, "type", "bridge")
        bridge.run("ip", "link", "set", CORE, "up")
        made = _bring_up(topology, bridge, burst, stack, elastic=elastic)
        cluster = EmulatedCluster(topology, made, burst=burst)
        if check:
            require_links(cluster.check_links())
        if elastic:
            bridge.run("ip", "link", "set", "lo", "up")
            bridge.run("ip", "addr", "add", f"{_SWITCH}/24", "dev", CORE)
            stack.callback(StoreHost(bridge, _SWITCH, _PORT).close)
        yield cluster


def _bring_up(topology: Topology, bridge: Namespace, burst: int, stack: ExitStack, *, elastic: bool) -> _Made:
    """Make racks and hosts; the stack takes them down, also when this does not come to its end."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pliant-")))  # nobody else's to look into
    made = _Made(secret_file=_new_secret(folder / "secret") if elastic else None)
    names = folder / "hosts"
    names.write_text(_names(topology), encoding="utf-8")
    for k, rack in enumerate(topology.racks):
        made.uplinks.append(RackSwitch(bridge, k, burst))
        made.uplinks[k].shape(rack)
    for k, (host, rack) in enumerate(zip(topology.hosts, topology.rack_of(), strict=True)):
        if host.cpu_share:
            made.limits[k] = CpuLimit(host.cpu_share)
            stack.callback(made.limits[k].close)
        made.hosts.append(Namespace(host.name, bridge))
        stack.callback(made.hosts[k].close)
        made.hosts[k].show(names, Path("/etc/hosts"))
        switch = made.uplinks[rack].switch if made.uplinks else CORE
        made.links.append(ShapedLink(made.hosts[k], bridge, k, _address(k), switch=switch, burst=burst))
        stack.callback(made.links[k].close)
        made.links[k].shape(host)
    return made


def _new_secret(path: Path) -> Path:
    path.touch(mode=0o600)
    path.write_text(secrets.token_hex(32), encoding="ascii")
    return path


def _names(topology: Topology) -> str:
    """Return a hosts file, in which torch's store looks up who has come; a name that is none there becomes a number."""
    named = {_address(k): host.name for k, host in enumerate(topology.hosts)}
    named = {address: name if _HOST_NAME.fullmatch(name) else f"host-{address}" for address, name in named.items()}
    lines = ["127.0.0.1 localhost", "::1 localhost"]
    for address, name in {_SWITCH: "switch", **named}.items():
        lines += [f"{address} {name}", f"::ffff:{address} {name}"]  # as a socket for both versions of IP has it
    return "\n".join(lines) + "\n"


def _address(host_index: int) -> str:
    return f"{_NETWORK}.{host_index + 1}"


def _require_possible(topology: Topology) -> None:
    if topology.links:
        link = topology.links[0]
        raise ValueError(
            f"the topology has a link of its own from {link.source} to {link.target}, but emulated hosts differ only "
            "by their own rates and delays; leave `links` out."
        )
    if len(topology.hosts) > _MAX_HOSTS:
        raise ValueError(f"the topology has {len(topology.hosts)} hosts, but at most {_MAX_HOSTS} can be emulated.")
