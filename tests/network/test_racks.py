"""Racks in real namespaces: each uplink carries its rate, in all, and hosts inside a rack do not notice it."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from pliant.cli.racks import split_into_racks
from pliant.network import emulate_cluster
from pliant.network.link_check import LinkReport, link_faults, measure_links
from pliant.spec import Host, Rack, Topology

EMULATE = [sys.executable, "-m", "pliant.cli.main", "emulate"]


def four(rate=12.5e6, uplink=3.125e6, racks=(("h0", "h1"), ("h2", "h3"))):
    hosts = tuple(Host(name=f"h{k}", send_bytes_per_s=rate, receive_bytes_per_s=rate) for k in range(4))
    found = tuple(
        Rack(name=f"r{k}", hosts=names, send_bytes_per_s=uplink, receive_bytes_per_s=uplink)
        for k, names in enumerate(racks)
    )
    return Topology(hosts=hosts, racks=found)


def test_flags_divide_hosts():
    hosts = Topology(hosts=tuple(Host(name=f"h{k}") for k in range(5)))
    assert split_into_racks(hosts, 0, "") is hosts
    divided = split_into_racks(hosts, 2, "25mbit")
    assert [rack.hosts for rack in divided.racks] == [("h0", "h1"), ("h2", "h3", "h4")]
    assert {rack.send_bytes_per_s for rack in divided.racks} == {25e6 / 8}
    assert divided.rack_of() == (0, 0, 1, 1, 1)
    assert split_into_racks(hosts, 5, "none").racks[4].receive_bytes_per_s == 0
    for racks, uplink in ((2, ""), (0, "1gbit"), (-1, "1gbit")):
        with pytest.raises(ValueError, match="go together, as in --racks 2 --uplink 25mbit"):
            split_into_racks(hosts, racks, uplink)
    with pytest.raises(ValueError, match="--racks is 6, but there are 5 hosts"):
        split_into_racks(hosts, 6, "1gbit")


@pytest.mark.netns
@pytest.mark.idle
@pytest.mark.usefixtures("emulating")
def test_an_uplink_is_shared_and_can_be_changed():
    topology = four(rate=6.25e6, uplink=2e6)  # slow ones, which a busy machine can carry
    with emulate_cluster(topology, check=False) as cluster:
        links = {(r.source, r.target): r for r in cluster.check_links()}
        assert set(links) == {("h0", "h1"), ("h1", "h0"), ("h2", "h3"), ("h3", "h2"), ("r0", "r1"), ("r1", "r0")}
        for ends, report in links.items():
            assert report.wanted_bytes_per_s == (2e6 if ends[0].startswith("r") else 6.25e6)
            # A busy machine makes less of a rate, but never more.
            assert 0.2 < report.found_bytes_per_s / report.wanted_bytes_per_s < 1.25
        wide = replace(topology, racks=tuple(replace(r, send_bytes_per_s=0.0) for r in topology.racks))
        cluster.reshape(replace(wide, racks=tuple(replace(r, receive_bytes_per_s=0.0) for r in wide.racks)))
        across = cluster.check_links()[4:]
        assert [report.wanted_bytes_per_s for report in across] == [6.25e6] * 2
        assert max(report.found_bytes_per_s for report in across) > 2.5e6
        with pytest.raises(ValueError, match="in 2 racks, but the new topology has"):
            cluster.reshape(four(rate=6.25e6, racks=(("h0", "h2"), ("h1", "h3"))))
        with pytest.raises(ValueError, match="only rates and delays can change"):
            cluster.reshape(replace(topology, racks=()))


@pytest.mark.extended
@pytest.mark.netns
@pytest.mark.idle
@pytest.mark.usefixtures("emulating")
def test_a_slow_uplink_behind_faster_links_is_read_right():
    """Slow start makes its queue run over, and then a connection says nothing for a while, though the link is busy."""
    with emulate_cluster(four(rate=2e6, uplink=1e6), check=False) as cluster:
        across = [report for report in cluster.check_links() if report.source.startswith("r")]
    assert [report.wanted_bytes_per_s for report in across] == [1e6, 1e6]
    assert link_faults(across) == []


@pytest.mark.extended
@pytest.mark.netns
@pytest.mark.idle
@pytest.mark.usefixtures("emulating")
def test_what_leaves_a_rack_shares_its_uplink():
    """Two hosts send a megabyte each, inside their rack and out of it. On a busy machine this only takes longer."""
    code = (
        "import sys, time, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "rank, x = dist.get_rank(), torch.zeros(250_000)\n"
        "for to in ({0: 1, 2: 3}, {0: 2, 1: 3}):\n"
        "    dist.barrier()\n"
        "    start_s = time.perf_counter()\n"
        "    if rank in to: dist.send(x, to[rank])\n"
        "    for source, target in to.items():\n"
        "        if rank == target: dist.recv(x, source)\n"
        "    dist.barrier()\n"
        "    print(time.perf_counter() - start_s)\n"
        "dist.destroy_process_group()\n"
    )
    said = []
    with emulate_cluster(four(rate=0.0, uplink=2e6), check=False) as cluster:
        on_line = lambda rank, line: said.append(line) if rank == 0 and "c10d" not in line else None  # noqa: E731
        results = cluster.run([sys.executable, "-c", code], on_line=on_line, timeout_s=100)
    assert [r.exit_code for r in results] == [0] * 4
    inside_s, out_s = map(float, said)
    assert out_s > 0.8  # 2 MB at 2 MB/s, less what the bucket lets through at once
    assert inside_s < out_s


@pytest.mark.extended
@pytest.mark.netns
@pytest.mark.idle
@pytest.mark.usefixtures("emulating")
def test_racks_by_flags_and_ranks_that_meet_across_them(tmp_path):
    code = (
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "x = torch.ones(1)\n"
        "dist.all_reduce(x)\n"
        "print('sum', x.item())\n"
        "dist.destroy_process_group()\n"
    )
    out = tmp_path / "out.json"
    links = ["--hosts", "3", "--rate", "20mbit", "--racks", "2", "--uplink", "5mbit"]  # even a busy machine
    command = [*EMULATE, *links, "--json", str(out), "--elastic", "--", sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("sum 3.0") == 3
    found = json.loads(out.read_text())["links"]
    # host0 is alone in its rack, so its own link is seen only as part of the uplink.
    assert [(r["source"], r["wanted_bytes_per_s"]) for r in found] == [
        ("host1", 2.5e6),
        ("host2", 2.5e6),
        ("rack0", 0.625e6),
        ("rack1", 0.625e6),
    ]


@pytest.mark.parametrize(
    ("uplink", "flows", "wanted"), [(3e5, 1, 3e5), (1e6, 1, 1e6), (1.5e6, 2, 1.5e6), (9e6, 2, 2e6), (0.0, 1, 1e6)]
)
def test_as_many_send_as_fill_the_uplink(monkeypatch, uplink, flows, wanted):
    asked = []

    def flowing(names, flows, hosts, addresses, burst, shares=()):
        asked.append([(flow.source, flow.target) for flow in flows])
        return [
            LinkReport(
                source=names[flow.source],
                target=names[flow.target],
                wanted_bytes_per_s=flow.bytes_per_s,
                found_bytes_per_s=5.0,
                wanted_round_trip_s=0.0,
                found_round_trip_s=0.0,
            )
            for flow in flows
        ]

    monkeypatch.setattr("pliant.network.link_check._measure_flows", flowing)
    found = measure_links(four(rate=1e6, uplink=uplink, racks=(("h0", "h2"), ("h1", "h3"))), [], [])
    ways = [[(0, 1), (2, 3)], [(1, 0), (3, 2)]]  # from either rack
    assert asked == [[(0, 2), (2, 0), (1, 3), (3, 1)], [end for way in ways for end in way[:flows]]]
    assert [(r.source, r.wanted_bytes_per_s, r.found_bytes_per_s) for r in found[4:]] == [
        ("r0", wanted, 5.0 * flows),
        ("r1", wanted, 5.0 * flows),
    ]
