# pyright: reportMissingImports=false, reportUntypedBaseClass=false, reportUnknownParameterType=false
"""Pliant with an Accelerator of Hugging Face's accelerate."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from pliant.autotune.options import Auto
from pliant.engine.plan_resolution import PlanLike
from pliant.engine.relaxed_model import module_of, name_without_wrappers, strip_wrappers
from pliant.engine.run import Run
from pliant.entry import relax as relax_model

__all__ = ["relax"]


def relax(
    accelerator: Accelerator,
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    what: PlanLike | Auto,
    *,
    hosts: Sequence[Sequence[int]] | None = None,
    timeout_s: float = 300.0,
    log_every: int = 10,
) -> Run:
    """Relax what ``accelerator.prepare`` has returned. Collective.

    ``accelerator.save_state(folder)`` then writes each rank's part to ``folder/pliant``, and ``load_state`` goes on to
    the bit. Where ranks differ, the model in the checkpoint is their mean; evaluate it within
    ``with run.consolidated():``. What steps cost goes to the Accelerator's trackers, if it has some.
    ``accelerator.end_training()`` closes the run.

    Args:
        accelerator: The Accelerator.
        model: The prepared model.
        optimizer: The prepared optimizer, or several.
        what: As for `pliant.relax`.
        hosts: As for `pliant.relax`.
        timeout_s: As for `pliant.relax`.
        log_every: Steps of one row in the trackers; 0 for none.

    Raises:
        ValueError: What `pliant.relax` raises.

    """
    nonfinite = "raise" if accelerator.scaler is None else "propagate"
    run = relax_model(model, optimizer, what, hosts=hosts, timeout_s=timeout_s, nonfinite=nonfinite)
    state = _RunState(accelerator, run, model)
    accelerator.register_save_state_pre_hook(state.on_save)
    accelerator.register_load_state_pre_hook(state.on_load)
    accelerator.register_for_checkpointing(state)
    if log_every > 0:
        run.log_to(_Trackers(accelerator), every=log_every)
    _close_at_end(accelerator, run)
    return run


class _RunState:
    """Saves a run when the Accelerator saves, and loads it after all else: objects of the user come last there."""

    def __init__(self, accelerator: Accelerator, run: Run, model: nn.Module) -> None:
        self._accelerator, self._run, self._model = accelerator, run, model
        self._folder = Path()

    def on_save(self, models: list[nn.Module], weights: list[dict[str, Any]], folder: str) -> None:
        if not self._run.is_open:  # closed: its ranks are equal, and nothing is left to save
            return
        self._run.save_part(Path(folder) / "pliant")
        if not self._run.ranks_differ:
            return
        mean = self._run.consolidate()
        for model, state in zip(models, weights, strict=False):  # FSDP has saved its own
            if module_of(model) is module_of(self._model):
                state.update({name: mean[_bare(name, model)] for name in state})

    def on_load(self, models: list[nn.Module], folder: str) -> None:
        self._folder = Path(folder)

    def state_dict(self) -> dict[str, Any]:
        return {"see": "pliant/"}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._run.load_part(self._folder / "pliant", scaler=self._accelerator.scaler)


class _Trackers:
    """Writes rows to the trackers of an Accelerator, which write on the first process only."""

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator

    def log(self, step: int, values: Mapping[str, float | str]) -> None:
        if self._accelerator.trackers:
            self._accelerator.log({f"pliant/{name}": value for name, value in values.items()}, step=step)

    def close(self) -> None:
        """Leave the trackers to the Accelerator."""


def _bare(name: str, model: nn.Module) -> str:
    """Return the name that an entry of a wrapped model's state has in the module itself."""
    bare = name_without_wrappers(name)
    return bare.removeprefix("module.") if isinstance(strip_wrappers(model), DistributedDataParallel) else bare


def _close_at_end(accelerator: Accelerator, run: Run) -> None:
    """Close the run when the script ends the training, before the trackers are closed."""
    end = accelerator.end_training

    def end_training() -> None:
        run.close()
        end()

    accelerator.end_training = end_training
