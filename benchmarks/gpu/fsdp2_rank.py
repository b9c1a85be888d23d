"""One rank of FSDP2 on the one device. Arguments: device, file for what rank 0 has found."""

import copy
import json
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from rank import Gpt
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy

import pliant

_STEPS, _BATCH = 6, 2
_SIZES = 64, 48, 2, 2, 16
"""Tokens, width, depth, heads, length."""
_PLANS = {
    "exact": "allreduce",
    "coded": pliant.sharded(gradients="int4"),
    "coded weights": pliant.sharded(gradients="bytegrad", weights="bytegrad"),
    "gathered once": pliant.sharded(gradients="int4", weights="differences(int4)", regather=False),
    "islands": pliant.sharded(gradients="bytegrad", weights="bytegrad", replicas="diloco(period=2)"),
}
"""Name -> plan; islands are two copies of the model, each divided between two ranks."""


def _data(step: int) -> Tensor:
    """Return the batches of all ranks, int64 (num_ranks, batch, length + 1)."""
    shape = dist.get_world_size(), _BATCH, _SIZES[-1] + 1
    return torch.randint(0, _SIZES[0], shape, generator=torch.Generator().manual_seed(step))


def _loss(model: nn.Module, x: Tensor) -> Tensor:
    return cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())


def _whole(model: nn.Module, device: str) -> dict[str, Tensor]:
    """Return the weights of the model that is not divided, after all steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(_STEPS):
        optimizer.zero_grad()
        _loss(model, _data(step).flatten(0, 1).to(device)).backward()
        optimizer.step()
    return {name: p.detach() for name, p in model.named_parameters()}


def _mesh(device: str, name: str) -> DeviceMesh | None:
    """Return the mesh of a plan, or None where there are too few ranks for it."""
    size = dist.get_world_size()
    if name != "islands":
        return init_device_mesh(device, (size,))
    return init_device_mesh(device, (2, size // 2), mesh_dim_names=("replica", "shard")) if size >= 4 else None


def _shards(model: nn.Module, device: str, plan, mesh: DeviceMesh) -> tuple[dict[str, Tensor], float, int, int]:
    """Return this rank's shards after all steps under a plan, its last loss, the bytes that it has sent, and how often
    the host has waited for the device in the second half of the steps.
    """
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    transport = "host" if device == "cuda" else "auto"  # NCCL refuses a second rank of a device
    data = [_data(step)[dist.get_rank()].to(device) for step in range(_STEPS)]
    with (
        pliant.relax(model, optimizer, plan, timeout_s=40, transport=transport) as run,
        warnings.catch_warnings(record=True) as said,
    ):
        warnings.simplefilter("always")
        for step, x in enumerate(data):
            if device == "cuda" and step == _STEPS // 2:
                torch.cuda.set_sync_debug_mode("warn")
            optimizer.zero_grad()
            loss = _loss(model, x)
            loss.backward()
            optimizer.step()
        if device == "cuda":
            torch.cuda.set_sync_debug_mode("default")
        sent = run.stats()["sent_bytes"]
    waits = sum("called a synchronizing" in str(warning.message) for warning in said)
    return {name: p.detach().to_local() for name, p in model.named_parameters()}, loss.item(), int(sent), waits


def _apart(shards: dict[str, Tensor], whole: dict[str, Tensor]) -> float:
    """Return the largest deviation of a shard from its part of the whole, relative to that parameter's largest."""
    worst = 0.0
    for name, shard in shards.items():
        parts = whole[name].chunk(dist.get_world_size())
        if dist.get_rank() < len(parts):
            part = parts[dist.get_rank()]
            worst = max(worst, float((shard - part).abs().max() / whole[name].abs().max()))
    return worst


def main() -> None:
    device, out = sys.argv[1], Path(sys.argv[2])
    if device == "cuda":
        torch.cuda.set_device(0)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    first = Gpt(*_SIZES)
    whole = _whole(copy.deepcopy(first).to(device), device)
    found: dict[str, float] = {}
    for name, plan in _PLANS.items():
        if (mesh := _mesh(device, name)) is None:
            continue
        shards, loss, sent, waits = _shards(copy.deepcopy(first).to(device), device, plan, mesh)
        away = _apart(shards, whole) if name == "exact" else 0.0
        figures = torch.tensor([away, loss, waits], dtype=torch.float64)
        dist.all_reduce(figures, dist.ReduceOp.MAX)
        found |= {f"{name}, loss": float(figures[1]), f"{name}, bytes": sent, f"{name}, waits": float(figures[2])}
        if name == "exact":
            found[name] = float(figures[0])
        if dist.get_rank() == 0:
            out.write_text(json.dumps(found))  # should a later plan fail, this is not lost
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
