"""Saving and loading of what a framework's own checkpoint lacks."""

from pathlib import Path
from typing import Any, cast

from pliant.engine.attachments import AttachedTuner, KeepsPlan
from pliant.engine.rank_checks import raise_together
from pliant.engine.rank_files import RankFile, read_rank_file, write_rank_file
from pliant.engine.saving import SavesState
from pliant.engine.step_counts import plan_number
from pliant.engine.switching import SwitchesPlans

__all__ = ["SavesParts"]


class SavesParts(SavesState, SwitchesPlans):
    """Base of a run whose model and optimizer are saved by a framework."""

    tuner: AttachedTuner

    def save_part(self, folder: str | Path) -> None:
        """Write this rank's part to a folder of the checkpoint that a framework makes. Collective.

        The framework saves model, optimizer, scheduler and its own counters; ``rank<i>.pt`` holds the rest, as
        `state_dict` has it. When the call returns, all ranks have written.

        Args:
            folder: Inside the framework's checkpoint, and shared or not; made if it is not there. May be a path of
                fsspec, such as ``s3://bucket/checkpoint/pliant``, as a text.

        Raises:
            OSError: On all ranks, if any cannot write.

        """
        content = RankFile(plan=self.plan, on_trial=self.trial.is_on, state=self.state_dict())
        error = write_rank_file(str(folder), self._comm.rank, content)
        raise_together(error, self._comm, self._model_device, kind=OSError)

    def load_part(self, folder: str | Path, *, scaler: Any = None) -> None:
        """Go on from what `save_part` has written, to the bit. Collective.

        The last thing to load, after the framework has loaded model and optimizer. With "auto" the run goes on with the
        plan of the checkpoint and does not search again; with DDP's own exchange if that plan was only on trial.

        Args:
            folder: As for `save_part`.
            scaler: As for `load_state_dict`.

        Raises:
            ValueError: On all ranks, if any rank's file is missing, damaged, or of another plan. What
                `load_state_dict` raises.

        """
        found, error = None, None
        try:
            found = read_rank_file(str(folder), self._comm.rank)
            if plan_number(found.plan) != plan_number(self.plan) and isinstance(self.tuner, KeepsPlan):
                raise ValueError(
                    f"{folder} was saved under the plan {found.plan.name or found.plan.hash}, but this run has "
                    f"{self.plan.name or self.plan.hash}; start with that plan, load, then switch()."
                )
        except ValueError as raised:
            error = raised
        raise_together(error, self._comm, self._model_device, kind=ValueError)
        content = cast(RankFile, found)
        if not isinstance(self.tuner, KeepsPlan):
            self.tuner.close()
            self.tuner = KeepsPlan()
            self.trial.end()  # nobody asks any more whether its plan has failed
            self.switch(content.plan)
        self.load_state_dict(content.state, scaler=scaler)
        if content.on_trial:
            self.switch("allreduce")
