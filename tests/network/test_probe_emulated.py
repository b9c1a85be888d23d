"""`pliant probe` on emulated hosts, whose rates and delays are known."""

import subprocess
import sys

import pytest

from pliant.spec import Machine, Topology, load

pytestmark = [pytest.mark.netns, pytest.mark.idle, pytest.mark.extended, pytest.mark.usefixtures("emulating")]

PLIANT = [sys.executable, "-m", "pliant.cli.main"]


@pytest.mark.parametrize(
    ("hosts", "slow", "rate", "delay_ms"),
    [(2, [], 10, 0), (3, ["--slow", "1:0.25"], 20, 20)],
)
def test_it_finds_what_was_asked_for(hosts, slow, rate, delay_ms, tmp_path):
    emulate = ["emulate", "--hosts", str(hosts), "--rate", f"{rate}mbit", "--delay", f"{delay_ms}ms", "--no-check"]
    files = ["--out", str(tmp_path / "topology.json"), "--machine", str(tmp_path / "machine.json")]
    command = [*PLIANT, *emulate, *slow, "--", *PLIANT, "probe", *files, "--budget", "4s"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    assert done.stdout.count("hosts, each at its best") == 1  # one rank speaks
    found = load(Topology, tmp_path / "topology.json")
    wanted = [rate * (0.25 if slow and k == 1 else 1.0) for k in range(hosts)]
    for host, mbit in zip(found.hosts, wanted, strict=True):
        for bytes_per_s in (host.send_bytes_per_s, host.receive_bytes_per_s):
            # A busy machine makes less of a rate and more of a delay; packets that it holds up and lets go together
            # make more of a rate. How close the probe comes is held by laws on made-up arrivals; these bounds still
            # tell bits from bytes.
            assert 0.15 * mbit < bytes_per_s * 8e-6 < 3 * mbit
        assert 0.7 * delay_ms - 4 < 1e3 * host.delay_s < 5 * delay_ms + 100
    if slow:
        rates = [host.send_bytes_per_s for host in found.hosts]
        assert rates[1] == min(rates)
    assert "qsgd" in load(Machine, tmp_path / "machine.json").encode_s_per_element
