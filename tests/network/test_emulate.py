"""Real namespaces, real TCP. They need root, or a kernel that lets users make namespaces."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from network.leftovers import PLIANT, links, marked, settles
from pliant.network import CannotEmulateError, emulate_cluster
from pliant.spec import Host, Topology
from waiting import until

pytestmark = [pytest.mark.netns, pytest.mark.usefixtures("emulating")]


def emulate(*options: str, code: str, tmp_path: Path) -> subprocess.CompletedProcess:
    script = tmp_path / "script.py"
    script.write_text(code)
    command = [*PLIANT, "emulate", *options, "--", sys.executable, str(script)]
    return subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)


SUM = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.tensor([float(os.environ["RANK"]) + 1])
dist.all_reduce(x)
print("sum", x.item(), "of", os.environ["WORLD_SIZE"], "on", os.environ["GROUP_RANK"], os.environ["LOCAL_RANK"])
dist.destroy_process_group()
"""


@pytest.mark.idle
def test_ranks_meet_and_links_are_as_asked(tmp_path, mark):
    before = links()
    out = tmp_path / "out.json"
    # Slow and far, so that a busy machine carries them too.
    options = ("--hosts", "2", "--ranks-per-host", "2", "--rate", "20mbit", "--delay", "20ms", "--slow", "1:0.5")
    done = emulate(*options, "--json", str(out), code=SUM, tmp_path=tmp_path)
    assert done.returncode == 0, done.stderr
    for rank in range(4):
        assert f"[host{rank // 2} {rank}] sum 10.0 of 4 on {rank // 2} {rank % 2}" in done.stdout
    result = json.loads(out.read_text())
    assert [r["exit_code"] for r in result["ranks"]] == [0] * 4
    for link in result["links"]:
        assert link["wanted_bytes_per_s"] * 8e-6 == 10  # the slower end decides
        assert 0.2 * 10 < link["found_bytes_per_s"] * 8e-6 < 1.25 * 10  # a busy machine makes less of it, never more
        assert link["found_round_trip_s"] > 0.9 * link["wanted_round_trip_s"] == pytest.approx(0.036)
    settles(mark)
    assert links() == before


def test_a_failing_rank_ends_the_others(tmp_path):
    # What a failed rank leaves running, with our pipe in its hands, must not hold us up either.
    code = """
import os, subprocess, sys, time
if os.environ["RANK"] == "1":
    subprocess.Popen(["sleep", "300"])
    sys.exit(7)
time.sleep(300)
"""
    done = emulate("--hosts", "2", "--rate", "none", "--no-check", code=code, tmp_path=tmp_path)  # gives up before
    assert done.returncode == 1
    assert "failed: exit code 7" in done.stderr
    assert "stopped: another rank failed" in done.stderr


def _heeds_interrupts():
    """Undo what a shell does to what it runs in the background: there, SIGINT is ignored, and so by all descendants."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def children():
    """Return the processes that this one has started and that still run."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            if int(stat.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                found.add(int(stat.parent.name))
    return found


def test_what_runs_on_hosts_stays_in_our_session():
    """Linux shares CPUs among sessions, and on full cores lets those of one wait for seconds for another."""
    before = children()
    hosts = tuple(Host(name=name, delay_s=0.001) for name in "ab")
    with emulate_cluster(Topology(hosts=hosts), check=False, elastic=True) as cluster:
        rank = cluster.popen(0, ["sleep", "60"])
        started = children() - before
        assert {os.getsid(pid) for pid in started} == {os.getsid(0)}
        assert len(started) >= 6  # hosts, their switch, relays, the store, the rank
        assert os.getpgid(rank.pid) == rank.pid  # so that it is ended with all that it has started
        os.killpg(rank.pid, signal.SIGKILL)
        rank.communicate()


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_stays_however_it_ends(tmp_path, mark, sign):
    marker = tmp_path / "up"
    script = tmp_path / "script.py"
    # A process in a session of its own is out of reach of signals to the rank's group.
    script.write_text(
        "import os, subprocess, sys, time\n"
        "sleeper = [sys.executable, '-c', 'import time; time.sleep(100)', sys.argv[1]]\n"
        "subprocess.Popen(sleeper, start_new_session=True)\n"
        "open(sys.argv[1] + os.environ['RANK'], 'w').close()\n"
        "time.sleep(100)\n"
    )
    options = ["--hosts", "2", "--delay", "1ms", "--no-check", "--"]
    command = [*PLIANT, "emulate", *options, sys.executable, str(script), str(marker)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=_heeds_interrupts)
    until(lambda: process.poll() is not None or all(Path(f"{marker}{rank}").exists() for rank in range(2)))
    assert process.poll() is None, process.communicate()
    process.send_signal(sign)
    process.communicate(timeout=250)
    assert process.returncode != 0
    settles(mark)


def test_time_is_up(tmp_path):
    done = emulate("--hosts", "1", "--timeout", "1s", code="import time; time.sleep(50)", tmp_path=tmp_path)
    assert done.returncode == 1


def test_a_topology_file_and_flags_are_refused_together(tmp_path):
    options = ("--topology", "t.json", "--rate", "1gbit")
    done = emulate(*options, code="", tmp_path=tmp_path)
    assert done.returncode == 2
    assert "--topology t.json and --rate both say" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_rank_that_handles_sigterm_gets_its_time(tmp_path):
    code = """
import os, signal, sys, time
from pathlib import Path
def leave(*_):
    print("saved", flush=True)
    sys.exit(0)
ready = Path(__file__).with_name("ready")
if os.environ["RANK"] == "0":
    signal.signal(signal.SIGTERM, leave)
    ready.touch()
    time.sleep(300)
while not ready.exists():
    time.sleep(0.02)
sys.exit(3)
"""
    done = emulate("--hosts", "2", "--rate", "none", "--no-check", code=code, tmp_path=tmp_path)
    assert "[host0 0] saved" in done.stdout


def test_links_that_the_machine_cannot_carry_are_refused():
    hosts = tuple(Host(name=n, send_bytes_per_s=5e10, receive_bytes_per_s=5e10) for n in "ab")
    refused = pytest.raises(RuntimeError, match=r"a -> b carries .* instead of 400gbit")
    with refused, emulate_cluster(Topology(hosts=hosts)):
        pass


def test_ranks_share_a_limit_of_cpus():
    """Two busy ranks on a host with a fifth of a CPU get a fifth of a second of it in a second, together."""
    code = """
import time
start_s, spent_s = time.monotonic(), time.process_time()
while time.monotonic() - start_s < 2: pass
print(start_s, time.monotonic(), time.process_time() - spent_s)
"""
    said: list[str] = []
    try:
        with emulate_cluster(Topology(hosts=(Host(name="a", num_ranks=2, cpu_share=0.2),)), check=False) as cluster:
            cluster.run([sys.executable, "-c", code], on_line=lambda _, line: said.append(line))
    except CannotEmulateError as error:
        pytest.skip(str(error))
    begun_s, ended_s, spent_s = zip(*(map(float, line.split()) for line in said), strict=True)
    assert len(spent_s) == 2
    beside_the_ends = 0.05  # seconds of CPU: the kernel gives a quota each tenth of a second
    assert sum(spent_s) < 0.2 * (max(ended_s) - min(begun_s)) + beside_the_ends


def test_what_cannot_be_emulated_is_refused_before_anything_is_made():
    many = Topology(hosts=tuple(Host(name=str(k)) for k in range(300)))
    with pytest.raises(ValueError, match="300 hosts, but at most 250"), emulate_cluster(many):
        pass


ROUND_TRIP = """
import os, sys, time, torch, torch.distributed as dist
from pathlib import Path
dist.init_process_group("gloo")
rank, x = dist.get_rank(), torch.zeros(250_000)
for stage in range(3):
    dist.barrier()
    if rank == 0:
        print(f"stage {stage}", flush=True)
    while not Path(sys.argv[1], str(stage)).exists():
        time.sleep(0.01)
    dist.barrier()
    start = time.perf_counter()
    dist.send(x, 1) if rank == 0 else dist.recv(x, 0)
    dist.barrier()
    if rank == 0:
        print(f"took {time.perf_counter() - start}", flush=True)
"""


def test_links_change_under_ranks_that_live_on(tmp_path, mark):
    script = tmp_path / "script.py"
    script.write_text(ROUND_TRIP)

    def topology(rate, delay_s):
        hosts = (Host(name=n, send_bytes_per_s=rate, receive_bytes_per_s=rate, delay_s=delay_s) for n in "ab")
        return Topology(hosts=tuple(hosts))

    stages = [topology(0.0, 0.0), topology(1e6, 0.0), topology(0.0, 0.2)]
    took = []
    with emulate_cluster(stages[0], check=False) as cluster:
        assert marked(mark)  # so that none left means something

        def on_line(rank, line):
            word, _, value = line.partition(" ")
            if word == "stage":
                cluster.reshape(stages[int(value)])
                (tmp_path / value).touch()
            elif word == "took":
                took.append(float(value))

        results = cluster.run([sys.executable, str(script), str(tmp_path)], on_line=on_line, timeout_s=60)
        with pytest.raises(ValueError, match="only rates and delays can change"):
            cluster.reshape(Topology(hosts=(Host(name="a"),)))
    assert [r.exit_code for r in results] == [0, 0]
    assert took[1] > 0.6  # a megabyte at a megabyte a second, less what the token bucket lets through at once
    assert took[2] > 0.2
    assert len(took) == 3
    settles(mark)


LOST = """
import logging, os, sys, torch, pliant
from pathlib import Path
logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
rank, folder = int(os.environ["RANK"]), Path(sys.argv[1])
torch.manual_seed(0)
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
elastic = pliant.Elastic(secret_file=os.environ["PLIANT_SECRET_FILE"])
with pliant.relax(model, optimizer, "local_sgd", timeout_s=60, elastic=elastic) as run:
    print("begins at", run.steps)
    last = folder / "last"  # who has come back says which step is to be the last
    while not last.exists() or run.steps < int(last.read_text()):
        if run.steps == 20 and rank == 1:
            os._exit(9)
        optimizer.zero_grad()
        run.model(torch.randn(16, 8)).square().mean().backward()
        optimizer.step()
        if rank == 1 and run.steps > 30 and not last.exists():
            (folder / "new").write_text(str(run.steps + 50))
            (folder / "new").rename(last)
print("ended", float(model.weight.double().sum()))
"""


@pytest.mark.extended  # half a minute by itself
def test_an_elastic_run_goes_on_and_the_failed_rank_is_started_again(tmp_path, mark):
    script = tmp_path / "script.py"
    script.write_text(LOST)
    options = ["--hosts", "3", "--rate", "100mbit", "--no-check", "--elastic", "--restart", "1", "--timeout", "150s"]
    command = [*PLIANT, "emulate", *options, "--json", str(tmp_path / "o.json"), "--", sys.executable, str(script)]
    done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    ranks = json.loads((tmp_path / "o.json").read_text())["ranks"]
    assert [(r["exit_code"], r["restarts"]) for r in ranks] == [(0, 0), (0, 1), (0, 0)]
    assert "[host1 1] failed (9), and is started again, 1 of 1" in done.stdout
    assert "cannot be retrieved" not in done.stdout  # addresses have names
    assert len({line.split()[-1] for line in done.stdout.splitlines() if "] ended" in line}) == 1
    settles(mark)


def test_what_needs_elastic_hosts_says_so(tmp_path):
    done = emulate("--restart", "1", code="", tmp_path=tmp_path)
    assert done.returncode == 2
    assert "--restart 1 brings ranks back to others that go on; add --elastic" in " ".join(done.stderr.split())
