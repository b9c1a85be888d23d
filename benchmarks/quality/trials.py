"""The list of trials on steps ratios, made from its settings before any is run. No torch.

``python benchmarks/quality/trials.py``    writes benchmarks/quality/trials_seed1.jsonl

`tuned`: the learning rate of 16-bit all-reduce with an optimizer is swept until both neighbours are worse. `base`: a
training with 16-bit all-reduce at that rate, whose loss after 80 % of its steps is the target. `curve`: a training of
another exchange from the same weights, with the same batches and rates, until it reaches the target. Trials are
carried out in the order of the list: first everything that one seed needs on four ranks, then two further seeds, then
eight ranks: all with one seed, and with the others what lets weights of ranks differ, since a row of theirs counts for
no more ranks than it was measured on. At the end come exchanges within others, and what was known of one CNN alone.
`expected_s` is the time of a core that a trial was expected to take, after one look at each task.
"""

import json
from pathlib import Path
from typing import Any

from pliant.planner.genome import Gene

SEEDS = (0, 1, 2)
RANKS, MORE_RANKS = 4, 8
OPTIMIZERS = ("SGD", "AdamW")
LIST = Path(__file__).with_name("trials_seed1.jsonl")
STEP_S = {"gpt_small": 0.045, "clicks": 0.02, "lstm": 0.04, "images": 0.05, "gpt": 0.09}
"""Task -> time of a core that a step of four ranks takes, in the order in which tasks are tried."""
STEPS = {"gpt_small": 250, "clicks": 300, "lstm": 250, "images": 250, "gpt": 250}
TASKS_OF_MORE_RANKS = ("gpt_small", "clicks")
TASKS_APART = ("gpt_small", "clicks", "lstm")
"""Tasks on which what lets weights of ranks differ is tried on more ranks, with all seeds."""
BASE = Gene("exact", {"bits": 16})
_TUNED_RATES = 5
GENES = (
    Gene("quantized", {"bits": 8}),
    Gene("fed_back", {"bits": 4}),
    Gene("fed_back", {"bits": 1}),
    Gene("low_rank", {"rank": 4}),
    Gene("local", {"every": 8}),
    Gene("diloco", {"bits": 4, "delay_steps": 0, "every": 32, "fragments": 1}),
    Gene("gossip", {"every": 1, "graph": "one_peer"}),
    Gene("choco", {"bits": 8, "graph": "exponential"}),
    Gene("sparse", {"choice": "topk", "ratio": 0.01}),
    Gene("tasc", {"agreement": "leader", "ratio": 0.1}),
    Gene("late", {"bits": 16}),
    Gene("quantized", {"bits": 4}),
    Gene("low_rank", {"rank": 1}),
    Gene("local", {"every": 32}),
    Gene("local", {"every": 2}),
    Gene("sparse", {"choice": "topk", "ratio": 0.1}),
)
"""Exchanges that are compared with the base, those that the planner has had a figure for first."""
COMBINED = tuple(
    Gene(
        "LocalSteps",
        {
            "period": 2,
            "outer": "Outer()",
            "fragments": 1,
            "delay_steps": 0,
            "pace": "lockstep",
            "averaging": f"ScatterGather(codec={codec})",
        },
    )
    for codec in ("qsgd(bits=4)", "ternary")
)
"""Exchanges within others, whose ratio is else taken for the product of both."""
LATER_GENES = (Gene("quantized", {"bits": 2}), Gene("tasc", {"agreement": "leader", "ratio": 0.03}))
"""Exchanges that only one CNN had a ratio for."""
Record = dict[str, Any]


def setting_text(gene: Gene) -> str:
    """Return a family and its settings as one word.

    >>> setting_text(Gene("local", {"every": 8}))
    'local(every=8)'
    """
    return f"{gene.family}({', '.join(f'{key}={value}' for key, value in sorted(gene.settings.items()))})"


def record(kind: str, task: str, optimizer: str, gene: Gene, ranks: int, seed: int) -> Record:
    """Return one trial, with the time that it is expected to take."""
    steps = {"tuned": _TUNED_RATES * STEPS[task], "base": STEPS[task], "curve": 1.2 * STEPS[task]}[kind]
    return {
        "kind": kind,
        "task": task,
        "optimizer": optimizer,
        "setting": setting_text(gene),
        "ranks": ranks,
        "seed": seed,
        "family": gene.family,
        "settings": dict(gene.settings),
        "expected_s": round(steps * STEP_S[task] * ranks / RANKS, 1),
    }


def listed() -> list[Record]:
    """Return all trials, in their order."""
    cells = [(task, optimizer) for task in STEPS for optimizer in OPTIMIZERS]
    more = [(task, optimizer) for task in TASKS_OF_MORE_RANKS for optimizer in OPTIMIZERS]

    def one(these: list[tuple[str, str]], ranks: int, seed: int, genes: tuple[Gene, ...] = GENES) -> list[Record]:
        return [*(record("base", *cell, BASE, ranks, seed) for cell in these), *curves(these, ranks, seed, genes)]

    def curves(these: list[tuple[str, str]], ranks: int, seed: int, genes: tuple[Gene, ...]) -> list[Record]:
        return [record("curve", *cell, gene, ranks, seed) for gene in genes for cell in these]

    apart = tuple(gene for gene in GENES if gene.exchange.weights_may_diverge)
    apart_cells = [(task, optimizer) for task in TASKS_APART for optimizer in OPTIMIZERS]
    others = {seed: [cell for cell in apart_cells if seed or cell not in more] for seed in SEEDS}
    return [
        *(record("tuned", *cell, BASE, RANKS, 0) for cell in cells),
        *(trial for seed in SEEDS for trial in one(cells, RANKS, seed)),
        *one(more, MORE_RANKS, 0),
        *(trial for seed, cells in others.items() for trial in one(cells, MORE_RANKS, seed, apart)),
        *(curve for genes in (COMBINED, LATER_GENES) for seed in SEEDS for curve in curves(cells, RANKS, seed, genes)),
        *(curve for seed in SEEDS for curve in curves(apart_cells, MORE_RANKS, seed, COMBINED)),
    ]


def read(path: Path = LIST) -> list[Record]:
    """Return the trials of a list."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def gene_of(trial: Record) -> Gene:
    """Return the exchange of a trial."""
    return Gene(trial["family"], trial["settings"])


if __name__ == "__main__":
    trials = listed()
    LIST.write_text("".join(json.dumps(trial) + "\n" for trial in trials))
    expected_s = sum(trial["expected_s"] for trial in trials)
    print(f"{LIST}: {len(trials)} trials of {expected_s:.0f} s of a core together; commit it before the first result.")
