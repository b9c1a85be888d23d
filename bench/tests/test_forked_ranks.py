"""Ranks that a fork server has made end with their job."""

import os
import signal
import subprocess
import sys

import pytest

JOB = """
import multiprocessing, os, time
from pliant_bench.faults.processes import end_with_job

def be(told):
    end_with_job()
    os.write(told, f"{os.getpid()}\\n".encode())
    time.sleep(3600)

if __name__ == "__main__":
    started = [multiprocessing.get_context("forkserver").Process(target=be, args=(1,)) for _ in range(2)]
    for process in started:
        process.start()
    for process in started:
        process.join()
"""


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_ranks_of_a_fork_server_end_with_the_job_however_it_ends(tmp_path, number):
    """What they hold open, the pipe of their words, is closed once the last is gone."""
    (tmp_path / "job.py").write_text(JOB)
    with subprocess.Popen([sys.executable, str(tmp_path / "job.py")], stdout=subprocess.PIPE, text=True) as job:
        ranks = [int(job.stdout.readline()) for _ in range(2)]
        job.send_signal(number)
        try:
            assert job.communicate(timeout=60)[0] == ""
        except subprocess.TimeoutExpired:
            for rank in ranks:
                os.kill(rank, signal.SIGKILL)
            raise
