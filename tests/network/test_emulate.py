"""Real namespaces, real TCP. They need root, or a kernel that lets users make namespaces."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pliant.network import CannotEmulateError, emulated
from pliant.spec import Host, Topology

pytestmark = pytest.mark.netns

PLIANT = [sys.executable, "-m", "pliant.cli.main"]


@pytest.fixture(scope="module", autouse=True)
def _machine_can():
    try:
        with emulated(Topology(hosts=(Host(name="a"),)), check=False):
            pass
    except CannotEmulateError as error:
        pytest.skip(f"this machine cannot emulate hosts: {error}")


def traces() -> tuple:
    """What a run could leave on the machine."""
    links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout.splitlines()
    namespaces = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            namespaces.add(os.readlink(process / "ns" / "net"))
        except OSError:
            continue
    return sorted(line.split(":")[1] for line in links), sorted(namespaces)


def settles(before: tuple) -> None:
    deadline = time.monotonic() + 10
    while traces() != before:
        assert time.monotonic() < deadline, (before, traces())
        time.sleep(0.1)


def emulate(*options: str, code: str, tmp_path: Path) -> subprocess.CompletedProcess:
    script = tmp_path / "script.py"
    script.write_text(code)
    command = [*PLIANT, "emulate", *options, "--", sys.executable, str(script)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


SUM = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.tensor([float(os.environ["RANK"]) + 1])
dist.all_reduce(x)
print("sum", x.item(), "of", os.environ["WORLD_SIZE"], "on", os.environ["GROUP_RANK"], os.environ["LOCAL_RANK"])
dist.destroy_process_group()
"""


def test_ranks_meet_and_links_are_as_asked(tmp_path):
    before = traces()
    out = tmp_path / "out.json"
    options = ("--hosts", "2", "--ranks-per-host", "2", "--rate", "100mbit", "--delay", "4ms", "--slow", "1:0.5")
    done = emulate(*options, "--json", str(out), code=SUM, tmp_path=tmp_path)
    assert done.returncode == 0, done.stderr
    for rank in range(4):
        assert f"[host{rank // 2} {rank}] sum 10.0 of 4 on {rank // 2} {rank % 2}" in done.stdout
    result = json.loads(out.read_text())
    assert [r["exit_code"] for r in result["ranks"]] == [0] * 4
    for link in result["links"]:
        assert link["found_bytes_per_s"] * 8e-6 == pytest.approx(50, rel=0.25)  # the slower end decides
        assert 0.007 < link["found_round_trip_s"] < 0.03
    settles(before)


def test_a_failing_rank_ends_the_others(tmp_path):
    code = "import os, sys, time\nif os.environ['RANK'] == '1': sys.exit(7)\ntime.sleep(60)"
    start = time.monotonic()
    done = emulate("--hosts", "2", "--rate", "none", "--no-check", code=code, tmp_path=tmp_path)
    assert time.monotonic() - start < 20
    assert done.returncode == 1
    assert "failed" in done.stderr
    assert "ended because another rank failed" in done.stderr


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_stays_however_it_ends(tmp_path, sign):
    before = traces()
    marker = tmp_path / "up"
    script = tmp_path / "script.py"
    script.write_text(
        f"import time\nopen({str(marker)!r} + __import__('os').environ['RANK'], 'w').close()\ntime.sleep(100)"
    )
    command = [*PLIANT, "emulate", "--hosts", "2", "--delay", "1ms", "--no-check", "--", sys.executable, str(script)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 30
    while not all(Path(f"{marker}{rank}").exists() for rank in range(2)):
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(sign)
    process.communicate(timeout=30)
    assert process.returncode != 0
    settles(before)
    left = subprocess.run(["pgrep", "-f", str(script)], capture_output=True, text=True, check=False).stdout
    assert left == ""


def test_time_is_up(tmp_path):
    done = emulate("--hosts", "1", "--timeout", "1s", code="import time; time.sleep(50)", tmp_path=tmp_path)
    assert done.returncode == 1


def test_a_topology_file_and_flags_are_refused_together(tmp_path):
    options = ("--topology", "t.json", "--rate", "1gbit")
    done = emulate(*options, code="", tmp_path=tmp_path)
    assert done.returncode == 2
    assert "both given; use one" in done.stderr
    assert "Traceback" not in done.stderr
