"""Pliant with Lightning Fabric: ``run = relax(fabric, model, optimizer, "onebit")``, with the strategy "ddp".

From then on ``fabric.save(path, state)`` writes each rank's part into the folder ``<path>.pliant``, and
``fabric.load(path, state)`` goes on to the bit. Where ranks differ, the model in the checkpoint is their mean; evaluate
it within ``with run.consolidated():``. What steps cost goes to Fabric's loggers, if it has some.
"""

from pathlib import Path
from typing import Any

from torch import nn

from pliant.engine.run import Run
from pliant.integrations.loop import FrameworkLog, RelaxesLoop, part_name

__all__ = ["relax"]


def _scaler_of(fabric: Any) -> Any:
    return getattr(fabric.strategy.precision, "scaler", None)


def _log_of(fabric: Any) -> FrameworkLog | None:
    return FrameworkLog(write=fabric.log_dict) if fabric.loggers else None


def _follow(fabric: Any, run: Run, _: nn.Module) -> None:
    """Save and load the run whenever Fabric, which calls nobody back, saves and loads."""
    save, load, scaler, name = fabric.save, fabric.load, _scaler_of(fabric), part_name(fabric, run)

    def _save(path: str | Path, *arguments: Any, **options: Any) -> None:
        if not run.is_open:
            save(path, *arguments, **options)
            return
        run.require_own_weights("fabric.save()")  # before anything is written
        with run.consolidated():
            save(path, *arguments, **options)
        run.save_part(f"{path}.{name}")

    def _load(path: str | Path, state: Any = None, *arguments: Any, **options: Any) -> Any:
        remainder = load(path, state, *arguments, **options)
        if run.is_open and state is not None:
            run.load_part(f"{path}.{name}", scaler=scaler)
        return remainder

    fabric.save, fabric.load = _save, _load


relax = RelaxesLoop(scaler_of=_scaler_of, log_of=_log_of, follow=_follow)
"""Relaxes what ``fabric.setup`` has returned; the Fabric is one of ``lightning.fabric`` or ``lightning_fabric``."""
