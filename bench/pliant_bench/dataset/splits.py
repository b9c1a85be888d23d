"""Splits that hold out whole models, whole topologies, both, and plans at random."""

import hashlib
from collections.abc import Sequence

from pliant_bench.dataset.records import Row

__all__ = ["split_rows"]

_VAL_FROM, _TEST_FROM = 0.70, 0.85


def split_rows(runs: Sequence[Row]) -> list[Row]:
    """Return the rows of splits; a run that a split does not name is for training.

    `random`: 70 % of plans are trained on, 15 % for choosing, 15 % for testing, by a hash of the plan, so that a plan
    has one role in all data sets. `model:ID` and `topology:ID` test on all of one. `both:MODEL|TOPOLOGY` tests on one
    cell that was measured, and leaves out what shares either with it.
    """
    rows: list[Row] = []
    for run in runs:
        if role := _random_role(run["plan_id"]):
            rows.append({"split": "random", "run_id": run["run_id"], "role": role})
    for noun, key in (("model", "model_id"), ("topology", "topo_id")):
        for held_out in sorted({run[key] for run in runs}):
            rows += [_split_row(f"{noun}:{held_out}", run, "test") for run in runs if run[key] == held_out]
    for model, topology in sorted({(r["model_id"], r["topo_id"]) for r in runs if r["provenance"] != "simulated"}):
        for run in runs:
            shared = (run["model_id"] == model) + (run["topo_id"] == topology)
            if shared:
                rows.append(_split_row(f"both:{model}|{topology}", run, "test" if shared == 2 else "left_out"))
    return rows


def _split_row(split: str, run: Row, role: str) -> Row:
    return {"split": split, "run_id": run["run_id"], "role": role}


def _random_role(plan_id: str) -> str:
    place = int(hashlib.sha256(f"split {plan_id}".encode()).hexdigest()[:8], 16) / 2**32
    return "test" if place >= _TEST_FROM else "val" if place >= _VAL_FROM else ""
