"""The link goes from 5 to 100 to 5 Mbit/s in mid-training, on emulated hosts: what is sent follows it.

Whether the exposed time is held is measured by benchmarks/tasc/pace.py, and by the laws of the governor on a made-up
network in tests/engine/test_ratio_controller.py.
"""

import json
import statistics
import sys
from pathlib import Path

import pytest

from pliant.network import emulate_cluster
from pliant.spec import Host, Topology

pytestmark = [pytest.mark.netns, pytest.mark.idle, pytest.mark.extended, pytest.mark.usefixtures("emulating")]

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "tasc" / "pace_worker.py"
LOW_MBIT, HIGH_MBIT = 5, 100
STEPS, SETTLED, MOST = 10, 3, 40
"""Steps of a phase, phases at the first rate, and most phases in all: on a busy machine it takes longer."""
TARGET_S = 0.15
"""So long that what a busy machine adds to a step does not decide."""


def hosts(mbit):
    rate = mbit * 125e3
    return Topology(hosts=tuple(Host(name=f"h{k}", send_bytes_per_s=rate, receive_bytes_per_s=rate) for k in range(2)))


class Story:
    """The rate is low, then high until much more is sent, then low until much less is."""

    def __init__(self):
        self.low, self.high, self.ended = (0.0, 0.0), (0.0, 0.0), False
        self.num_phases = 0

    def rate_after(self, ratio, sent):
        """Return the rate of the next phase, or None at the end."""
        self.num_phases += 1
        if self.num_phases < SETTLED:
            return LOW_MBIT
        if not self.low[0]:
            self.low = ratio, sent
            return HIGH_MBIT
        if not self.high[0]:
            if not (ratio > 2 * self.low[0] and sent > 1.5 * self.low[1]):
                return HIGH_MBIT
            self.high = ratio, sent
            return LOW_MBIT
        self.ended = ratio < self.high[0] / 2 and sent < self.high[1] / 1.5
        return None if self.ended else LOW_MBIT


@pytest.mark.parametrize("algorithm", ["blocktopk", "tasc"])
def test_what_is_sent_follows_the_rate(tmp_path, algorithm):
    story, ratios = Story(), {0: [], 1: []}
    with emulate_cluster(hosts(LOW_MBIT), check=False) as cluster:

        def take(rank, line):
            if not line.startswith("{"):
                print(f"[{rank}] {line}")
                return
            said = json.loads(line)
            ratios[rank].append(said["ratios"])
            if rank == 0:
                rate = story.rate_after(statistics.median(said["ratios"]), statistics.median(said["sent_bytes"]))
                if rate is not None:
                    cluster.reshape(hosts(rate))
                (tmp_path / (f"go{said['phase'] + 1}" if rate is not None else "end")).touch()

        argv = [sys.executable, str(SCRIPT), str(tmp_path), str(TARGET_S), str(STEPS), str(MOST), algorithm]
        results = cluster.run(argv, on_line=take, timeout_s=600)
    assert [result.exit_code for result in results] == [0, 0]
    assert ratios[0] == ratios[1], "ranks have decided differently"
    assert story.ended, (story.low, story.high, [statistics.median(each) for each in ratios[0]])
