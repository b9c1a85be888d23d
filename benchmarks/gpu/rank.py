"""One of the four processes: a GPT, and the median step under no exchange and under some algorithms.

Arguments: device, file for the times in seconds, bytes a second at which messages are held up (0: not at all).
"""

import json
import sys
import time
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel

import pliant
from pliant.comm.process_group import ProcessGroupComm

_ARMS = "allreduce", "onebit", "bytegrad"
_WARM_UP, _STEPS = 3, 6


class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, h: Tensor) -> Tensor:
        batch, length, width = h.shape
        q, k, v = self.qkv(self.norms[0](h)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, width)
        h = h + self.out(seen)
        return h + self.mlp(self.norms[1](h))


class Gpt(nn.Module):
    """A GPT: 124 M parameters with 50,257 tokens, width 768 and depth 12."""

    def __init__(self, tokens: int, width: int, depth: int, heads: int, length: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(tokens, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(_Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        h = self.tokens(x) + self.places.weight[: x.shape[1]]
        return self.norm(self.blocks(h)) @ self.tokens.weight.t()


class _Late:
    """A communication that is not over before its bytes would have gone over a link."""

    free_s = 0.0  # when the link of this process will be free

    def __init__(self, work, num_bytes: int, bytes_per_s: float) -> None:
        start_s = max(time.monotonic(), _Late.free_s)
        self.work, self.end_s = work, start_s + num_bytes / bytes_per_s
        _Late.free_s = self.end_s

    def wait(self) -> None:
        self.work.wait()
        time.sleep(max(0.0, self.end_s - time.monotonic()))


def throttle(bytes_per_s: float) -> None:
    """Hold up what this process sends, one message after another."""
    exchange, all_reduce = ProcessGroupComm.exchange, ProcessGroupComm.all_reduce

    def late_exchange(self, sends, receives, **settings):
        work = exchange(self, sends, receives, **settings)
        return _Late(work, sum(x.nbytes for _, x in sends), bytes_per_s)

    def late_all_reduce(self, x, op="sum"):
        return _Late(all_reduce(self, x, op), 2 * x.nbytes * (self.size - 1) // self.size, bytes_per_s)

    ProcessGroupComm.exchange, ProcessGroupComm.all_reduce = late_exchange, late_all_reduce


def _step_s(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> float:
    """Return the median seconds of a step, the device's work included."""
    times = []
    for _ in range(_WARM_UP + _STEPS):
        start_s = time.perf_counter()
        optimizer.zero_grad()
        logits = model(x[:, :-1])
        cross_entropy(logits.flatten(0, 1).float(), x[:, 1:].flatten()).backward()
        optimizer.step()
        if x.is_cuda:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start_s)
    return median(times[_WARM_UP:])


def main() -> None:
    device, out, bytes_per_s = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])
    large = device == "cuda"
    if not large:
        torch.set_num_threads(1)
    dist.init_process_group("gloo")
    if bytes_per_s:
        throttle(bytes_per_s)
    torch.manual_seed(0)
    sizes = (50257, 768, 12, 12, 512) if large else (256, 64, 2, 2, 32)
    module = Gpt(*sizes).to(device)
    x = torch.randint(sizes[0], (8 if large else 2, sizes[-1] + 1), device=device)
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-4)
    with torch.autocast(device, torch.bfloat16, enabled=large):
        times = {"compute": _step_s(module, optimizer, x)}
        for name in _ARMS:
            model = DistributedDataParallel(module, device_ids=[0] if large else None)
            with pliant.relax(model, optimizer, name, timeout_s=60, hosts=[[0], [1], [2], [3]]):
                times[name] = _step_s(model, optimizer, x)
            del model
    if dist.get_rank() == 0:
        out.write_text(json.dumps(times))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
