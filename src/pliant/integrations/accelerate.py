# pyright: reportMissingImports=false, reportUntypedBaseClass=false, reportUnknownParameterType=false
"""Pliant with an Accelerator of Hugging Face's accelerate: ``run = relax(accelerator, model, optimizer, "onebit")``.

``accelerator.save_state(folder)`` then writes each rank's part to ``folder/pliant``, and ``load_state`` goes on to the
bit. Where ranks differ, the model in the checkpoint is their mean; evaluate it within ``with run.consolidated():``.
What steps cost goes to the Accelerator's trackers, if it has some. ``accelerator.end_training()`` closes the run.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pliant.engine.relaxed_model import module_of, name_without_wrappers, strip_wrappers
from pliant.engine.run import Run
from pliant.integrations.loop import FrameworkLog, RelaxesLoop, part_name

__all__ = ["relax"]


def _follow(accelerator: Accelerator, run: Run, model: nn.Module) -> None:
    state = _RunState(accelerator, run, model)
    accelerator.register_save_state_pre_hook(state.on_save)
    accelerator.register_load_state_pre_hook(state.on_load)
    accelerator.register_for_checkpointing(state)
    _close_at_end(accelerator, run)


def _log_of(accelerator: Accelerator) -> FrameworkLog:
    """Return a log that asks for the trackers when a row is due: scripts may begin them later."""

    def write(values: Mapping[str, Any], step: int) -> None:
        for tracker in accelerator.trackers:  # which write on the first process only
            if tracker.name == "wandb":  # it refuses steps below its own, so that a row must not be ahead of the script
                tracker.log({**values, "pliant/step": step}, step=tracker.tracker.step)
            else:
                tracker.log(dict(values), step=step)

    return FrameworkLog(write=write, writes_texts=True)


class _RunState:
    """Saves a run when the Accelerator saves, and loads it after all else: objects of the user come last there."""

    def __init__(self, accelerator: Accelerator, run: Run, model: nn.Module) -> None:
        self._accelerator, self._run, self._model = accelerator, run, model
        self._folder, self._name = Path(), part_name(accelerator, run)

    def on_save(self, models: list[nn.Module], weights: list[dict[str, Any]], folder: str) -> None:
        if not self._run.is_open:  # closed: its ranks are equal, and nothing is left to save
            return
        self._run.save_part(Path(folder) / self._name)
        if not self._run.ranks_differ:
            return
        mean = {name_without_wrappers(name): value for name, value in self._run.consolidate().items()}
        for model, state in zip(models, weights, strict=False):  # FSDP has saved its own
            if module_of(model) is module_of(self._model):
                state.update({name: mean.get(_bare(name, model), value) for name, value in state.items()})

    def on_load(self, models: list[nn.Module], folder: str) -> None:
        self._folder = Path(folder)

    def state_dict(self) -> dict[str, Any]:
        return {"see": f"{self._name}/"}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if self._run.is_open:  # closed: what the Accelerator has loaded is all, such as the best model to evaluate
            self._run.load_part(self._folder / self._name, scaler=self._accelerator.scaler)


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


relax = RelaxesLoop(scaler_of=lambda accelerator: accelerator.scaler, log_of=_log_of, follow=_follow)
"""Relaxes what ``accelerator.prepare`` has returned."""
