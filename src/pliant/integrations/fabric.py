"""Pliant with Lightning Fabric."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from pliant.autotune.options import Auto
from pliant.engine.plan_resolution import PlanLike
from pliant.engine.run import Run
from pliant.entry import relax as relax_model

__all__ = ["relax"]


def relax(
    fabric: Any,
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    what: PlanLike | Auto,
    *,
    hosts: Sequence[Sequence[int]] | None = None,
    timeout_s: float = 300.0,
    log_every: int = 10,
) -> Run:
    """Relax what ``fabric.setup`` has returned, with the strategy "ddp". Collective.

    From then on ``fabric.save(path, state)`` writes each rank's part into the folder ``<path>.pliant``, and
    ``fabric.load(path, state)`` goes on to the bit. Where ranks differ, save and evaluate their mean within
    ``with run.consolidated():``. What steps cost goes to Fabric's loggers, if it has some.

    Args:
        fabric: The Fabric, from ``lightning.fabric`` or ``lightning_fabric``.
        model: The model that it has set up.
        optimizer: The optimizer that it has set up, or several.
        what: As for `pliant.relax`.
        hosts: As for `pliant.relax`.
        timeout_s: As for `pliant.relax`.
        log_every: Steps of one row in the loggers; 0 for none.

    Raises:
        ValueError: What `pliant.relax` raises.

    """
    scaler = getattr(fabric.strategy.precision, "scaler", None)
    nonfinite = "raise" if scaler is None else "propagate"
    run = relax_model(model, optimizer, what, hosts=hosts, timeout_s=timeout_s, nonfinite=nonfinite)
    _follow_checkpoints(fabric, run, scaler)
    if log_every > 0 and fabric.loggers:
        run.log_to(_Loggers(fabric), every=log_every)
    return run


def _follow_checkpoints(fabric: Any, run: Run, scaler: Any) -> None:
    """Save and load the run whenever Fabric, which calls nobody back, saves and loads."""
    save, load = fabric.save, fabric.load

    def _save(path: str | Path, *arguments: Any, **options: Any) -> None:
        save(path, *arguments, **options)
        if run.is_open:
            run.save_part(f"{path}.pliant")

    def _load(path: str | Path, state: Any = None, *arguments: Any, **options: Any) -> Any:
        remainder = load(path, state, *arguments, **options)
        if run.is_open and state is not None:
            run.load_part(f"{path}.pliant", scaler=scaler)
        return remainder

    fabric.save, fabric.load = _save, _load


class _Loggers:
    """Writes rows to the loggers of a Fabric."""

    def __init__(self, fabric: Any) -> None:
        self._fabric = fabric

    def log(self, step: int, values: Mapping[str, float | str]) -> None:
        numbers = {f"pliant/{name}": value for name, value in values.items() if not isinstance(value, str)}
        self._fabric.log_dict(numbers, step=step)

    def close(self) -> None:
        """Leave the loggers to Fabric."""
