"""A rank that is lost is named by all others, also where torch itself communicates for a sharded model."""

import os
import signal
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from gpt import adamw, build, loss
from torch.distributed.device_mesh import init_device_mesh
from worlds import run

import pliant
from waiting import until

pytestmark = [pytest.mark.processes]

VICTIM, STEP = 1, 2


def die(*_: object) -> None:
    if dist.get_rank() == VICTIM:
        os.kill(os.getpid(), signal.SIGKILL)


def train_until(where: str, model, optimizer) -> None:
    for step in range(50):
        now = step == STEP
        if now and where == "before forward":
            dist.barrier()
            die()
        if now and where == "backward":
            model.blocks[0].register_forward_hook(lambda *given: given[-1].register_hook(die) and None)
        loss(model, step).backward()
        if now and where == "a collective of the user":
            dist.barrier()
            die()
            dist.all_reduce(torch.zeros(1))
        optimizer.step()
        optimizer.zero_grad()


def told(what, where: str, in_block: bool) -> str:
    """Train until a rank is lost, and return the error of this one."""
    model = build(mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "shard")))
    optimizer = adamw(model)
    run_ = pliant.relax(model, optimizer, what, timeout_s=20)
    try:
        with run_ if in_block else nullcontext():
            train_until(where, model, optimizer)
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"
    return "nobody noticed"


EXACT_GRADIENTS = pliant.sharded(weights="bytegrad", regather=False)
"""A plan that leaves reduce-scatters, and sums among replicas, to torch."""


@pytest.mark.parametrize(
    ("what", "where", "in_block", "whose", "by"),
    [
        # Shards stay torch's, so that the victim's neighbour waits in torch's own gather.
        pytest.param(
            pliant.onebit(),
            "before forward",
            False,
            "torch's gather of the weights of ",
            {0},
            marks=pytest.mark.extended,
        ),
        pytest.param(
            pliant.diloco(4),
            "before forward",
            True,
            "torch's gather of the weights of ",
            {0},
            marks=pytest.mark.extended,
        ),
        (EXACT_GRADIENTS, "backward", False, "torch's reduction of the gradients of blocks.0 failed", {0, 2, 3}),
        pytest.param(
            pliant.onebit(),
            "a collective of the user",
            True,
            "a communication of torch's own failed",
            {0, 2, 3},
            marks=pytest.mark.extended,
        ),
    ],
)
def test_a_lost_rank_is_named_where_torch_communicates(what, where, in_block, whose, by):
    found = run(4, told, what, where, in_block, missing={VICTIM})
    for rank in (0, 2, 3):
        assert found[rank].startswith("CommError: "), found
        assert f"rank {VICTIM} is gone" in found[rank], found
    assert {rank for rank in (0, 2, 3) if whose in found[rank]} >= by, found


def asked_after_the_first_has_ended() -> str:
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 0:
        store.wait(["1 is there", "2 is there"])  # else it ends while they still connect to it
        store.set("first", str(os.getpid()))
        return "ended"
    store.set(f"{dist.get_rank()} is there", "")
    first = Path("/proc", store.get("first").decode())
    until(lambda: not first.exists())
    store.set("asked", "and answered")
    return store.get("asked").decode()


def test_ranks_have_their_store_when_rank_0_has_ended():
    """In it they find who is lost, in whichever order they look."""
    assert run(3, asked_after_the_first_has_ended) == ["ended", "and answered", "and answered"]


def lost_from_own_exchange() -> str:
    model = build()
    optimizer = adamw(model)
    pliant.relax(model, optimizer, pliant.int4(), timeout_s=5)
    try:
        train_until("before forward", model, optimizer)
    except pliant.CommError as error:
        return str(error)
    return "nobody noticed"


def test_a_lost_rank_is_named_in_our_own_exchanges():
    found = run(3, lost_from_own_exchange, missing={VICTIM})
    for rank in (0, 2):
        assert f"rank {VICTIM} is gone" in found[rank], found[rank]
        assert "exchanging the " in found[rank]
