"""Names of arms: what a comparison calls them, and the text of the grammar that each stands for. No torch."""

import ast
from collections.abc import Sequence
from typing import Any

from pliant.algorithms.grammar import parse
from pliant.algorithms.registry import ALGORITHMS

__all__ = [
    "ARMS",
    "AUTO",
    "BASELINE_ARMS",
    "GRID_ARMS",
    "LATER_ARMS",
    "LISTED_ARMS",
    "PLIANT_ARMS",
    "TORCH_ARMS",
    "bare_name",
    "settings_of",
    "split",
    "split_arms",
    "text_of",
    "warmup_steps_of",
]

TORCH_ARMS = ("compute", "ddp", "ddp-bf16", "ddp-powersgd", "ddp-postlocal", "ddp-adam")
"""compute: no communication. ddp-*: torch's DDP with its own hooks, and a bf16 hook, since torch's refuses Gloo."""
_DRAWN = (
    "allreduce",
    "bf16",
    "bytegrad",
    "qsgd",
    "qsgd4",
    "terngrad",
    "natural",
    "int4",
    "onebit",
    "onebit_adam",
    "powersgd",
    "topk",
    "topk_dgc",
    "blocktopk",
    "randomk",
    "decoupled_momentum",
    "tasc",
    "delayed",
    "gossip",
    "choco",
    "dcd",
    "local_sgd",
    "post_local_sgd",
    "diloco",
    "streaming_diloco",
    "sparse_loco",
    "async_average",
    "sharded_optimizer",
    "bounded_staleness",
)
"""Order in which jobs over all algorithms draw: seeds that are committed count on it."""
PLIANT_ARMS = (
    *_DRAWN,
    *(name for name, row in ALGORITHMS.items() if row.bare and name not in (*_DRAWN, "fp16", "muloco")),
)
"""What jobs over all algorithms draw from: each row of the registry; fp16 is as bf16, muloco needs two optimizers."""
LATER_ARMS = (
    *("acco", "chunktopk", "decoupled_diloco", "delayed_nesterov", "des_loc", "dion", "ef21_muon", "halos", "mt_dao"),
    *("local_momentum", "no_loco", "pulse_loco", "sigma2"),
)
"""Rows that came after the lists of jobs that are committed, whose numbers results name; a new list takes them in."""
LISTED_ARMS = tuple(arm for arm in PLIANT_ARMS if arm not in LATER_ARMS)
"""Arms that those lists were drawn from."""
_SHORT = {
    "qsgd4": "qsgd(bits=4)",
    "topk_dgc": "topk(momentum=0.9, ramp_steps={warmup})",
    "post_local_sgd": "post_local_sgd({warmup})",
}
"""Arms whose settings depend on the length of the training, and one that results have always called so."""
BASELINE_ARMS = ("sparcml", "oktopk", "gtopk", "scalecom", "dgc", "uniform_blocks", "magnitude_blocks")
"""Sparse algorithms of other systems, and of other rules for choosing blocks, in one bucket: see `baselines`."""
AUTO = "auto"
"""Chooses while it trains; its settings are those of `pliant.Auto`."""
ARMS = (*TORCH_ARMS, *PLIANT_ARMS, *BASELINE_ARMS, AUTO)
GRID_ARMS = ("compute", "ddp", "ddp-bf16")
"""What a grid measures in any case: the others are held against it."""


def bare_name(arm: str) -> str:
    """Return the name of an arm without its settings."""
    return arm.partition("(")[0].strip()


def warmup_steps_of(total_steps: int) -> int:
    """Return how long arms that have to warm up do so: a fifth of the training."""
    return max(total_steps // 5, 1)


def text_of(arm: str, total_steps: int) -> str:
    """Return what an arm of Pliant's, or a baseline, is called in the grammar."""
    return _SHORT[arm].format(warmup=warmup_steps_of(total_steps)) if arm in _SHORT else arm


def split(names: str, all_names: tuple[str, ...], noun: str) -> tuple[str, ...]:
    """Split a list with commas. Raises ValueError for a name that does not exist, or if there is none."""
    chosen = tuple(name.strip() for name in names.split(",") if name.strip())
    for name in chosen:
        if name not in all_names:
            raise ValueError(f"there is no {noun} {name!r}; there are {', '.join(all_names)}.")
    if not chosen:
        raise ValueError(f"name at least one {noun} of {', '.join(all_names)}.")
    return chosen


def split_arms(names: str, foreign: Sequence[str] = (*TORCH_ARMS, *BASELINE_ARMS, AUTO)) -> tuple[str, ...]:
    """Split a list of arms with commas: each a name of its own, or an algorithm in the grammar.

    Args:
        names: The list, as in ``"ddp, every(2, int4)"``.
        foreign: Which arms that are not Pliant's algorithms are allowed.

    Raises:
        ValueError: An arm does not exist, does not take its settings, or there is none.

    """
    chosen = tuple(_split(names))
    for arm in chosen:
        if arm in _SHORT or arm in foreign:
            continue
        if bare_name(arm) in _SHORT or bare_name(arm) in TORCH_ARMS:
            raise ValueError(f"{arm!r} has settings, but {bare_name(arm)} takes none here; leave them out.")
        if bare_name(arm) in foreign:
            settings_of(arm)
        elif arm not in PLIANT_ARMS:
            parse(arm)
    if not chosen:
        raise ValueError(f"name at least one algorithm of {', '.join(ARMS)}.")
    return chosen


def _split(names: str) -> list[str]:
    """Split at commas that stand in no parentheses."""
    parts, depth = [""], 0
    for character in names:
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


def settings_of(arm: str) -> dict[str, Any]:
    """Return the settings of ``auto(quality=1.1)`` or ``gtopk(ratio=0.01)``: literals with names.

    Raises:
        ValueError: They cannot be read.

    """
    try:
        tree = ast.parse(arm, mode="eval").body
        if isinstance(tree, ast.Call) and not tree.args:
            return {str(each.arg): ast.literal_eval(each.value) for each in tree.keywords}
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        tree = None
    if not isinstance(tree, ast.Name):
        raise ValueError(f"the settings of {arm!r} cannot be read; write them as in auto(quality=1.1).")
    return {}
