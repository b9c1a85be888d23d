# pyright: reportMissingImports=false, reportUntypedBaseClass=false, reportUnknownParameterType=false
"""Pliant in the Trainer of Lightning, as its strategy."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

from lightning.pytorch.strategies import DDPStrategy
from torch import nn

from pliant.autotune.options import Auto
from pliant.engine.plan_resolution import PlanLike
from pliant.engine.rank_files import remove_rank_file
from pliant.engine.remote_files import is_url
from pliant.engine.run import Run
from pliant.entry import relax
from pliant.integrations.loop import FrameworkLog

__all__ = ["PliantStrategy"]


class PliantStrategy(DDPStrategy):
    """Lightning's DDP, relaxed: ``Trainer(strategy=PliantStrategy("onebit"))``.

    - The run begins with the first training batch, and is closed when the training ends.
    - Beside a checkpoint ``a.ckpt`` stands the folder ``a.ckpt.pliant`` with each rank's part; ``fit(ckpt_path=...)``
      goes on to the bit. Lightning removes both together. Where ranks differ, the model in it is their mean.
    - Where ranks differ, validation during training is of their mean.
    - What steps cost goes to the Trainer's loggers, every ``log_every_n_steps``.

    Args:
        what: As for `pliant.relax`.
        hosts: As for `pliant.relax`.
        rack: As for `pliant.relax`.
        timeout_s: As for `pliant.relax`.
        ddp: Options of Lightning's DDPStrategy, and of DistributedDataParallel.

    """

    def __init__(
        self,
        what: PlanLike | Auto,
        *,
        hosts: Sequence[Sequence[int]] | None = None,
        rack: str = "",
        timeout_s: float = 300.0,
        **ddp: Any,
    ) -> None:
        super().__init__(**ddp)
        self._what, self._hosts, self._rack, self._timeout_s = what, hosts, rack, timeout_s
        self.run: Run | None = None
        """The run, while the Trainer trains."""
        self._trainer: Any = None
        self._mean = ExitStack()
        """Holds the block in which the model is the mean over ranks."""

    def setup(self, trainer: Any) -> None:
        """Wrap the model in DDP, as Lightning does."""
        self._trainer = trainer
        super().setup(trainer)

    def on_train_start(self) -> None:
        """Relax the model, and load this rank's part of the checkpoint."""
        scaler = getattr(self.precision_plugin, "scaler", None)
        self.run = relax(
            cast(nn.Module, self.model),
            self.optimizers,
            self._what,
            hosts=self._hosts,
            rack=self._rack,
            timeout_s=self._timeout_s,
            nonfinite="raise" if scaler is None else "propagate",
        )
        if (path := self._trainer.ckpt_path) is not None:  # which may be a link, such as last.ckpt
            self.run.load_part(_beside(path if is_url(str(path)) else Path(path).resolve()), scaler=scaler)
        if self._trainer.loggers:
            self.run.log_to(FrameworkLog(write=self._write), every=max(1, self._trainer.log_every_n_steps))

    def _write(self, values: Mapping[str, Any], step: int) -> None:
        for logger in self._trainer.loggers:
            logger.log_metrics(values, step=step)

    def on_validation_start(self) -> None:
        """Show the mean over ranks."""
        if self.run is not None:
            self._mean.enter_context(self.run.consolidated())

    def on_validation_end(self) -> None:
        """Give each rank its own weights back."""
        self._mean.close()

    def on_train_end(self) -> None:
        """Close the run, so that all ranks have the same model."""
        self._mean.close()
        if self.run is not None:
            self.run.close()
            self.run = None

    def on_exception(self, exception: BaseException) -> None:
        """Break the run off, so that no rank waits for this one."""
        self._mean.close()
        if self.run is not None:
            self.run.__exit__(type(exception), exception, None)
            self.run = None

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: str | Path, storage_options: Any = None) -> None:
        """Save as Lightning does, and each rank's part beside it."""
        self._mean.close()
        if self.run is not None:
            if self.run.ranks_differ:
                mean, own = self.run.consolidate(), checkpoint["state_dict"]
                checkpoint["state_dict"] = {name: mean.get(name, value) for name, value in own.items()}
            if "optimizer_states" in checkpoint:  # not weights only
                self.run.save_part(_beside(filepath))
        super().save_checkpoint(checkpoint, filepath, storage_options)

    def remove_checkpoint(self, filepath: str | Path) -> None:
        """Remove a checkpoint, and this rank's part beside it: Lightning calls this on all ranks."""
        super().remove_checkpoint(filepath)
        remove_rank_file(_beside(filepath), self.global_rank)


def _beside(checkpoint: str | Path) -> str:
    return f"{checkpoint}.pliant"
