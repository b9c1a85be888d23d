"""FSDP2 on the one device, with one rank and with four over Gloo: an exact plan beside the whole model, and coded ones.

NCCL refuses two ranks on one GPU, so there is no plain FSDP2 of four ranks to compare with: the same model, whole, on
the same device, takes the batches of all ranks at once.
"""

import json
import tempfile
from pathlib import Path

from checks import Check
from ranks import started

__all__ = ["run"]

_WORKER = Path(__file__).with_name("fsdp2_rank.py")
_LIMIT_S = 60


def run(device: str) -> None:
    for num_ranks in (1, 4):
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "out.json"
            said = started(_WORKER, [device, str(out)], num_ranks, _LIMIT_S, {"OMP_NUM_THREADS": "1"})
            name = f"{num_ranks} rank{'s' if num_ranks > 1 else ''}"
            if said:
                Check(name=name, figure=said[-300:], bound="no error", passed=False).say()
            if out.exists():
                _say(name, json.loads(out.read_text()), device)


def _say(name: str, found: dict[str, float], device: str) -> None:
    """Say what rank 0 has found, be it of the first plans only."""
    error = found["exact"]
    Check(name=f"{name}, exact", figure=f"{error:.1e}", bound="1e-5", passed=error <= 1e-5).say()
    for plan in [key.removesuffix(", waits") for key in found if key.endswith(", waits")]:
        free = plan == "islands"  # whose outer step is another, and whose weights are never sent unless they are finite
        waits = int(found[f"{plan}, waits"])
        held = waits == 0 if device == "cuda" and not free else None
        check = f"{name}, {plan}: host syncs in 3 steps"
        Check(name=check, figure=str(waits), bound="" if free else "0", passed=held).say()
        if plan == "exact":
            continue
        ratio = found[f"{plan}, loss"] / found["exact, loss"]
        held = None if free else abs(ratio - 1) <= 0.05
        bound = "" if free else "1 +- 0.05"
        Check(name=f"{name}, {plan}: loss / exact", figure=f"{ratio:.3f}", bound=bound, passed=held).say()
        if found["exact, bytes"]:
            figure = f"{found[f'{plan}, bytes'] / found['exact, bytes']:.3f}"
            Check(name=f"{name}, {plan}: bytes / exact", figure=figure).say()
