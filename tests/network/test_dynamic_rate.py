"""The link goes from 1000 to 100 to 10 to 100 Mbit/s in mid-training, on emulated hosts: exposed time is held."""

import json
import statistics
import sys
from pathlib import Path

import pytest

from pliant.network import emulated
from pliant.spec import Host, Topology

# Measured times decide here, and the machine may be busy: what is wrong is wrong three times.
pytestmark = [pytest.mark.netns, pytest.mark.usefixtures("emulating"), pytest.mark.flaky(reruns=2)]

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "tasc" / "pace_worker.py"
RATES_MBIT = (1000, 100, 10, 100)
STEPS = 45


def hosts(mbit):
    rate = mbit * 125e3
    return Topology(hosts=tuple(Host(name=f"h{k}", send_bytes_per_s=rate, receive_bytes_per_s=rate) for k in range(2)))


@pytest.mark.parametrize(("algorithm", "target_s"), [("blocktopk", 0.06), ("tasc", 0.1)])
def test_exposed_time_is_held_while_the_rate_changes(tmp_path, algorithm, target_s):
    said = []
    with emulated(hosts(RATES_MBIT[0]), check=False) as cluster:

        def take(rank, line):
            if not line.startswith("{"):
                print(f"[{rank}] {line}")
                return
            said.append(json.loads(line) | {"rank": rank})
            if rank == 0 and len(said[-1]["ratios"]) and said[-1]["phase"] + 1 < len(RATES_MBIT):
                cluster.reshape(hosts(RATES_MBIT[said[-1]["phase"] + 1]))
                (tmp_path / f"go{said[-1]['phase'] + 1}").touch()

        argv = [sys.executable, str(SCRIPT), str(tmp_path), str(target_s), str(STEPS), str(len(RATES_MBIT)), algorithm]
        results = cluster.run(argv, on_line=take, timeout_s=110)
    assert [result.exit_code for result in results] == [0, 0]
    phases = {(each["phase"], each["rank"]): each for each in said}
    ratios, exposed_s = [], []
    for phase in range(len(RATES_MBIT)):
        one, other = phases[phase, 0], phases[phase, 1]
        assert one["ratios"] == other["ratios"], "ranks have decided differently"
        ratios.append(statistics.median(one["ratios"][-20:]))
        exposed_s.append(min(statistics.median(each["exposed_s"][-20:]) for each in (one, other)))
    # Generous, since the machine is busy: that the target is held within 10 % is measured by benchmarks/tasc/pace.py.
    assert all(0.6 * target_s < s < 1.5 * target_s for s in exposed_s[1:]), (exposed_s, ratios)
    assert exposed_s[0] < 1.5 * target_s
    assert ratios[0] > 3 * ratios[2], ratios
    assert ratios[1] > 3 * ratios[2], ratios
    assert ratios[3] > 2 * ratios[2], ratios
