"""The link goes from 100 to 5 to 100 Mbit/s in mid-training, on emulated hosts: what is sent follows it.

Whether the exposed time is held is measured by benchmarks/tasc/pace.py, and by the laws of the governor on a made-up
network in tests/engine/test_dynamic.py.
"""

import json
import statistics
import sys
from pathlib import Path

import pytest

from pliant.network import emulated
from pliant.spec import Host, Topology

pytestmark = [pytest.mark.netns, pytest.mark.idle, pytest.mark.usefixtures("emulating")]

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "tasc" / "pace_worker.py"
RATES_MBIT = (100, 5, 100)
STEPS = 30
TARGET_S = 0.15
"""So long that what a busy machine adds to a step does not decide."""


def hosts(mbit):
    rate = mbit * 125e3
    return Topology(hosts=tuple(Host(name=f"h{k}", send_bytes_per_s=rate, receive_bytes_per_s=rate) for k in range(2)))


@pytest.mark.parametrize("algorithm", ["blocktopk", pytest.param("tasc", marks=pytest.mark.extended)])
def test_what_is_sent_follows_the_rate(tmp_path, algorithm):
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

        argv = [sys.executable, str(SCRIPT), str(tmp_path), str(TARGET_S), str(STEPS), str(len(RATES_MBIT)), algorithm]
        results = cluster.run(argv, on_line=take, timeout_s=110)
    assert [result.exit_code for result in results] == [0, 0]
    phases = {(each["phase"], each["rank"]): each for each in said}
    ratios, sent = [], []
    for phase in range(len(RATES_MBIT)):
        one, other = phases[phase, 0], phases[phase, 1]
        assert one["ratios"] == other["ratios"], "ranks have decided differently"
        ratios.append(statistics.median(one["ratios"][-10:]))
        sent.append(statistics.median(one["sent_bytes"][-10:]))
    assert min(ratios[0], ratios[2]) > 2 * ratios[1] > 0, ratios
    assert min(sent[0], sent[2]) > 1.5 * sent[1] > 0, sent
