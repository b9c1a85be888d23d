"""Pairs of emulated hosts, each with its own rate, delay, jitter and loss, over real sockets."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from network.leftovers import PLIANT, links, marked, settles
from pliant.network import CannotEmulateError, delay, emulate_cluster, shaped_link
from pliant.network.changes import parse_changes
from pliant.network.link_check import LinkReport
from pliant.network.tcp_settings import TcpSettings, with_send_buffer
from pliant.spec import Host, Link, Topology, save
from waiting import until

pytestmark = [pytest.mark.netns, pytest.mark.usefixtures("emulating")]

EXTENDED = pytest.mark.extended
HOSTS = tuple(Host(name=name) for name in "abc")
MESH = Topology(
    hosts=HOSTS,
    links=(
        Link(source="a", target="b", bytes_per_s=2e6, latency_s=0.03),
        Link(source="b", target="a", bytes_per_s=1e6, latency_s=0.01, jitter_s=0.02, loss=0.2),
        Link(source="a", target="c", bytes_per_s=4e6, latency_s=0.0),
        Link(source="c", target="b", bytes_per_s=1.5e6, latency_s=0.05),
    ),
)


@pytest.mark.idle
def test_each_pair_is_as_asked_and_losses_are_back_after_the_check():
    with emulate_cluster(MESH, check=False) as cluster:
        found = {(r.source, r.target): r for r in cluster.check_links()}
        assert cluster.topology == MESH
    assert {(x.source, x.target) for x in MESH.links} <= set(found)
    for link in MESH.links:
        report = found[link.source, link.target]
        assert report.wanted_bytes_per_s == link.bytes_per_s
        # A busy machine makes less of a rate, but never more.
        assert 0.2 < report.found_bytes_per_s / report.wanted_bytes_per_s < 1.25
    assert found["a", "b"].wanted_round_trip_s == pytest.approx(0.04)
    assert found["a", "b"].jitter_s == 0.02
    assert isinstance(found["b", "c"], LinkReport)  # the ring's, without a link of its own
    assert found["b", "c"].wanted_bytes_per_s == 0
    for report in found.values():
        assert report.found_round_trip_s > 0.95 * report.wanted_round_trip_s


DATAGRAMS = """
import os, socket, sys, time
from pathlib import Path
rank, num, folder = int(os.environ["RANK"]), int(sys.argv[1]), Path(sys.argv[2])
inbox = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
inbox.bind((f"10.77.0.{rank + 1}", 6000))
if rank == 0:
    inbox.settimeout(0.5)
    (folder / "bound").touch()
    got = []
    while True:
        try:
            got.append(int.from_bytes(inbox.recv(64)[:4], "big"))
        except TimeoutError:
            if (folder / "sent").exists():
                break
    lines = Path("/proc/net/snmp").read_text().splitlines()
    names, figures = [line.split() for line in lines if line.startswith("Udp:")]
    late = int(figures[names.index("RcvbufErrors")])  # came, but this process had to wait for a core for too long
    print("came", len(got) + late, got == sorted(set(got)))
else:
    while not (folder / "bound").exists():
        time.sleep(0.01)
    for k in range(num):
        inbox.sendto(k.to_bytes(4, "big") + bytes(60), ("10.77.0.1", 6000))
    (folder / "sent").touch()
"""


@pytest.fixture
def on_one_cpu():
    """Lets all that is started run on one CPU: a veth pair itself swaps packets whose sender goes to another one."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    yield
    os.sched_setaffinity(0, allowed)


@pytest.mark.usefixtures("on_one_cpu")
def test_packets_keep_their_order_under_jitter_and_some_are_lost(tmp_path):
    """A thousand packets a second, so that many draw less jitter than the one before them."""
    link = Link(source="b", target="a", bytes_per_s=1e5, latency_s=0.01, jitter_s=0.02, loss=0.2)
    num, said = 2000, []
    with emulate_cluster(Topology(hosts=HOSTS[:2], links=(link,)), check=False) as cluster:
        argv = [sys.executable, "-c", DATAGRAMS, str(num), str(tmp_path)]
        results = cluster.run(argv, on_line=lambda _, line: said.append(line), timeout_s=100)
    assert [r.exit_code for r in results] == [0, 0], said
    (words,) = [line.split() for line in said]
    assert words[2] == "True"
    assert abs(int(words[1]) - 0.8 * num) < 6 * (0.8 * 0.2 * num) ** 0.5


STAGES = """
import os, sys, time, torch, torch.distributed as dist
from pathlib import Path
dist.init_process_group("gloo")
rank, x = dist.get_rank(), torch.zeros(250_000)
while True:
    dist.barrier()
    start = time.perf_counter()
    dist.send(x, 1) if rank == 0 else dist.recv(x, 0)
    dist.barrier()
    if rank == 0:
        print("took", time.perf_counter() - start, flush=True)
    stop = torch.tensor(float(Path(sys.argv[1], "stop").exists()))
    dist.broadcast(stop, 0)
    if stop:
        break
dist.destroy_process_group()
"""


@pytest.mark.extended  # a quarter of a minute by itself
def test_a_pair_becomes_slow_at_its_time_under_ranks_that_go_on(tmp_path, mark):
    pair = Topology(hosts=HOSTS[:2])
    took_s = []  # of what began after the change
    with emulate_cluster(pair, check=False) as cluster:

        def on_line(rank, line):
            if line.startswith("took") and {link.bytes_per_s for link in cluster.topology.links} == {1e6}:
                took_s.append(float(line.split()[1]))
                if len(took_s) == 3:
                    (tmp_path / "stop").touch()

        argv = [sys.executable, "-c", STAGES, str(tmp_path)]
        results = cluster.run(argv, changes=parse_changes(["at 1s: 0-1 8mbit"], pair), on_line=on_line, timeout_s=100)
        with pytest.raises(ValueError, match="only rates and delays can change"):
            cluster.run(["true"], changes=parse_changes(["at 1s: 0-2 8mbit"], MESH))
    assert [r.exit_code for r in results] == [0, 0]
    assert min(took_s[1:3]) > 0.6  # a megabyte at a megabyte a second, less what the token bucket lets through at once
    settles(mark)


def test_a_run_that_ends_before_a_change_says_so(caplog):
    pair = Topology(hosts=HOSTS[:2])
    with emulate_cluster(pair, check=False) as cluster:
        cluster.run(["true"], changes=parse_changes(["at 1h: 0-1 8mbit"], pair))
    assert "the run has ended before its links changed at 3600 s" in caplog.text


def test_figures_change_without_tearing_anything_down_and_back():
    """Another rate, no rate, a link less, none: what tc shows is what the topology says."""
    with emulate_cluster(MESH, check=False) as cluster:

        def shown(kind: str) -> str:
            return cluster.namespace(0).run("tc", kind, "show", "dev", "eth0")

        assert "rate 16Mbit" in shown("class")
        assert shown("qdisc").count("bfifo") == 3
        faster = tuple(replace(link, bytes_per_s=3e6) for link in MESH.links)
        cluster.reshape(replace(MESH, links=faster))
        assert "rate 24Mbit" in shown("class")
        assert "rate 16Mbit" not in shown("class")
        limited = replace(HOSTS[0], send_bytes_per_s=1e6)
        cluster.reshape(replace(MESH, hosts=(limited, *HOSTS[1:]), links=faster[:1]))
        assert "ceil 8Mbit" in shown("class")
        assert shown("qdisc").count("bfifo") == 2
        cluster.reshape(replace(MESH, hosts=(limited, *HOSTS[1:]), links=()))
        assert "tbf" in shown("qdisc")
        cluster.reshape(replace(MESH, links=()))
        assert "tbf" not in shown("qdisc")
        assert "htb" not in shown("qdisc")


CONGESTION = """
import os, socket, time
rank, connection = int(os.environ["RANK"]), None
if rank == 0:
    with socket.create_server(("10.77.0.1", 6000)) as server:
        connection, _ = server.accept()
while connection is None:
    try:
        connection = socket.create_connection(("10.77.0.1", 6000))
    except ConnectionRefusedError:
        time.sleep(0.01)
print(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(bytes(1)).decode())
"""


@pytest.mark.parametrize("congestion", ["cubic", *(pytest.param(c, marks=EXTENDED) for c in ("reno", "bbr"))])
def test_connections_have_the_congestion_control_that_was_asked_for(congestion):
    available = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split()
    if congestion not in available:
        pytest.skip(f"this kernel has not loaded {congestion}")
    said: list[str] = []
    with emulate_cluster(Topology(hosts=HOSTS[:2]), check=False, congestion=congestion) as cluster:
        cluster.run([sys.executable, "-c", CONGESTION], on_line=lambda _, line: said.append(line), timeout_s=100)
    assert said == [congestion, congestion]


def test_hosts_have_the_settings_of_tcp_that_the_topology_states():
    names = ("tcp_slow_start_after_idle", "tcp_wmem")
    before = [Path(f"/proc/sys/net/ipv4/{name}").read_text() for name in names]
    said: list[str] = []
    stated = Topology(hosts=HOSTS[:2], restarts_slowly=False, window_bytes=with_send_buffer(32_000_000))
    with emulate_cluster(stated, check=False) as cluster:
        argv = ["cat", *(f"/proc/sys/net/ipv4/{name}" for name in names)]
        cluster.run(argv, on_line=lambda _, line: said.append(line), timeout_s=100)
    assert sorted(said) == ["0", "0", "4096\t16384\t32000000", "4096\t16384\t32000000"]
    assert [Path(f"/proc/sys/net/ipv4/{name}").read_text() for name in names] == before
    assert "tcp_slow_start_after_idle = 0, tcp_wmem = 32000000 bytes" in TcpSettings.of(stated, "reno").text


@pytest.mark.parametrize("sign", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=EXTENDED)])
def test_nothing_stays_of_a_world_of_pairs_however_it_ends(tmp_path, mark, sign):
    """Relays, queues and classes go with the namespaces, and those with who made them."""
    before, marker, world = links(), tmp_path / "up", tmp_path / "mesh.json"
    save(MESH, world)
    script = tmp_path / "script.py"
    script.write_text("import os, sys, time\nopen(sys.argv[1] + os.environ['RANK'], 'w').close()\ntime.sleep(100)\n")
    options = ["--topology", str(world), "--change", "at 0s: a-b 1mbit delay 5ms loss 1%", "--no-check", "--"]
    command = [*PLIANT, "emulate", *options, sys.executable, str(script), str(marker)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    until(lambda: process.poll() is not None or all(Path(f"{marker}{rank}").exists() for rank in range(3)))
    assert process.poll() is None, process.communicate()
    assert sum("_delay_relay" in line for line in marked(mark)) == 2  # of a and b; nothing that comes to c is late
    process.send_signal(sign)
    process.communicate(timeout=250)
    assert process.returncode != 0
    settles(mark)
    assert links() == before


@pytest.mark.parametrize(
    ("module", "name", "broken", "words"),
    [
        (shaped_link, "htb_lines", lambda *_, **__: ["qdisc add dev eth0 root nonsense"], "`.*tc -batch -` failed"),
        (delay, "_relay_path", lambda: Path("/bin/false"), "the delay relay of host a does not do its work"),
        (delay, "_queue_of", lambda source: 70_000, "the delay relay .*: no figures of a queue: 70000"),
    ],
)
def test_nothing_stays_where_a_part_cannot_be_made(monkeypatch, mark, module, name, broken, words):
    monkeypatch.setattr(module, name, broken)
    with pytest.raises(CannotEmulateError, match=words), emulate_cluster(MESH, check=False):
        pass
    settles(mark)
