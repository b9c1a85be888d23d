"""A GPT on text, divided among ranks by FSDP2, HSDP or not at all (DDP), with one command and one line of Pliant.

    torchrun --nproc-per-node 4 examples/gpt_fsdp2.py --parallel fsdp2 --plan "sharded(gradients=int4, \
weights=differences(int4))"
    torchrun --nproc-per-node 4 examples/gpt_fsdp2.py --parallel hsdp --plan "streaming_diloco(period=32)"
    pliant emulate --hosts 4 --rate 100mbit -- python examples/gpt_fsdp2.py --parallel fsdp2 --plan allreduce

`parallelize` is what a torchtitan recipe has: it wraps the model; the one line more is `pliant.relax`, once there is an
optimizer. Without --plan nothing is relaxed, which is what to compare with. Text is --text FILE, byte by byte; without
it, the source of this Python's standard library.
"""

import argparse
import contextlib
import json
import os
import pathlib
import sysconfig
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel

import pliant

BYTES = 256


class Block(nn.Module):
    """Attention to what came before, and an MLP."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.before, self.between = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return x, (batch, length, width), after the block."""
        batch, length, width = x.shape
        q, k, v = self.qkv(self.before(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, width)
        x = x + self.out(seen)
        return x + self.down(gelu(self.up(self.between(x))))


class Gpt(nn.Module):
    """A decoder over bytes."""

    def __init__(self, *, width: int, layers: int, heads: int, length: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(BYTES, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, BYTES)

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits, (batch, length, 256), of ids, (batch, length)."""
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)).clone()  # FSDP2 warns of outputs that are views


def device_of(name: str) -> torch.device:
    """Return the device of that name, which becomes this rank's own; without a name an accelerator, if there is one."""
    found = torch.accelerator.current_accelerator(check_available=True)
    device = torch.device(name) if name else found or torch.device("cpu")
    if device.type != "cpu":
        torch.accelerator.set_device_index(int(os.environ.get("LOCAL_RANK", "0")))
    return device


def parallelize(model: Gpt, how: str, shards: int, device: torch.device) -> nn.Module:
    """Return the model as it is called: in DDP, or with each block divided among all ranks or `shards` of them."""
    size = dist.get_world_size()
    if how == "ddp":
        return DistributedDataParallel(model)
    mesh: DeviceMesh = init_device_mesh(device.type, (size,), mesh_dim_names=("shard",))
    if how == "hsdp":
        mesh = init_device_mesh(device.type, (size // shards, shards), mesh_dim_names=("replica", "shard"))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def text_of(path: str) -> Tensor:
    """Return a text as bytes, uint8 (numel,)."""
    sources = [pathlib.Path(path)] if path else sorted(pathlib.Path(sysconfig.get_path("stdlib")).glob("*.py"))[:80]
    return torch.frombuffer(bytearray(b"".join(source.read_bytes() for source in sources)), dtype=torch.uint8)


def batch_of(text: Tensor, options: argparse.Namespace, step: int, rank: int) -> Tensor:
    """Return ids, (batch, length + 1), drawn for a rank's step; negative steps are held-out text."""
    held_out = len(text) // 10
    low, high = (0, held_out) if step < 0 else (held_out, len(text))
    generator = torch.Generator().manual_seed(options.seed * 1_000_003 + abs(step) * 1009 + rank)
    starts = torch.randint(low, high - options.length - 1, (options.batch,), generator=generator)
    return torch.stack([text[start : start + options.length + 1] for start in starts]).long()


def loss_of(model: nn.Module, ids: Tensor) -> Tensor:
    """Return the mean loss of the next byte, in nats."""
    return cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


def train(options: argparse.Namespace, device: torch.device) -> dict[str, float]:
    """Train, and return the held-out loss, bytes out of this rank in a step, and seconds of a step."""
    torch.manual_seed(options.seed)
    text, rank = text_of(options.text), dist.get_rank()
    model = Gpt(width=options.width, layers=options.layers, heads=options.heads, length=options.length).to(device)
    model = parallelize(model, options.parallel, options.shards, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    run = pliant.relax(model, optimizer, options.plan) if options.plan else None  # the one line
    if run is not None and rank == 0:
        print(run.explain(), flush=True)
    start_s = time.perf_counter()
    with run if run is not None else contextlib.nullcontext():
        for step in range(options.steps):
            loss = loss_of(model, batch_of(text, options, step, rank).to(device))
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            if rank == 0 and (step + 1) % 10 == 0:
                print(f"step {step + 1}: loss {loss.item():.3f}", flush=True)
        step_s = (time.perf_counter() - start_s) / options.steps
        sent_bytes = 0 if run is None else run.stats()["sent_bytes"]
    with torch.no_grad():
        batches = [batch_of(text, options, -step, rank).to(device) for step in range(1, 9)]
        held_out = torch.stack([loss_of(model, ids) for ids in batches]).mean()
    dist.all_reduce(held_out)
    return {
        "held_out_loss": held_out.item() / dist.get_world_size(),
        "sent_bytes_per_step": sent_bytes / options.steps,
        "step_s": step_s,
    }


def main() -> None:
    """Read the command line, train, and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parallel", choices=["ddp", "fsdp2", "hsdp"], default="fsdp2")
    parser.add_argument("--plan", default="", help='such as "int4", or sharded(...); without it nothing is relaxed')
    parser.add_argument("--device", default="", help="cpu or cuda; without it an accelerator, if there is one")
    parser.add_argument("--shards", type=int, default=2, help="of hsdp: ranks among which each copy is divided")
    parser.add_argument("--text", default="", help="a file to learn; this Python's standard library without it")
    for name, value in {"width": 256, "layers": 4, "heads": 4, "length": 64, "batch": 2, "steps": 100}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--json", default="", help="where to write the result")
    options = parser.parse_args()
    device = device_of(options.device)
    dist.init_process_group("gloo" if device.type == "cpu" else None)  # None: what suits the device
    result = train(options, device)
    if dist.get_rank() == 0:
        print(json.dumps(result))
        if options.json:
            pathlib.Path(options.json).write_text(json.dumps(result))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
