"""One rank of `held_out.py`: trains under "auto", then lets the plan that it kept and fixed arms take turns.

``python benchmarks/planner/held_out_rank.py JOB.json``, with torchrun's environment
"""

import itertools
import json
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import pliant
from pliant.simulator import simulate
from pliant.spec import SyncPlan, Topology, from_json, to_json
from pliant_bench.collect.trial import run_trial
from pliant_bench.harness.emit import emit
from pliant_bench.harness.wire import busiest
from pliant_bench.models import TimingTask

TIMEOUT_S = 60.0
TURN_S = 1.5
MOST_STEPS = 600
BATCHES = 32
CLASSES, WORDS = 20, 500


class Mixer(nn.Module):
    """0.7 M parameters in perceptrons, along patches and along channels in turn (arXiv:2105.01601)."""

    def __init__(self, patches: int = 49, width: int = 144, depth: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Conv2d(3, width, 4, 4)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * depth))
        self.along_patches = nn.ModuleList(_perceptron(patches, 96) for _ in range(depth))
        self.along_channels = nn.ModuleList(_perceptron(width, 4 * width) for _ in range(depth))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embedding(x).flatten(2).mT
        norms = iter(self.norms)
        for patches, channels in zip(self.along_patches, self.along_channels, strict=True):
            h = h + patches(next(norms)(h).mT).mT
            h = h + channels(next(norms)(h))
        return self.head(h.mean(1))


class Separable(nn.Module):
    """0.5 M parameters in convolutions of single channels and of single pixels (arXiv:1704.04861)."""

    def __init__(self, widths: tuple[int, ...] = (3, 32, 64, 128, 256, 512, 640)) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for k, (a, b) in enumerate(itertools.pairwise(widths)):
            layers += [nn.Conv2d(a, a, 3, 1 + k % 2, padding=1, groups=a, bias=False), nn.BatchNorm2d(a), nn.ReLU()]
            layers += [nn.Conv2d(a, b, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU()]
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(widths[-1], CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x).mean((2, 3)))


class Tagger(nn.Module):
    """0.6 M parameters: a label for each word, by a GRU of two layers in both directions."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.recurrent = nn.GRU(width, width, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.recurrent(self.words(x))[0])


class Encoder(nn.Module):
    """1 M parameters: three encoder blocks, and a label for the whole text."""

    def __init__(self, width: int = 160) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        block = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(block, 3, enable_nested_tensor=False)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.words(x)).mean(1))


def _perceptron(width: int, hidden: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))


def _labels(shape: tuple[int, ...], g: torch.Generator) -> Tensor:
    return torch.randint(0, CLASSES, shape, generator=g)


def _texts(num: int, length: int, *, each: bool) -> Callable[[torch.Generator], tuple[Tensor, Tensor]]:
    labels = (num, length) if each else (num,)
    return lambda g: (torch.randint(0, WORDS, (num, length), generator=g), _labels(labels, g))


def _images(num: int, size: int) -> Callable[[torch.Generator], tuple[Tensor, Tensor]]:
    return lambda g: (torch.randn(num, 3, size, size, generator=g), _labels((num,), g))


MODELS: dict[str, TimingTask] = {
    "mixer": TimingTask(model=Mixer, batch=_images(4, 28)),
    "separable": TimingTask(model=Separable, batch=_images(4, 32)),
    "gru": TimingTask(model=Tagger, batch=_texts(4, 16, each=True)),
    "encoder": TimingTask(model=Encoder, batch=_texts(4, 24, each=False)),
}


class Training:
    """A model in DDP that trains under a plan, or under "auto", as `run_trial` takes it. Collective."""

    def __init__(self, task: TimingTask, what: str | pliant.Auto) -> None:
        torch.manual_seed(0)
        self._task = task
        generator = torch.Generator().manual_seed(dist.get_rank())
        self._batches = itertools.cycle([task.batch(generator) for _ in range(BATCHES)])
        self._model = DistributedDataParallel(task.model(), gradient_as_bucket_view=True)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-3, momentum=0.9)
        self.run = pliant.relax(self._model, self._optimizer, what, timeout_s=TIMEOUT_S, agreement_every=0)

    def pace(self, *, waiting: bool = True) -> None:
        """Do nothing: these steps take the time that they take."""

    def step(self) -> None:
        """Make a training step."""
        self._optimizer.zero_grad()
        self._task.loss(self._model, next(self._batches)).backward()
        self._optimizer.step()


def search(task: TimingTask, job: dict[str, Any]) -> tuple[SyncPlan, pliant.spec.Workload]:
    """Train under "auto" until it has chosen, and the first steps are over; return its plan."""
    auto = pliant.Auto(quality=job["quality"], experience=job["experience"])
    dist.barrier()
    began_s = time.perf_counter()
    training = Training(task, auto)
    dist.barrier()
    relax_s = time.perf_counter() - began_s
    began_s, first_s, chosen_after, steps = time.perf_counter(), 0.0, 0, 0
    while steps < job["steps"] or not chosen_after:
        training.step()
        steps += 1
        if steps == job["steps"]:
            first_s = busiest([time.perf_counter() - began_s])[0]
        if not chosen_after and training.run.tuner.choice is not None:
            chosen_after = steps
        if steps == MOST_STEPS:
            raise RuntimeError(f"auto has not chosen within {MOST_STEPS} steps: {training.run.tuner.explanation}")
    plan = training.run.plan
    found = {"relax_s": relax_s, "first_s": first_s, "chosen_after": chosen_after, "steps": steps, "plan": str(plan)}
    found |= {"plan_json": json.loads(to_json(plan)), "explanation": training.run.tuner.explanation}
    workload = training.run.tuner.watched.workload
    training.run.close()
    emit("auto", {"round": -1, "arm": "", **found})
    return plan, workload


def taken(training: Training, plan: SyncPlan, name: str, cycle: int) -> dict[str, Any]:
    """Let a plan take its turn; return its median step time, and the steps that it took.

    Raises:
        RuntimeError: A step failed under it.

    """
    found = run_trial(training, plan, TURN_S, wire=True, cycle=cycle)
    if found["status"] != "ok":
        raise RuntimeError(f"{name}: {found['reason']}")
    means = sorted(mean for mean, _, _ in found["samples"])
    return {"step_s": means[len(means) // 2], "num_steps": found["num_steps"]}


def main(path: str) -> None:
    """Carry out a job."""
    job = json.loads(Path(path).read_text())
    torch.set_num_threads(1)  # ranks share this machine
    dist.init_process_group("gloo", timeout=timedelta(seconds=2 * TIMEOUT_S))
    task, topology = MODELS[job["model"]], from_json(Topology, json.dumps(job["topology"]))
    kept, workload = search(task, job)
    plans = {name: from_json(SyncPlan, json.dumps(plan)) for name, plan in job["plans"].items()} | {job["kept"]: kept}
    cycles = {name: simulate(plan, workload, topology).period for name, plan in plans.items()}
    training = Training(task, "bf16")
    run_trial(training, plans["ddp-bf16"], 0.0, wire=True)  # DDP lays out its buckets, and TCP finds its window
    for number in range(job["rounds"]):
        for name in list(plans) if number % 2 == 0 else reversed(plans):
            emit("turn", {"round": number, "arm": name, **taken(training, plans[name], name, cycles[name])})
    training.run.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
