"""A rank that is killed or stopped at any moment ends the others, with a sentence that names it."""

import re
import signal

import pytest

from processes.ranks import await_all, fork, said
from waiting import until

pytestmark = pytest.mark.processes

SCRIPT = """
import torch, torch.distributed as dist, pliant, pliant.comm.striping
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = torch.nn.Sequential(torch.nn.Linear(200, 200), torch.nn.Linear(200, 200))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
pliant.comm.striping.SLICE_BYTES = 1024
run = pliant.relax(model, optimizer, "{what}", timeout_s={timeout_s}, connections={connections})
for step in range(10**9):
    optimizer.zero_grad()
    run.model(torch.randn(8, 200)).square().mean().backward()
    optimizer.step()
    if step == 5:
        print("training", flush=True)
"""


@pytest.mark.parametrize(
    ("what", "victim", "sign", "connections"),
    [
        pytest.param("allreduce", 2, signal.SIGKILL, 4, marks=pytest.mark.extended),
        pytest.param("onebit", 1, signal.SIGKILL, 1, marks=pytest.mark.extended),
        ("topk", 0, signal.SIGKILL, 1),  # hosts the store
        ("bytegrad", 1, signal.SIGSTOP, 4),
    ],
)
def test_the_others_end_and_name_it(tmp_path, what, victim, sign, connections):
    ranks = fork(SCRIPT.format(what=what, timeout_s=3, connections=connections), 3, tmp_path)
    try:
        await_all(ranks, tmp_path, "training")
        ranks[victim].send_signal(sign)
        others = [r for r in range(3) if r != victim]
        for rank in others:
            assert ranks[rank].wait(timeout=250) != 0
        # Whoever ends first takes its own connections with it, so a survivor may name both; the first names the victim.
        named = [
            re.search(r"CommError: while (?:exchanging|comparing) .*rank ([\d, ]+) is gone", said(tmp_path, r))
            for r in others
        ]
        assert any(found and str(victim) in found[1].split(", ") for found in named), [
            said(tmp_path, r) for r in others
        ]
        assert all("CommError: while " in said(tmp_path, r) for r in others)
    finally:
        for process in ranks:
            process.kill()
            process.wait()


BUFFERS = SCRIPT.replace("nn.Linear(200, 200), ", "nn.Linear(200, 200), torch.nn.BatchNorm1d(200), ").replace(
    "    optimizer.zero_grad()\n",
    """    if step == 9 and dist.get_rank() == 0:
        print("late", flush=True)
        __import__("time").sleep(3600)
    optimizer.zero_grad()
""",
)


def test_ddps_own_broadcast_of_buffers_names_it_too(tmp_path):
    """The victim is killed before a forward pass, in which the others wait for what DDP sends, and not for us."""
    ranks = fork(BUFFERS.format(what="allreduce", timeout_s=30, connections=1), 3, tmp_path)
    try:
        await_all(ranks, tmp_path, "training")
        until(lambda: "late" in said(tmp_path, 0), lambda: said(tmp_path, 0))
        ranks[0].kill()
        for rank in (1, 2):
            assert ranks[rank].wait(timeout=250) != 0
        words = [said(tmp_path, r) for r in (1, 2)]
        sentence = "CommError: .*DDP's broadcast before a forward pass failed: rank 0 is gone"
        assert all(re.search(sentence, text) for text in words), words
    finally:
        for process in ranks:
            process.kill()
            process.wait()


IN_RELAX = """
import os, torch, torch.distributed as dist, pliant
from pliant.comm import torch_private
from torch.distributed import distributed_c10d as c10d
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
where, name, calls = {where}, "{name}", []
plain = getattr(where, name)

def lost(*given, **settings):
    calls.append(1)
    if rank == {victim} and len(calls) == {call}:
        os.kill(os.getpid(), {sign})
    return plain(*given, **settings)

setattr(where, name, lost)
model = torch.nn.Linear(20, 20)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
pliant.relax(model, optimizer, "diloco", timeout_s=3, start_timeout_s=20)
"""


MOMENTS = [
    ("torch_private", "_new_name", 1),  # alive when the run begins, and not when its first group is made
    ("torch_private", "_new_name", 2),  # or the second
    ("c10d", "_new_process_group_helper", 2),  # or while torch connects the members, which does not hear of it
]
LOST = [(2, signal.SIGKILL), (0, signal.SIGKILL), (1, signal.SIGSTOP)]


@pytest.mark.parametrize(
    ("where", "name", "call", "victim", "sign"),
    [
        pytest.param(*moment, *lost, marks=[] if k == n else pytest.mark.extended)
        for k, moment in enumerate(MOMENTS)
        for n, lost in enumerate(LOST)
    ],
)
def test_who_is_lost_while_groups_are_made_is_named(tmp_path, where, name, call, victim, sign):
    ranks = fork(IN_RELAX.format(where=where, name=name, call=call, victim=victim, sign=int(sign)), 3, tmp_path)
    try:
        others = [r for r in range(3) if r != victim]
        assert all(ranks[rank].wait(timeout=250) != 0 for rank in others)
        words = [said(tmp_path, r) for r in others]
        assert all(re.search(rf"CommError: .*rank {victim} is gone", text) for text in words), words
    finally:
        for process in ranks:
            process.kill()
            process.wait()
