"""Does a plan that divides a budget of errors train as well as the single setting that errs as much?

python benchmarks/divided.py [STEPS] [SEEDS]: a small transformer over the bytes of docs/, on two ranks that are
threads. Top-k of 5 % for all, the plan that errs no more and is simulated to be fastest on 8 hosts at 25 Mbit/s, and
top-k of 1 % for all. Prints mean losses over the last 40 steps, and simulated steps. 250 steps of 3 seeds take a
quarter of an hour on two cores.
"""

import sys
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import pliant
from pliant.codecs import codec_from
from pliant.planner import BASELINES, LOW_RANKS, MENUS, CodecErrors, Gene, lossy_codecs, solve_error_budget
from pliant.simulator import simulate_many
from pliant.spec import Host

WIDTH, LENGTH, BATCH = 128, 64, 16
TEXT = b"".join(path.read_bytes() for path in sorted((Path(__file__).parents[1] / "docs").rglob("*.md")))
BYTES = torch.tensor(list(TEXT))
HOST = Host(name="h0", send_bytes_per_s=3.125e6, receive_bytes_per_s=3.125e6, delay_s=1e-4)
TOPOLOGY = pliant.Topology(hosts=tuple(replace(HOST, name=f"h{k}") for k in range(8)))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(256, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0.0, batch_first=True, norm_first=True) for _ in range(4)
        )
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256)

    def forward(self, x: Tensor) -> Tensor:
        h = self.words(x) + self.places(torch.arange(LENGTH))
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        for block in self.blocks:
            h = block(h, mask, is_causal=True)
        return self.head(self.norm(h))


def step(model, optimizer, generator) -> float:
    starts = torch.randint(0, len(BYTES) - LENGTH - 1, (BATCH,), generator=generator)
    x = torch.stack([BYTES[k : k + LENGTH + 1] for k in starts])
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x[:, :-1]).transpose(1, 2), x[:, 1:])
    loss.backward()
    optimizer.step()
    return loss.item()


def measured(place) -> pliant.Workload:
    torch.manual_seed(0)
    net = Transformer()
    model, optimizer = (
        DistributedDataParallel(net, process_group=place.process_group),
        torch.optim.AdamW(net.parameters()),
    )
    generator = torch.Generator().manual_seed(place.rank)
    for _ in range(40):
        step(model, optimizer, generator)
    codecs = [codec_from(spec) for spec in lossy_codecs()]
    options = {"steps": 3, "gradient_steps": 3, "batch_size": BATCH}
    with pliant.observe(model, optimizer, codecs=codecs, ranks=LOW_RANKS, **options) as seen:
        while not seen.done:
            step(model, optimizer, generator)
    return seen.workload("bytes")


def trained(plan, seed: int, steps: int) -> float:
    def body(place) -> float:
        torch.manual_seed(seed)
        net = Transformer()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        generator = torch.Generator().manual_seed(1000 * seed + place.rank)
        with pliant.relax(DistributedDataParallel(net, process_group=place.process_group), optimizer, plan) as run:
            losses = [step(run.model, optimizer, generator) for _ in range(steps)]
        return sum(losses[-40:]) / len(losses[-40:])

    return sum(pliant.run_world(2, body)) / 2


def main() -> None:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 250
    seeds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    torch.set_num_threads(1)
    workload = pliant.run_world(2, measured)[0]

    def step_s(work, plans):
        return simulate_many(plans, work, TOPOLOGY)

    errors = CodecErrors(workload)
    five, one = (replace(BASELINES["topk"], base=Gene("sparse", {"choice": "topk", "ratio": r})) for r in (0.05, 0.01))
    divided = solve_error_budget(workload, errors.of(five.plan()), MENUS["topk"], step_s).genes
    arms = {"bf16": BASELINES["ddp-bf16"], "5 % for all": five, "divided": divided, "1 % for all": one}
    print(f"| arm | error | simulated step | losses, {steps} steps |\n|---|---|---|---|")
    for name, genes in arms.items():
        losses = ", ".join(f"{trained(genes.plan(), seed, steps):.3f}" for seed in range(seeds))
        took_ms = 1e3 * step_s(workload, [genes.plan()])[0]
        print(f"| {name} | {errors.of(genes.plan()):.3f} | {took_ms:.0f} ms | {losses} |", flush=True)


if __name__ == "__main__":
    main()
