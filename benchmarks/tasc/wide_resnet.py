"""Wide ResNet-20 on CIFAR-10 with the user's copy of the data: one command that goes on where it stopped.

``python benchmarks/tasc/wide_resnet.py --data DIR --out wide --arms "bf16,tasc(ratio=0.0077),sparcml(ratio=0.002)"``
``torchrun --nproc-per-node 4 benchmarks/tasc/wide_resnet.py --data DIR --out wide --arms bf16``

Under torchrun every process is a rank: NCCL where each has a GPU of its own, otherwise Gloo. Without torchrun four
workers (--workers) are threads of this process, joined by Gloo. Where ranks on Gloo find a GPU they share it for
computing, and exchange gradients on the CPU. DIR holds the official python archive, `cifar-10-python.tar.gz`, or what
is in it; nothing in it is run (a restricted unpickler reads arrays and plain values alone).

The claim to be compared with names Wide ResNet-20 without a widening factor; here it is 4, 4.3 M parameters, unless
--widen says otherwise: see `wide_model.py`. Batches of 128 over all workers, SGD with momentum 0.9 and weight decay
5e-4, learning rate 0.1 after one epoch of warm-up, a tenth of it after half and again after three quarters of 200
epochs; random crops of images padded by 4, and mirroring. The stated shorter form is --epochs 20 --widen 2 (1.1 M).

Arms are named as for `pliant bench`, peers included. What is one-dimensional (norms and the last bias) is exact for
all that leave small parameters exact at all; `pliant bench` leaves those of 8192 elements, here too many. After
each epoch every rank saves model, optimizer and `run.state_dict()` in --out, and one line is appended to results.jsonl
there: accuracy on the test images, loss, bytes counted by runs in the epoch, all ranks together, without those of
judging. The same command goes on with the epoch that was not finished. Results of other settings are kept apart.
"""

import argparse
import copy
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist
from accuracy_book import Book
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from wide_model import ComputedOn, WideResNet, augmented, load_cifar10

import pliant
from pliant.algorithms.by_name import ONE_BUCKET_BYTES
from pliant.comm import Comm, new_comm, run_world
from pliant.spec import Match, Rule
from pliant.spec.files import write_atomically
from pliant_bench.data.images import Images
from pliant_bench.harness.arms import plan_of_arm
from pliant_bench.harness.names import BASELINE_ARMS, bare_name, split_arms

_JUDGED_AT_ONCE = 250
_TIMEOUT_S = 1800.0
_OWN_MOMENTUM = ("dgc", "topk_dgc")
_one_at_a_time = threading.Lock()


@dataclass(frozen=True, kw_only=True)
class Training:
    """One arm and seed."""

    arm: str
    seed: int
    epochs: int
    batch: int
    """Images per step of all ranks together."""
    widen: int

    @property
    def name(self) -> str:
        """Of its folder, and in results."""
        bare = re.sub(r"[^\w.=-]+", "_", self.arm).strip("_")
        return f"{bare}_w{self.widen}_b{self.batch}_e{self.epochs}_seed{self.seed}"

    def rate(self, epoch: float) -> float:
        """Return the learning rate at a point of the training, in epochs."""
        drops = (epoch >= self.epochs / 2) + (epoch >= 3 * self.epochs / 4)
        return 0.1 * min(1.0, epoch + 1e-2) * 0.1**drops

    def plan(self, model: nn.Module) -> pliant.SyncPlan:
        """Return the arm's plan for a model: in one bucket, so that all layers compete."""
        named = plan_of_arm(self.arm)
        *spared, rule = named.rules
        small = [name for name, parameter in model.named_parameters() if parameter.dim() < 2] if spared else []
        rules = (*(Rule(match=Match(pattern=name)) for name in small), rule)
        return replace(named, rules=rules, bucket_bytes=ONE_BUCKET_BYTES)


@dataclass(frozen=True, kw_only=True)
class Rank:
    """Who trains, and with whom."""

    rank: int
    size: int
    group: dist.ProcessGroup
    comm: Comm
    device: torch.device
    """Where is computed."""
    home: torch.device
    """Where parameters are."""

    def total(self, *values: float) -> list[float]:
        """Return sums over ranks. Collective."""
        sums = torch.tensor(values, dtype=torch.float64, device=self.home)
        self.comm.all_reduce(sums).wait()
        return sums.tolist()


def train(rank: Rank, images: Images, job: Training, out: Path, journal: Book, end_s: float) -> bool:
    """Train epoch after epoch; return whether all are done. Collective: every rank of a world calls it."""
    folder, latest = out / job.name, out / job.name / "latest.json"
    first = json.loads(latest.read_text())["epochs"] if latest.exists() else 0
    if first >= job.epochs:
        return True
    with _one_at_a_time:  # threads share torch's generator
        torch.manual_seed(job.seed)
        module = WideResNet(job.widen).to(rank.home)
    inner = module if rank.home == rank.device else ComputedOn(module, rank.device)
    ddp = DistributedDataParallel(inner, process_group=rank.group)
    ddp.broadcast_buffers = False
    momentum = 0.0 if bare_name(job.arm) in _OWN_MOMENTUM else 0.9
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=momentum, weight_decay=5e-4)
    with pliant.relax(ddp, optimizer, job.plan(inner), timeout_s=_TIMEOUT_S) as run:
        if first:
            held = torch.load(folder / f"{first}" / f"rank{rank.rank}.pt", map_location=rank.home, weights_only=True)
            inner.load_state_dict(held["model"])
            optimizer.load_state_dict(held["optimizer"])
            run.load_state_dict(held["run"])
        for epoch in range(first, job.epochs):
            if rank.total(float(time.monotonic() >= end_s))[0]:
                return False
            sent_before, start_s = run.stats()["sent_bytes"], time.perf_counter()
            loss = _epoch(rank, images, job, run.model, optimizer, epoch)
            train_s, sent = time.perf_counter() - start_s, run.stats()["sent_bytes"] - sent_before
            right = _right(rank, images, inner, run.consolidate())
            num_right, loss, sent = rank.total(right, loss / rank.size, sent)
            saved = {"model": inner.state_dict(), "optimizer": optimizer.state_dict(), "run": run.state_dict()}
            _save(saved, folder / f"{epoch + 1}" / f"rank{rank.rank}.pt")
            rank.comm.barrier()  # all ranks have saved
            if rank.rank == 0:
                found = {"accuracy": num_right / images.num_held_out, "loss": loss, "sent_bytes": sent}
                about = {"kind": "epoch", "arm": job.name, "seed": job.seed, "steps": epoch + 1}
                journal.add({**about, **found, "train_s": train_s, "ranks": rank.size})
                write_atomically(latest, json.dumps({"epochs": epoch + 1}))
                shutil.rmtree(folder / f"{epoch}", ignore_errors=True)
                print(f"{job.name}, epoch {epoch + 1}: {found['accuracy']:.2%}, {sent / 1e6:.3g} MB", flush=True)
            rank.comm.barrier()
    return True


def _epoch(
    rank: Rank, images: Images, job: Training, model: nn.Module, optimizer: torch.optim.Optimizer, epoch: int
) -> float:
    """Train for one epoch; return this rank's mean loss."""
    num = job.batch // rank.size
    steps = images.steps_per_epoch(rank.size, num)
    losses: list[Tensor] = []
    for step in range(epoch * steps, (epoch + 1) * steps):
        for group in optimizer.param_groups:
            group["lr"] = job.rate(step / steps)
        x, y = images.batch(step, rank.rank, rank.size, num, job.seed)
        generator = torch.Generator().manual_seed((job.seed * 1_000_003 + step) * rank.size + rank.rank)
        optimizer.zero_grad()
        loss = cross_entropy(model(augmented(x, generator).to(rank.device)), y.to(rank.device))
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return float(torch.stack(losses).mean())


def _right(rank: Rank, images: Images, inner: nn.Module, state: dict[str, Tensor]) -> float:
    """Return how many of this rank's part of the test images a model gets right that has the state of all ranks."""
    judged = copy.deepcopy(inner)
    judged.load_state_dict(state)
    judged.eval()
    right = 0.0
    with torch.no_grad():
        for first in range(rank.rank * _JUDGED_AT_ONCE, images.num_held_out, rank.size * _JUDGED_AT_ONCE):
            x, y = (part[first : first + _JUDGED_AT_ONCE].to(rank.device) for part in (images.test_x, images.test_y))
            right += float((judged(x).argmax(1) == y).sum())
    return right


def _save(state: dict[str, object], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(".scratch")
    torch.save(state, scratch)
    scratch.replace(path)


def _by_torchrun() -> Rank:
    """Join the world that torchrun has made."""
    own_gpu = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    gpu = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % max(torch.cuda.device_count(), 1))
    if own_gpu:
        torch.cuda.set_device(gpu)
    dist.init_process_group("nccl" if own_gpu else "gloo")
    world = dist.group.WORLD
    if world is None:
        raise RuntimeError("this process is not in the world that torchrun has made.")
    device = gpu if torch.cuda.is_available() else torch.device("cpu")
    home = device if own_gpu else torch.device("cpu")
    comm = new_comm(world, _TIMEOUT_S)
    return Rank(rank=comm.rank, size=comm.size, group=world, comm=comm, device=device, home=home)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with cifar-10-python.tar.gz, or what is in it")
    parser.add_argument("--out", type=Path, required=True, help="folder for checkpoints and results.jsonl")
    parser.add_argument("--arms", default="bf16", help="as for --algorithms of pliant bench")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--batch", type=int, default=128, help="images per step, all workers together")
    parser.add_argument("--widen", type=int, default=4)
    parser.add_argument("--workers", type=int, default=4, help="without torchrun")
    parser.add_argument("--time-limit", type=float, default=0.0, help="no epoch begins after so many seconds; 0: none")
    given = parser.parse_args(argv)
    arms = split_arms(given.arms, BASELINE_ARMS)
    images, journal = load_cifar10(given.data), Book(given.out / "results.jsonl")
    end_s = time.monotonic() + (given.time_limit or float("inf"))
    options = {"epochs": given.epochs, "batch": given.batch, "widen": given.widen}
    jobs = [Training(arm=arm, seed=seed, **options) for seed in range(given.seeds) for arm in arms]

    def train_all(rank: Rank) -> None:
        if given.batch % rank.size:
            raise ValueError(f"a batch of {given.batch} cannot be divided among {rank.size} workers; change one.")
        for job in jobs:
            if not train(rank, images, job, given.out, journal, end_s):
                if rank.rank == 0:
                    print("the time is over; the same command goes on.", flush=True)
                return

    if dist.is_torchelastic_launched():
        rank = _by_torchrun()
        train_all(rank)
        rank.comm.close()
        dist.destroy_process_group()
        return
    torch.set_num_threads(1)
    cpu = torch.device("cpu")
    device = torch.device("cuda") if torch.cuda.is_available() else cpu
    run_world(
        given.workers,
        lambda place: train_all(
            Rank(
                rank=place.rank,
                size=place.size,
                group=place.process_group,
                comm=place.comm,
                device=device,
                home=cpu,
            )
        ),
        timeout_s=_TIMEOUT_S,
    )


if __name__ == "__main__":
    main()
