"""With owners at a free pace, a rank that is killed or stopped ends the others, and is named."""

import signal

import pytest

from processes.ranks import await_all, fork, said
from processes.test_lost_rank import SCRIPT

pytestmark = pytest.mark.processes


@pytest.mark.parametrize(
    ("victim", "sign"), [(1, signal.SIGKILL), pytest.param(2, signal.SIGSTOP, marks=pytest.mark.extended)]
)
def test_the_others_end_and_name_it(tmp_path, victim, sign):
    ranks = fork(SCRIPT.format(what="stale", timeout_s=10, connections=1), 3, tmp_path)
    try:
        await_all(ranks, tmp_path, "training")
        ranks[victim].send_signal(sign)
        others = [r for r in range(3) if r != victim]
        for rank in others:
            assert ranks[rank].wait(timeout=250) != 0
        words = [said(tmp_path, r) for r in others]
        assert all("CommError" in text for text in words), words
        assert any(f"rank {victim} no longer takes part" in text for text in words), "\n".join(words)
    finally:
        for process in ranks:
            process.kill()
            process.wait()
