"""How well the curvature that is felt while training ranks layers and blocks, against the Hessian's diagonal.

``python benchmarks/tasc/rank_correlation.py --models cnn,vgg,chars,gpt --points 10,50,200 --json out.json --md out.md``

A model that out.json has at these points is not trained again, so that the same command goes on after the last one.
The models and the data of ``pliant bench`` train on one rank, and an algorithm asks for the curvature as any does:
one draw of Gauss-Newton-Bartlett on a quarter of the batch every few steps, averaged over looks, shrunk and clipped. At
each point it is held against the diagonal of the Hessian on a batch of its own, from 30 Hutchinson probes by double
backward: Spearman's correlation over parameters, over all blocks of 64 elements, and over the blocks of one parameter
(mean over parameters). The reference is noisy as well: "reference" is the correlation of its first 15 probes with the
others. Overheads are in units of the forward and backward of the whole batch.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad

import pliant
from pliant.algorithms import CURVATURE
from pliant.curvature import GaussNewton, Hutchinson, LossObjective, spearman
from pliant.spec import Custom
from pliant.spec.files import write_atomically
from pliant_bench.data.fetch import find_images, find_text
from pliant_bench.data.images import load_images
from pliant_bench.data.text import load_text
from pliant_bench.models import Gpt, Vgg

BLOCK, PROBES, EVERY = 64, 30, 5
IMAGES = ("cnn", "vgg")
Batch = Callable[[int], tuple[Tensor, Tensor]]


@dataclass(frozen=True, kw_only=True)
class Feels:
    """Exact averaging, and curvature for every parameter of two dimensions or more."""

    @property
    def node(self) -> Custom:
        return Custom(name="feels")

    @property
    def curvature(self) -> pliant.CurvatureSpec:
        return pliant.CurvatureSpec(interval=EVERY, max_interval=EVERY, time_share=1e9)

    def blocks(self, shape):
        numel = torch.Size(shape).numel()
        return tuple(min(BLOCK, numel - k) for k in range(0, numel, BLOCK)) if len(shape) > 1 else ()

    def slots(self, shape, comm):
        return {CURVATURE: (len(self.blocks(shape)),)} if self.blocks(shape) else {}

    def prepare(self, bucket, comm):
        return None

    def on_ready(self, bucket, state, comm, moment):
        comm.all_reduce(bucket.flat).wait()
        bucket.flat.mul_(1 / comm.size)


pliant.register("feels", Feels)


def case(name: str, data: str) -> tuple[nn.Module, Batch, Callable[[nn.Module], torch.optim.Optimizer]]:
    """Return a model, its batches by step, and its optimizer."""
    torch.manual_seed(0)
    images = name in IMAGES
    learning = load_images(find_images(data)) if images else load_text(find_text(data))
    num = {"cnn": 64, "vgg": 16, "chars": 16, "gpt": 4}[name]

    def batch(step: int) -> tuple[Tensor, Tensor]:
        x, y = learning.batch(step, 0, 1, num, 0)
        return (pad(x, [2, 2, 2, 2]).expand(-1, 3, -1, -1) if name == "vgg" else x), y

    def optimizer(model: nn.Module) -> torch.optim.Optimizer:
        if images:
            return torch.optim.SGD(model.parameters(), lr=0.015, momentum=0.9)
        return torch.optim.AdamW(model.parameters(), lr=2e-3 if name == "chars" else 3e-4)

    own = {"vgg": Vgg, "gpt": lambda: Gpt(learning.vocabulary)}
    return own[name]() if name in own else learning.model(), batch, optimizer


def run_case(name: str, data: str, points: list[int]) -> dict[str, object]:
    model, batch, optimizer_of = case(name, data)

    def body(place):
        optimizer = optimizer_of(model)
        rows = []
        with pliant.relax(model, optimizer, Feels(), group=place.process_group) as run:
            for step in range(max(points)):
                x, y = batch(step)
                optimizer.zero_grad()
                loss = cross_entropy(run.model(x).flatten(0, -2), y.flatten())
                loss.backward()
                optimizer.step()
                if step + 1 in points:
                    slots = run.state_dict()["rank0"]["slots"]
                    felt = {n: s[CURVATURE].clone() for n, s in slots.items() if CURVATURE in s}
                    means = dict(run.curvature.history[-1].means)
                    row = {"model": name, "step": step + 1, "loss": float(loss.detach())}
                    row |= compared(model, felt, means, batch, step + 1)
                    print(json.dumps(row), flush=True)
                    rows.append(row)
            history = [{"step": look.step, **look.means} for look in run.curvature.history]
            stable = [look.ranks for look in run.curvature.history[1:]]
        return rows, history, stable

    ((rows, history, stable),) = pliant.run_world(1, body, timeout_s=3600)
    return {"rows": rows, "history": history, "median_ranks_from_look_to_look": statistics.median(stable)}


def compared(model: nn.Module, felt: dict, means: dict, batch: Batch, step: int) -> dict[str, float]:
    x, y = batch(100_000 + step)  # not what was trained on at this step
    task = LossObjective(model=model, args=(x,), loss=lambda z: cross_entropy(z.flatten(0, -2), y.flatten()))
    few = LossObjective(model=model, args=(x[: max(2, len(x) // 4)],))
    generator = torch.Generator().manual_seed(step)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        references = [
            blocks_of(Hutchinson(probes=PROBES // 2, by="product").diagonal(task, generator)) for _ in range(2)
        ]
        whole_s, quarter_s, once_s, probe_s = least_s(
            lambda: task.gradients(task.loss(task.forward())),
            lambda: GaussNewton().diagonal(few, generator),
            lambda: GaussNewton().diagonal(task, generator),
            lambda: Hutchinson(by="product").diagonal(task, generator),
        )
    once = blocks_of(GaussNewton().diagonal(few, generator))
    both = {n: (a + b) / 2 for (n, a), b in zip(references[0].items(), references[1].values(), strict=True)}
    return {
        "parameters": len(felt),
        "blocks": sum(map(len, felt.values())),
        "layers": spearman(torch.tensor([means[n] for n in felt]), layers(both, felt)),
        "layers_one_draw": spearman(layers(once, felt), layers(both, felt)),
        "layers_reference": spearman(layers(references[0], felt), layers(references[1], felt)),
        "pooled": spearman(pooled(felt, felt), pooled(both, felt)),
        "pooled_one_draw": spearman(pooled(once, felt), pooled(both, felt)),
        "pooled_reference": spearman(pooled(references[0], felt), pooled(references[1], felt)),
        "inside": inside(felt, both, felt),
        "inside_one_draw": inside(once, both, felt),
        "inside_reference": inside(references[0], references[1], felt),
        "cost_quarter": quarter_s / whole_s,
        "cost_whole": once_s / whole_s,
        "cost_probe": probe_s / whole_s,
    }


def blocks_of(diagonal: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return signed means over blocks, since the reference may be negative."""
    return {n: torch.stack([part.mean() for part in d.flatten().split(BLOCK)]) for n, d in diagonal.items()}


def layers(blocks: dict[str, Tensor], names: dict) -> Tensor:
    return torch.stack([blocks[n].mean() for n in names])  # all but the last block have the same size


def pooled(blocks: dict[str, Tensor], names: dict) -> Tensor:
    return torch.cat([blocks[n] for n in names])


def inside(one: dict[str, Tensor], other: dict[str, Tensor], names: dict) -> float:
    return statistics.mean(spearman(one[n], other[n]) for n in names if len(one[n]) >= 10)


def least_s(*acts: Callable[[], object], turns: int = 5) -> list[float]:
    """Return the least time of each, turn about, since others use the machine as well."""
    taken: list[list[float]] = []
    for _ in range(turns):
        marks = [time.perf_counter()]
        for act in acts:
            act()
            marks.append(time.perf_counter())
        taken.append([end - start for start, end in pairwise(marks)])
    return [min(own) for own in zip(*taken, strict=True)]


def table(found: dict) -> str:
    lines = [
        "| model | step | loss | layers | one draw | reference | blocks | one draw | reference | inside a layer "
        "| one draw | reference | cost, a quarter | whole batch | one probe |",
        "|---|" + "---|" * 14,
    ]
    for r in (r for own in found.values() for r in own["rows"]):
        figures = [
            f"{r[f'{kind}{how}']:.2f}"
            for kind in ("layers", "pooled", "inside")
            for how in ("", "_one_draw", "_reference")
        ]
        costs = [f"{r[f'cost_{k}']:.2f}" for k in ("quarter", "whole", "probe")]
        lines.append(f"| {r['model']} | {r['step']} | {r['loss']:.2f} | {' | '.join([*figures, *costs])} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="cnn,vgg,chars,gpt")
    parser.add_argument("--points", default="10,50,200")
    parser.add_argument("--images", default="", help="folder; Fashion-MNIST if it is not given")
    parser.add_argument("--text", default="", help="folder; State of the Union addresses if it is not given")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--md", type=Path)
    asked = parser.parse_args()
    points = sorted(int(p) for p in asked.points.split(","))
    before = json.loads(asked.json.read_text()) if asked.json and asked.json.exists() else {}
    found = {}
    for name in asked.models.split(","):
        has = [row["step"] for row in before.get(name, {"rows": []})["rows"]] == points
        found[name] = before[name] if has else run_case(name, asked.images if name in IMAGES else asked.text, points)
        if asked.json:
            write_atomically(asked.json, json.dumps(before | found, indent=1) + "\n")
    print(table(found))
    if asked.md:
        write_atomically(asked.md, f"# Ranks of the curvature that is felt\n\n{table(found)}\n")


if __name__ == "__main__":
    main()
