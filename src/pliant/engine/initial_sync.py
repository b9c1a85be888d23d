"""Initial synchronization: all ranks get rank 0's parameters, buffers and optimizer state."""

import itertools
import json
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pliant.accelerator import is_accelerator
from pliant.comm.agreement import require_same
from pliant.comm.base import Comm
from pliant.engine.agreement import tensor_hashes
from pliant.engine.fusing import fuse_tensors
from pliant.engine.rank_checks import gather_numbers

__all__ = [
    "broadcast_data",
    "broadcast_differing",
    "broadcast_optimizer",
    "broadcast_tensors",
    "is_no_step",
    "require_same_model",
    "steps_taken",
]


def require_same_model(module: nn.Module, comm: Comm, device: torch.device) -> None:
    """Raise ValueError on all ranks unless parameters and buffers have the same names, shapes and types. Collective.

    Otherwise Gloo would end the process where a message is not as long as its receiver expects.
    """
    tensors = itertools.chain(module.named_parameters(), module.named_buffers())
    described = "\n".join(f"{name} {value.dtype} {tuple(value.shape)}" for name, value in tensors)
    cure = "build it with the same sizes on every rank, such as those of one vocabulary"
    require_same(comm, "the model", described, device, cure=cure)


@torch.no_grad()
def broadcast_tensors(tensors: Iterable[Tensor], comm: Comm, root: int = 0) -> None:
    """Give every rank root's values, in place; many tensors travel at once, which saves latency."""
    for fused in fuse_tensors(tensors):
        if len(fused) == 1 and fused[0].is_contiguous():
            comm.broadcast(fused[0].detach(), root).wait()
            continue
        together = torch.cat([tensor.reshape(-1) for tensor in fused])
        comm.broadcast(together, root).wait()
        parts = together.split([tensor.numel() for tensor in fused])
        for tensor, part in zip(fused, parts, strict=True) if comm.rank != root else ():
            tensor.copy_(part.view(tensor.shape))


def broadcast_differing(tensors: Iterable[Tensor], comm: Comm, device: torch.device) -> None:
    """Give every rank the first rank's values of what is not equal on all: 8 bytes of each tensor tell. Collective.

    A model that DDP has wrapped, or that all ranks have loaded from one checkpoint, is equal, and so is not sent again.
    """
    if comm.size == 1:
        return
    every = list(tensors)
    rows = gather_numbers(tensor_hashes(every).tolist(), comm, device)
    differ = [len(set(hashes)) > 1 for hashes in zip(*rows, strict=True)]
    broadcast_tensors(itertools.compress(every, differ), comm)


def broadcast_optimizer(optimizer: Optimizer, comm: Comm, device: torch.device, *, root: int = 0) -> None:
    """Give every rank root's optimizer state and hyperparameters.

    Raises:
        TypeError: On all ranks, if the state holds something that is neither a tensor nor plain data.

    """
    theirs = broadcast_data(optimizer.state_dict(), root, comm, device)
    if comm.rank != root:
        optimizer.load_state_dict(theirs)


def broadcast_data(mine: Any, root: int, comm: Comm, device: torch.device) -> Any:
    """Return a copy of root's nested data: tensors, plain values, and dicts, lists and tuples of them.

    The shape of the data travels as JSON and its tensors as they are: nothing is unpickled.

    Raises:
        TypeError: On all ranks, if the data holds something else.

    """
    tensors: list[Tensor] = []
    described = json.dumps(_describe(mine, tensors)) if comm.rank == root else ""
    described = _broadcast_text(described, root, comm, device)
    received: list[Tensor] = []
    theirs = _restore(json.loads(described), root, received, device)
    moved = [tensor.to(device) for tensor in (tensors if comm.rank == root else received)]  # NCCL knows no CPU scalars
    broadcast_tensors(moved, comm, root)
    for tensor, value in zip(received, moved, strict=True):
        tensor.copy_(value)
    return theirs


def steps_taken(optimizer: Optimizer) -> int:
    """Return the most steps that an optimizer, or any of several, has counted; 0 if none counts, as of SGD and Muon."""
    return max((int(state["step"]) for state in optimizer.state.values() if "step" in state), default=0)


def is_no_step(optimizer: Optimizer) -> bool:
    """Say whether the optimizer is about to step with rates of zero and gradients of zero, which trains nothing.

    torch's `get_state_dict` and `set_state_dict` make an optimizer's state in this way, on some ranks or on all.
    """
    if any(float(group.get("lr", 1.0)) != 0 for group in optimizer.param_groups):
        return False
    gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    return bool(gradients) and not any(grad.is_sparse or bool(grad.any()) for grad in gradients)


def _broadcast_text(text: str, root: int, comm: Comm, device: torch.device) -> str:
    raw = torch.tensor(list(text.encode()), dtype=torch.uint8, device=device)
    length = torch.tensor([raw.numel()], dtype=torch.int64, device=device)
    comm.broadcast(length, root).wait()
    if comm.rank != root:
        raw = torch.empty(int(length), dtype=torch.uint8, device=device)
    comm.broadcast(raw, root).wait()
    return bytes(raw.cpu().tolist()).decode()


def _describe(value: Any, tensors: list[Tensor]) -> Any:
    """Turn nested state into JSON; tensors are set aside and described by dtype and shape."""
    if isinstance(value, Tensor):
        tensors.append(value)
        on_cpu = not is_accelerator(value.device)
        return {
            "tensor": str(value.dtype).removeprefix("torch."),
            "shape": list(value.shape),
            "cpu": on_cpu,
        }
    if isinstance(value, dict):
        return {"items": [[_describe(k, tensors), _describe(v, tensors)] for k, v in value.items()]}
    if isinstance(value, (list, tuple)):
        return {type(value).__name__: [_describe(v, tensors) for v in value]}
    if value is None or isinstance(value, (bool, int, float, str)):
        return {"plain": value}
    return {"foreign": type(value).__name__}


def _restore(value: Any, root: int, tensors: list[Tensor], device: torch.device) -> Any:
    if "tensor" in value:
        where = torch.device("cpu") if value["cpu"] and not value["shape"] else device
        tensors.append(torch.empty(value["shape"], dtype=getattr(torch, value["tensor"]), device=where))
        return tensors[-1]
    if "items" in value:
        return {_restore(k, root, tensors, device): _restore(v, root, tensors, device) for k, v in value["items"]}
    if "list" in value:
        return [_restore(v, root, tensors, device) for v in value["list"]]
    if "tuple" in value:
        return tuple(_restore(v, root, tensors, device) for v in value["tuple"])
    if "foreign" in value:
        raise TypeError(
            f"the optimizer's state on rank {root} holds a {value['foreign']}, which cannot be sent to the others; "
            "call relax() before the first step, on equal optimizers."
        )
    return value["plain"]
