# pyright: reportMissingImports=false, reportUntypedBaseClass=false, reportUnknownParameterType=false
"""Pliant in the Trainer of Hugging Face's transformers."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, get_last_checkpoint

from pliant.autotune.options import Auto
from pliant.engine.plan_resolution import PlanLike
from pliant.engine.run import Run
from pliant.engine.step_meter import StepMeter
from pliant.entry import relax

__all__ = ["PliantCallback"]


class PliantCallback(TrainerCallback):
    """Relaxes a Trainer's training: ``trainer.add_callback(PliantCallback(trainer, "onebit"))``, as the last callback.

    - The run begins when training begins, and is closed when it ends: all ranks then have the same model.
    - A checkpoint holds each rank's part in ``checkpoint-<step>/pliant``; ``train(resume_from_checkpoint=...)`` goes on
      to the bit. Where ranks differ, the model in it is their mean.
    - Where ranks differ, evaluation during training is of their mean.
    - What steps cost since the last line stands in the Trainer's logs, as ``pliant/step_s`` and so on.

    Args:
        trainer: The Trainer of transformers.
        what: As for `pliant.relax`.
        hosts: As for `pliant.relax`.
        rack: As for `pliant.relax`.
        timeout_s: As for `pliant.relax`.

    """

    def __init__(
        self,
        trainer: Any,
        what: PlanLike | Auto,
        *,
        hosts: Sequence[Sequence[int]] | None = None,
        rack: str = "",
        timeout_s: float = 300.0,
    ) -> None:
        self.trainer, self._what, self._timeout_s = trainer, what, timeout_s
        self._hosts, self._rack = hosts, rack
        self.run: Run | None = None
        """The run, while the Trainer trains."""
        self._meter: StepMeter | None = None
        self._mean = ExitStack()
        """Holds the block in which the model is the mean over ranks."""
        self._resume_from: str | Path | bool | None = None
        self._trial: Any = None
        """Trial of a hyperparameter search, whose checkpoints have a folder of their own."""
        self._train, self._log = trainer.train, trainer.log
        # The Trainer tells callbacks neither where it resumes from, nor of which trial, nor what it is about to log.
        trainer.train, trainer.log = self._noting_train, self._adding_log

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Relax the model, and load this rank's part of the checkpoint."""
        if self.run is not None:  # auto_find_batch_size begins again after an error
            self._leave(RuntimeError("the training before has ended in an error"))
        accelerator = self.trainer.accelerator
        scaler = getattr(accelerator, "scaler", None)
        self.run = relax(
            self.trainer.model_wrapped,
            self.trainer.optimizer,
            self._what,
            hosts=self._hosts,
            rack=self._rack,
            timeout_s=self._timeout_s,
            nonfinite="raise" if scaler is None else "propagate",
        )
        if state.global_step > 0:
            self.run.load_part(self._checkpoint(args) / "pliant", scaler=scaler)
        self._meter = StepMeter(self.run)
        if args.eval_on_start:
            self._mean.enter_context(self.run.consolidated())

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """Give each rank its own weights back."""
        self._mean.close()

    on_epoch_begin = on_step_begin

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Show the mean over ranks, if it is about to be evaluated or saved."""
        self._mean.close()
        if self.run is not None and (control.should_evaluate or control.should_save):
            self._mean.enter_context(self.run.consolidated())

    on_epoch_end = on_step_end

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Write this rank's part into the Trainer's checkpoint."""
        self._mean.close()
        if self.run is not None and not args.save_only_model:
            folder = args.output_dir if self._trial is None else self.trainer._get_output_dir(self._trial)
            self.run.save_part(Path(str(folder)) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}" / "pliant")

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Close the run; the best model, if the Trainer has loaded it, stays."""
        best = None
        if args.load_best_model_at_end and state.best_model_checkpoint is not None:
            best = {name: value.clone() for name, value in self.trainer.model.state_dict().items()}
        self._mean.close()
        if self.run is not None:
            self.run.close()
            self.run = None
        if best is not None:
            self.trainer.model.load_state_dict(best)

    def _noting_train(self, resume_from_checkpoint: str | Path | bool | None = None, *args: Any, **options: Any) -> Any:
        self._resume_from = resume_from_checkpoint
        self._trial = args[0] if args else options.get("trial")
        try:
            return self._train(resume_from_checkpoint, *args, **options)
        except BaseException as error:
            self._leave(error)
            raise

    def _adding_log(self, logs: dict[str, float], *args: Any, **options: Any) -> None:
        if self.run is not None and self._meter is not None and "loss" in logs:
            taken = self._meter.take()
            logs |= {f"pliant/{name}": value for name, value in taken.items() if not isinstance(value, str)}
        self._log(logs, *args, **options)

    def _checkpoint(self, args: TrainingArguments) -> Path:
        if self._resume_from is not None and not isinstance(self._resume_from, bool):
            return Path(self._resume_from)
        return Path(get_last_checkpoint(str(args.output_dir)) or str(args.output_dir))

    def _leave(self, error: BaseException) -> None:
        """Break the run off, so that no rank waits for this one."""
        self._mean.close()
        run, self.run = self.run, None
        if run is not None:
            run.__exit__(type(error), error, None)
