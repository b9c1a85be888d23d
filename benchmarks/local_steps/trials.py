"""The list of trials on local steps of language models, made from its settings before any is run. No torch.

``python benchmarks/local_steps/trials.py``    writes trials_seed1.jsonl and two other lists beside itself

`tuned`: the learning rate of an arm is swept over 500 steps of one seed until both neighbours are worse. `checked`: the
same at the full length, from the rate that was best. `trained`: a training of another seed at the rate of `checked`.
`scaled`: a training of an arm at so many times the rate that is best for AdamW with data parallelism. `borrowed`: one
at the rate that is best for `muloco`.

A cell is a size, the windows of a step of all ranks together, ranks, steps and the decay of the rate. Trials are in the
order of what they tell: baselines in the base cell, all arms there, two more seeds, then larger batches, lengths, more
ranks, the other decay, and sizes. `expected_s` is the time of a core that a trial was expected to take, after one look
at each size. Trials on 125 M parameters are for an accelerator; there one rank takes all windows of data parallelism,
whose mean gradient is then exact.

The second list compares what travels in every step with Muon: gradients in few bits or of low rank, and momenta. By
name, gradients of at most 8192 elements are averaged exactly, which at 0.06 M are those of all square matrices.

The third list asks what local steps with Muon should exchange: changes of weights in fewer bits, and Muon's momentum.
Its `local_momentum` has rates of its own too.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

SEEDS = (0, 1, 2)
TUNED_STEPS = 500
LIST = Path(__file__).with_name("trials_seed1.jsonl")
MUON_LIST = Path(__file__).with_name("trials_muon_seed1.jsonl")
LOCAL_MUON_LIST = Path(__file__).with_name("trials_local_muon_seed1.jsonl")
STEP_S = {"0.06M": 0.025, "0.4M": 0.1, "3M": 0.65, "12M": 2.6, "125M": 0.2}
"""Size -> time of a core, or of an accelerator, that a step of 32 windows and four ranks takes with AdamW."""
_MUON_FACTOR = 1.6
_RATES = {"tuned": 4, "checked": 3}
"""Trainings that a search for a rate is expected to take."""
Record = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Arm:
    """An algorithm with an optimizer; `{steps}` in its text stands for the steps of a training."""

    name: str
    algorithm: str
    optimizer: str = "AdamW"
    loop_steps: int = 1
    """Steps of the training loop to one of the optimizer: so many more, each with so many times fewer windows."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What trainings of a comparison share."""

    size: str = "0.4M"
    windows: int = 32
    ranks: int = 4
    steps: int = 1000
    decay: str = "linear"


BASE = Cell()
ADAMW_DDP, MUON_DDP = Arm(name="ddp", algorithm="bf16"), Arm(name="ddp", algorithm="bf16", optimizer="Muon")
SLOW_DDP = Arm(name="ddp", algorithm="bf16", optimizer="SlowAdamW")
EVERY_STEP = Arm(name="local_sgd H1", algorithm="local_sgd(period=1)")
MULOCO = Arm(name="muloco", algorithm="muloco", optimizer="Muon")
MAIN = (
    Arm(name="local_sgd H32", algorithm="local_sgd(period=32)"),
    Arm(name="local_sgd H30", algorithm="local_sgd(period=30)", optimizer="Muon"),
    MULOCO,
    Arm(name="des_loc H32", algorithm="des_loc(period=32)"),
    Arm(name="mt_dao H32", algorithm="mt_dao(period=32)", optimizer="SlowAdamW"),
    Arm(name="diloco .7 .6", algorithm="diloco(period=32, outer_lr=0.7, outer_momentum=0.6)"),
)
"""Arms that are tried in every cell."""
SHARED_MOMENTS = (
    replace(EVERY_STEP, optimizer="AdamW+common_v"),
    replace(EVERY_STEP, optimizer="AdamW+common_v(8)"),
    replace(EVERY_STEP, optimizer="AdamW+mean_v"),
    Arm(name="local_sgd H32", algorithm="local_sgd(period=32)", optimizer="AdamW+common_v(8)"),
)
OTHERS = (
    Arm(name="diloco .7 .9", algorithm="diloco(period=32, outer_lr=0.7, outer_momentum=0.9)"),
    Arm(name="diloco derived", algorithm="diloco(period=32, total_steps={steps})"),
    Arm(name="diloco .7 .9", algorithm="diloco(period=30, outer_lr=0.7, outer_momentum=0.9)", optimizer="Muon"),
    Arm(name="local_sgd H8", algorithm="local_sgd(period=8)"),
    Arm(name="des_loc H8", algorithm="des_loc(period=8)"),
    Arm(name="des_loc H32", algorithm="des_loc(period=32)", optimizer="Muon"),
    Arm(name="pier", algorithm="pier(total_steps={steps})"),
    Arm(name="sparse_loco", algorithm="sparse_loco"),
    Arm(name="late", algorithm="delayed"),
    Arm(name="acco", algorithm="acco", loop_steps=2),
    Arm(name="delayed_nesterov", algorithm="delayed_nesterov"),
)
BASELINES = (ADAMW_DDP, MUON_DDP)
WINNERS = (*BASELINES, MAIN[0], MAIN[2], MAIN[3], MAIN[4])
OF_MUON = (
    MUON_DDP,
    *(Arm(name=f"gradients, {name}", algorithm=name, optimizer="Muon") for name in ("onebit", "int4", "powersgd")),
    Arm(name="ef21 onebit", algorithm="ef21_muon(averaging=onebit, nesterov=True)", optimizer="Muon(momentum=0)"),
    Arm(name="ef21 int4", algorithm="ef21_muon(averaging=int4, nesterov=True)", optimizer="Muon(momentum=0)"),
    Arm(name="dion", algorithm="dion(rank=16)", optimizer="Dion(momentum=0)"),
)
_MOMENTUM = "first=1, first_states=('momentum_buffer',), second_states=()"
_OF_MULOCO = "period=30, outer=Outer(lr=0.7, momentum=0.6), inner_optimizer='Muon'"
LOCAL_MOMENTUM = Arm(name="local_momentum H10", algorithm=f"des_loc(period=10, {_MOMENTUM})", optimizer="Muon")
"""The third list's arm that kept most, at its own best rate."""
OF_LOCAL_MUON = tuple(
    Arm(name=name, algorithm=algorithm, optimizer="Muon")
    for name, algorithm in {
        "muloco in 4 bits": "muloco(averaging=int4)",
        "muloco and momentum": f"LocalSteps({_OF_MULOCO}, states=(OptimizerState(name='momentum_buffer', period=30),))",
        "des_loc H10, momentum": LOCAL_MOMENTUM.algorithm,
        "muloco in 2 bits": "muloco(averaging=sigma2(decay=0.9))",
        "muloco in 2 bits, decay 0.8": "muloco(averaging=sigma2(decay=0.8))",
        "muloco in 2 bits, decay 0.6": "muloco(averaging=sigma2(decay=0.6))",
        "muloco in 2 bits, undecayed": "muloco(averaging=sigma2)",
        "muloco H60 in 4 bits": "muloco(period=60, averaging=int4)",
        "local_sgd H10": "local_sgd(period=10)",
        "des_loc H5, momentum, 3 late, coded": f"des_loc(period=5, {_MOMENTUM}, delay_steps=3, averaging=int4, "
        "of_states=bytegrad)",
        "local_sgd H5, 3 late, coded": "local_sgd(period=5, delay_steps=3, averaging=int4)",
    }.items()
)
ON_DEVICE = Cell(size="125M", windows=128, steps=500)


def key_of(trial: Record) -> str:
    """Return what --only is compared with."""
    names = ("kind", "optimizer", "arm", "size", "windows", "ranks", "steps", "decay", "seed")
    return "/".join(str(trial[name]) for name in names)


def record(kind: str, arm: Arm, cell: Cell, seed: int = 0, times: float = 1.0) -> Record:
    """Return one trial, with the time that it is expected to take."""
    steps = TUNED_STEPS if kind == "tuned" else cell.steps
    trainings = _RATES.get(kind, 1)
    factor = (_MUON_FACTOR if arm.optimizer.startswith(("Muon", "Dion")) else 1) * (1 + (cell.ranks - 4) / 16)
    return {
        "kind": kind,
        "arm": arm.name,
        "algorithm": arm.algorithm,
        "optimizer": arm.optimizer,
        "loop_steps": arm.loop_steps,
        "size": cell.size,
        "windows": cell.windows,
        "ranks": cell.ranks,
        "steps": steps,
        "decay": cell.decay,
        "seed": seed,
        "times": times,
        "device": "cuda" if cell.size == ON_DEVICE.size else "cpu",
        "expected_s": round(trainings * steps * STEP_S[cell.size] * cell.windows / BASE.windows * factor, 1),
    }


def in_cell(arms: Sequence[Arm], cell: Cell, seeds: Sequence[int] = SEEDS) -> list[Record]:
    """Return all trials of arms in a cell: each arm's rate, then the other seeds."""
    first, *others = seeds
    rates = [record(kind, arm, cell, first) for arm in arms for kind in ("tuned", "checked")]
    return [*rates, *(record("trained", arm, cell, seed) for seed in others for arm in arms)]


def listed() -> list[Record]:
    """Return all trials, in their order, each once."""
    one, cell = (0,), BASE
    found = [
        *in_cell(BASELINES, cell),
        *in_cell((*MAIN, EVERY_STEP), cell),
        *in_cell(SHARED_MOMENTS, cell, one),
        record("scaled", EVERY_STEP, cell, times=2.0),
        *in_cell((SLOW_DDP, *OTHERS), cell, one),
        *in_cell((*BASELINES, EVERY_STEP, *MAIN), replace(cell, windows=128), one),
        *in_cell((*BASELINES, SLOW_DDP, *MAIN), replace(cell, steps=250)),
        *in_cell((*BASELINES, *MAIN), replace(cell, ranks=8), one),
        *in_cell((*BASELINES, *MAIN), replace(cell, steps=5000), one),
        *in_cell(BASELINES, replace(cell, decay="cosine"), one),
        *in_cell((*BASELINES, *MAIN), replace(cell, size="0.06M")),
        *in_cell((*SHARED_MOMENTS, SLOW_DDP, *OTHERS), cell),
        *in_cell(WINNERS, replace(cell, size="3M"), one),
        *in_cell((*BASELINES, *MAIN), replace(cell, windows=128)),
        *in_cell(WINNERS, replace(cell, windows=512), one),
        *in_cell((*BASELINES, MULOCO), replace(cell, size="12M"), one),
        *in_cell(BASELINES, replace(ON_DEVICE, ranks=1), one),
        *in_cell(MAIN, ON_DEVICE, one),
    ]
    return list({key_of(trial): trial for trial in found}.values())


def listed_of_muon() -> list[Record]:
    """Return all trials of the second list; a search for a rate is at the full length at once."""
    small, larger = (Cell(size=size, steps=TUNED_STEPS) for size in ("0.06M", "0.4M"))
    found = [*in_cell(OF_MUON, small), *in_cell(OF_MUON, larger, (0,))]
    return [trial for trial in found if trial["kind"] != "tuned"]


def listed_of_local_muon() -> list[Record]:
    """Return the trials of the third list: arms at the rate of `muloco`, beside what they are compared with."""
    found = in_cell((*BASELINES, MULOCO), BASE)
    found += [record("borrowed", arm, BASE, seed) for seed in SEEDS for arm in OF_LOCAL_MUON]
    found += [*in_cell((LOCAL_MOMENTUM,), BASE), *in_cell((MUON_DDP, LOCAL_MOMENTUM), replace(BASE, steps=250))]
    return [trial for trial in found if trial["kind"] != "tuned"]


def read(path: Path = LIST) -> list[Record]:
    """Return the trials of a list."""
    return [json.loads(line) for line in path.read_text().splitlines()]


if __name__ == "__main__":
    lists = {LIST: listed(), MUON_LIST: listed_of_muon(), LOCAL_MUON_LIST: listed_of_local_muon()}
    for path, trials in lists.items():
        path.write_text("".join(json.dumps(trial) + "\n" for trial in trials))
        hours = sum(trial["expected_s"] for trial in trials) / 3600
        print(f"{path}: {len(trials)} trials of {hours:.1f} h of a core together; commit it before the first result.")
