"""Trials of `kills.py`: who is struck, where, how and under which plan; drawn and written down before any is run."""

import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["PLANS", "Trial", "draw", "read_trials", "write_trials"]

PLANS = {
    "shards": (
        "allreduce",
        "bytegrad",
        "int4",
        "onebit",
        "sharded(gradients=bytegrad, weights=bytegrad, regather=False)",
        "sharded(gradients=int4, weights=differences(int4))",
        "sharded(gradients=onebit, residual=int8, weights=bf16)",
        "sharded(gradients=int4, residual=none, weights=differences(int4))",
    ),
    "hsdp": (
        "sharded(gradients=allreduce, weights=allreduce, replicas=onebit)",
        "sharded(gradients=int4, weights=differences(int4), replicas=int4)",
        "sharded(gradients=bytegrad, weights=bf16, replicas=powersgd)",
        "sharded(gradients=int4, weights=differences(int4), replicas=diloco(period=4))",
        "sharded(gradients=int4, weights=bytegrad, replicas=streaming_diloco(period=8))",
        "sharded(gradients=allreduce, weights=bytegrad, replicas=gossip)",
        "onebit",
        "diloco(period=4)",
    ),
    "replicate": ("allreduce", "onebit", "powersgd", "topk", "local_sgd(period=2)", "diloco(period=4)", "gossip"),
}
"""Kind of mesh -> plans. A plain name on a mesh of two dimensions leaves shards to torch."""

_WHERE = ("before forward", "forward", "after forward", "backward", "after backward", "after step")


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One strike at a training of four ranks."""

    seed: int
    number: int
    mesh: str
    what: str
    victim: int
    how: str
    """SIGKILL from within, SIGKILL from outside at any moment, or an exception."""
    step: int
    where: str
    """Place in the step, of strikes from within."""
    late_s: float
    """Time after the step's begin, of strikes from outside."""


def draw(seed: int, num: int) -> list[Trial]:
    """Return trials, in which all plans come up equally often."""
    generator = random.Random(seed)
    plans = [(mesh, what) for mesh, each in PLANS.items() for what in each]
    turns = [plan for _ in range(-(-num // len(plans))) for plan in generator.sample(plans, len(plans))]
    return [
        Trial(
            seed=seed,
            number=number,
            mesh=mesh,
            what=what,
            victim=generator.randrange(4),
            how=generator.choice(("SIGKILL", "SIGKILL from outside", "exception")),
            step=generator.randint(0, 9),
            where=generator.choice(_WHERE),
            late_s=round(generator.uniform(0, 0.05), 4),
        )
        for number, (mesh, what) in enumerate(turns[:num])
    ]


def write_trials(trials: Sequence[Trial], path: Path) -> None:
    """Write one line a trial."""
    path.write_text("".join(json.dumps(asdict(trial)) + "\n" for trial in trials))


def read_trials(path: Path) -> list[Trial]:
    """Return what `write_trials` wrote."""
    return [Trial(**json.loads(line)) for line in path.read_text().splitlines()]
