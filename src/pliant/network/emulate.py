"""Emulation of a topology: namespaces on a bridge, or one a rack, links shaped both ways, ranks in them."""

import logging
import secrets
import tempfile
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pliant.network.addresses import SWITCH, address_of, hosts_file
from pliant.network.cluster import STORE_PORT, EmulatedCluster, Parts
from pliant.network.cpus import CpuLimit
from pliant.network.feasible import require_possible, too_much
from pliant.network.host_shape import host_shapes
from pliant.network.link_check import require_links
from pliant.network.namespaces import Namespace, require_tools
from pliant.network.rack_switch import CORE, RackSwitch, shape_uplinks
from pliant.network.ranks import RankResult, run_ranks
from pliant.network.shaped_link import ShapedLink, require_congestion
from pliant.network.shaping import LEAST_BURST
from pliant.network.store_host import StoreHost
from pliant.network.tcp_settings import CONGESTION, TcpSettings
from pliant.spec import Topology

__all__ = ["EmulatedCluster", "RankResult", "emulate_cluster", "run_ranks"]

_log = logging.getLogger("pliant")


@contextmanager
def emulate_cluster(
    topology: Topology,
    *,
    check: bool = True,
    elastic: bool = False,
    burst: int = LEAST_BURST,
    congestion: str = CONGESTION,
) -> Generator[EmulatedCluster]:
    """Bring hosts up, and take everything down again on every way out, a crash of this process included.

    For elastic runs a store is hosted on the switch, which is no rank's host, and a failed rank does not end others.
    Each run of hosts has a secret of its own, in a file that ranks find in PLIANT_SECRET_FILE, for
    ``pliant.Elastic(secret_file=os.environ["PLIANT_SECRET_FILE"])``.

    Args:
        topology: Hosts, and racks and links between pairs if it has any; and whether their TCP starts slowly after a
            pause, and the window of a connection.
        check: Whether to measure the links before anything else.
        elastic: See above.
        burst: Bytes that a link lets pass at once after a pause, at least; 2 ms of its rate if that is more.
        congestion: Congestion control of TCP on all hosts: one that the kernel has.

    Raises:
        ValueError: No machine can emulate the topology; the message says why.
        CannotEmulateError: The machine lacks a program, a right or a kernel feature; the message says which.
        RuntimeError: With `check`, links are not within 25 % of what was asked for.

    """
    require_possible(topology)
    require_tools()
    require_congestion(congestion)
    if warning := too_much(topology):
        _log.warning("%s", warning)
    with ExitStack() as stack:
        bridge = Namespace("bridge")
        stack.callback(bridge.close)
        bridge.run("ip", "link", "add", CORE, "type", "bridge")
        bridge.run("ip", "link", "set", CORE, "up")
        made = _bring_up(topology, bridge, burst, stack, elastic=elastic, tcp=TcpSettings.of(topology, congestion))
        cluster = EmulatedCluster(topology, made, burst=burst)
        if check:
            require_links(cluster.check_links())
        if elastic:
            bridge.run("ip", "link", "set", "lo", "up")
            bridge.run("ip", "addr", "add", f"{SWITCH}/24", "dev", CORE)
            stack.callback(StoreHost(bridge, SWITCH, STORE_PORT).close)
        yield cluster


def _bring_up(
    topology: Topology, bridge: Namespace, burst: int, stack: ExitStack, *, elastic: bool, tcp: TcpSettings
) -> Parts:
    """Make racks and hosts; the stack takes them down, also when this does not come to its end."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pliant-")))  # nobody else's to look into
    made = Parts(secret_file=_new_secret(folder / "secret") if elastic else None)
    names = folder / "hosts"
    names.write_text(hosts_file(topology), encoding="utf-8")
    shapes = host_shapes(topology)
    made.uplinks.extend(RackSwitch(bridge, k, burst) for k in range(len(topology.racks)))
    shape_uplinks(made.uplinks, topology, shapes)
    for k, (host, rack) in enumerate(zip(topology.hosts, topology.rack_of(), strict=True)):
        if host.cpu_share:
            made.limits[k] = CpuLimit(host.cpu_share)
            stack.callback(made.limits[k].close)
        made.hosts.append(Namespace(host.name, bridge))
        stack.callback(made.hosts[k].close)
        made.hosts[k].show(names, Path("/etc/hosts"))
        switch = made.uplinks[rack].switch if made.uplinks else CORE
        made.links.append(ShapedLink(made.hosts[k], bridge, k, address_of(k), switch=switch, burst=burst, tcp=tcp))
        stack.callback(made.links[k].close)
        made.links[k].shape(shapes[k])
    return made


def _new_secret(path: Path) -> Path:
    path.touch(mode=0o600)
    path.write_text(secrets.token_hex(32), encoding="ascii")
    return path
