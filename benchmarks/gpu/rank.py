"""One of the four processes: a GPT, and the median step under no exchange and under some algorithms.

Arguments: device, file for what rank 0 has found, bytes a second of the links, whether messages are held up for as long
as that takes (0 or 1), the algorithms, with commas, and what the GPT reads, words or bytes. Under an algorithm that is
alone the step is measured twice more: with the smallest batch whose backward pass takes 1.3 times as long as the wire
does for its bytes, and with half of that.
"""

import gc
import json
import sys
import threading
import time
from bisect import bisect_left
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import pliant
from pliant.comm.process_group import ProcessGroupComm

_SIZES = {"words": (50257, 768, 12, 12, 512), "bytes": (256, 768, 17, 12, 512), "few": (256, 64, 2, 2, 32)}
"""Tokens, width, depth, heads and length: 124 M parameters, of which a third are tokens, and 121 M."""
_WARM_UP, _STEPS = 3, 6
_LONGER = 1.3
"""Times that a backward pass takes as long as the wire, at least."""
_MOST_MEMORY = 0.2
"""Part of the device's memory that one of the four may need."""
_SEQUENCES = 4
"""Sequences whose logits there are at once."""


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
    """A GPT whose logits share the weights of its tokens."""

    def __init__(self, tokens: int, width: int, depth: int, heads: int, length: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(tokens, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(_Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        return self.logits(self.hidden(x))

    def hidden(self, x: Tensor, *, again: bool = False) -> Tensor:
        """Return what the logits are made of; with `again`, blocks keep nothing and are computed again in backward."""
        h = self.tokens(x) + self.places.weight[: x.shape[1]]
        for block in self.blocks:
            h = checkpoint(block, h, use_reentrant=False) if again else block(h)
        return self.norm(h)

    def logits(self, h: Tensor) -> Tensor:
        return h @ self.tokens.weight.t()


class _Loss(nn.Module):
    """The loss of a GPT, with activation checkpointing; logits, 100 MB a sequence, come a few sequences at a time."""

    def __init__(self, gpt: Gpt) -> None:
        super().__init__()
        self.gpt = gpt

    def forward(self, x: Tensor) -> Tensor:
        parts = zip(self.gpt.hidden(x[:, :-1], again=True).split(_SEQUENCES), x[:, 1:].split(_SEQUENCES), strict=True)
        return torch.stack([checkpoint(self._sum, h, y, use_reentrant=False) for h, y in parts]).sum() / x.numel()

    def _sum(self, h: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(self.gpt.logits(h).flatten(0, 1).float(), y.flatten(), reduction="sum")


class _Late:
    """A communication that is not over before its bytes would have gone over a link."""

    lock = threading.Lock()
    free_s = 0.0  # when the link of this process will be free

    def __init__(self, work, num_bytes: int, bytes_per_s: float) -> None:
        with _Late.lock:
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
        model(x).backward()
        optimizer.step()
        if x.is_cuda:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start_s)
    return median(times[_WARM_UP:])


def _backward_s(module: nn.Module, x: Tensor) -> float:
    """Return the median seconds of a backward pass with no exchange."""
    times = []
    for _ in range(_WARM_UP + _STEPS):
        loss = module(x)
        if x.is_cuda:
            torch.cuda.synchronize()
        start_s = time.perf_counter()
        loss.backward()
        if x.is_cuda:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start_s)
    return median(times[_WARM_UP:])


def _largest(value: float) -> float:
    """Return the largest of all ranks' values, so that all decide alike."""
    found = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return found.item()


class Arms:
    """A model, and its steps with and without an exchange.

    Args:
        device: Device of all ranks.
        sizes: Tokens, width, depth, heads and length of the GPT.

    """

    def __init__(self, device: str, sizes: tuple[int, int, int, int, int]) -> None:
        self.device, self._large, self._sizes = device, device == "cuda", sizes
        self._module = _Loss(Gpt(*self._sizes)).to(device)
        self._optimizer = torch.optim.SGD(self._module.parameters(), lr=1e-4)
        self.first = 8 if self._large else 2
        """Sequences that a rank takes, unless said."""

    def compute_s(self, batch: int) -> float:
        """Return the seconds of a step with no exchange."""
        return _step_s(self._module, self._optimizer, self._data(batch))

    def backward_s(self, batch: int) -> float:
        """Return the seconds of a backward pass with no exchange, on the slowest rank."""
        return _largest(_backward_s(self._module, self._data(batch)))

    def relaxed(self, name: str, batch: int) -> tuple[float, float]:
        """Return the seconds of a step under an algorithm, and the bytes that a rank sends in it."""
        places = [0] if self._large else None
        model = DistributedDataParallel(self._module, device_ids=places, gradient_as_bucket_view=True)
        with pliant.relax(model, self._optimizer, name, timeout_s=60, hosts=[[0], [1], [2], [3]]) as run:
            step_s = _step_s(model, self._optimizer, self._data(batch))
            return step_s, _largest(run.stats()["sent_bytes"]) / (_WARM_UP + _STEPS)

    def most(self) -> int:
        """Return the largest batch that fits, judged by the first one and three times as much."""
        if not self._large:
            return 64
        so_far, grown = torch.cuda.max_memory_allocated(), list[int]()
        for batch in (self.first, 3 * self.first):
            gc.collect()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            _backward_s(self._module, self._data(batch))
            grown.append(torch.cuda.max_memory_allocated() - before)
        left = _MOST_MEMORY * torch.cuda.get_device_properties(0).total_memory - so_far
        return int(-_largest(-(self.first + 2 * self.first * left / max(1, grown[1] - grown[0]))))

    def _data(self, batch: int) -> Tensor:
        if self._large:
            torch.cuda.empty_cache()  # blocks of another batch's size are of no use
        return torch.randint(self._sizes[0], (batch, self._sizes[-1] + 1), device=self.device)


def hidden_steps(arms: Arms, name: str, wire_s: float) -> dict[str, dict[str, float]]:
    """Return steps with the smallest batch whose backward pass is long enough to hide the wire, and with half of it."""
    most, wanted_s = arms.most(), _LONGER * wire_s
    likely = arms.first * wanted_s / arms.backward_s(arms.first)  # it grows no faster than the batch
    batches = range(min(most, max(1, int(0.8 * likely))), min(most, int(1.6 * likely) + 1) + 1)
    whole = batches[min(bisect_left(batches, wanted_s, key=arms.backward_s), len(batches) - 1)]
    found: dict[str, dict[str, float]] = {}
    for which, batch in (("whole", whole), ("half", whole // 2)):
        if batch:
            step_s, _ = arms.relaxed(name, batch)
            times = {"backward": arms.backward_s(batch), "compute": arms.compute_s(batch), "step": step_s}
            found[which] = {"batch": batch, "wire": wire_s, **times}
    return found


def main() -> None:
    device, out, bytes_per_s, is_held_up = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]), sys.argv[4] == "1"
    names, sizes = sys.argv[5].split(","), _SIZES[sys.argv[6] if device == "cuda" else "few"]
    if device != "cuda":
        torch.set_num_threads(1)
    dist.init_process_group("gloo")
    if is_held_up:
        throttle(bytes_per_s)
    torch.manual_seed(0)
    arms = Arms(device, sizes)
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        times = {"compute": arms.compute_s(arms.first)}
        measured = {name: arms.relaxed(name, arms.first) for name in names}
        times |= {name: step_s for name, (step_s, _) in measured.items()}
        if dist.get_rank() == 0:
            out.write_text(json.dumps({"times": times, "hidden": {}}))  # should the rest fail, this is not lost
        hidden = hidden_steps(arms, names[0], measured[names[0]][1] / bytes_per_s) if len(names) == 1 else {}
    if dist.get_rank() == 0:
        out.write_text(json.dumps({"times": times, "hidden": hidden}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
