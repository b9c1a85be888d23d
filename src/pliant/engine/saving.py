"""Saving and loading of a run, as the user calls it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pliant.comm.recorded import RecordedComm
from pliant.engine.agreement import ReplicaCheck
from pliant.engine.checkpoint import write_checkpoint
from pliant.engine.comm_thread import CommThread
from pliant.engine.consolidation import Consolidates
from pliant.engine.plan_executor import PlanExecutor
from pliant.engine.rank_checks import raise_together
from pliant.engine.rank_state import Saver
from pliant.engine.relaxed_model import RelaxedModel, name_without_wrappers
from pliant.engine.remote_files import on_disk
from pliant.engine.sharded_saving import load_part, part_of
from pliant.engine.trial import PlanOnTrial
from pliant.spec import SyncPlan

__all__ = ["SavesState"]


class SavesState(Consolidates):
    """Base of a run that saves and loads its state."""

    plan: SyncPlan
    trial: PlanOnTrial
    _agreement: ReplicaCheck
    _comm: RecordedComm
    _relaxed: RelaxedModel
    _comm_thread: CommThread
    _executor: PlanExecutor
    _module: nn.Module

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's state as tensors under ``rank<i>``, so that ranks do not overwrite each other.

        Made for `torch.distributed.checkpoint`, next to the model's and the optimizer's state (``get_state_dict``);
        `torch.save` per rank works as well. In it is all that belongs to a rank: what algorithms keep, buffers, the
        random generators of torch, Python and NumPy, and where ranks differ their weights and their optimizer's state,
        or the part of it that an owner holds. What algorithms keep is live, all else a copy. At a free pace the call
        is collective. `save` and `load_run` do everything in one call each.
        """
        self.require_own_weights("state_dict()")
        self.catch_up()
        self._comm_thread.drain()
        self._executor.settle(self._dispatcher.step)
        at = self._dispatcher
        return self._saver.write(self._layout, step=at.step, num_backwards=at.num_backwards, unit=at.scale.unit)

    def load_state_dict(self, state: Mapping[str, Any], *, scaler: Any = None) -> None:
        """Continue from a state_dict of the same plan and number of ranks, bit for bit. Collective.

        The last thing to load, after model and optimizer. All is checked on all ranks before anything is changed.

        Args:
            state: What `state_dict` has returned on this rank.
            scaler: The GradScaler that will make steps, whose own state is loaded too. Without it the run finds it in
                the first step that it makes, and raises there if it has skipped one before and its scale has changed.

        Raises:
            ValueError: On all ranks, if any rank's state was made under another plan, number of ranks, model or
                optimizer, by another rank, at another step than the others', or if it lacks something or is damaged.

        """
        self.catch_up()
        self._comm_thread.drain()
        self._executor.settle(self._dispatcher.step)
        resumed = self._saver.read(state)
        self._dispatcher.resume(resumed)
        self._dispatcher.scale.load(resumed.unit, scaler)
        self._agreement.begin()

    def save(self, path: str | Path, *, scheduler: Any = None, scaler: Any = None) -> None:
        """Write all that the run needs to go on to a folder, which `pliant.load_run` reads. Collective.

        Model, optimizer, what belongs to each rank, its random generators, the step and the plan. Of a sharded model
        each rank writes its own part. A checkpoint that is there is replaced when all ranks have written the new one,
        in one move: whatever happens, one of them is whole. All ranks write to the same folder. An elastic run saves
        the ranks that are there.

        Args:
            path: The folder; made if it is not there.
            scheduler: Of the learning rate, to be saved too.
            scaler: A GradScaler, to be saved too.

        Raises:
            OSError: On all ranks, if any cannot write, as on a full disk; what was there before is as it was.
            ValueError: On all ranks, if the scheduler, say, keeps something that is neither a tensor nor plain data; or
                the path is one of fsspec.

        """
        folder = on_disk(path)
        own, shared = self.state_dict(), dict[str, Any]()
        if self._relaxed.sharded is not None:
            own |= {"part": part_of(self._relaxed)}
        else:
            shared |= {
                "model": {name_without_wrappers(name): value for name, value in self._module.state_dict().items()},
                "optimizer": self._relaxed.optimizer.state_dict(),
            }
        shared |= {
            "scheduler": None if scheduler is None else scheduler.state_dict(),
            "scaler": None if scaler is None else scaler.state_dict(),
        }
        write_checkpoint(
            folder,
            plan=self.plan,
            step=self._dispatcher.step,
            on_trial=self.trial.is_on,
            own=own,
            shared=shared,
            comm=self._comm,
            device=self._model_device,
        )

    def load_all(self, state: Mapping[str, Any], shared: Mapping[str, Any], scaler: Any) -> None:
        """Load what `save` has written: this rank's part, and that for all. Collective."""
        error = None
        try:
            if ("part" in state) != (self._relaxed.sharded is not None):
                raise ValueError(
                    "a model that is divided among ranks was saved, but this one is whole, or the other way round"
                )
            if "part" in state:
                load_part(self._relaxed, state["part"])
            else:
                self._load_whole(shared)
        except (RuntimeError, ValueError, KeyError, TypeError) as found:
            error = ValueError(f"the checkpoint does not fit the model or the optimizer ({found}).")
        raise_together(error, self._comm, self._model_device, kind=ValueError)
        self.load_state_dict(state, scaler=scaler)

    def _load_whole(self, shared: Mapping[str, Any]) -> None:
        names: dict[str, str] = {name_without_wrappers(name): name for name in self._module.state_dict()}
        model: Mapping[str, Any] = shared["model"]
        self._module.load_state_dict({names.get(name, name): value for name, value in model.items()})
        self._relaxed.optimizer.load_state_dict(shared["optimizer"])

    @property
    def _model_device(self) -> torch.device:
        return next(iter(self._relaxed.parameters.values())).device

    @property
    def _layout(self) -> Mapping[int, Sequence[str]]:
        """Bucket -> its parameters in the next pass; empty before the first."""
        if self._dispatcher.as_saved is not None:
            return self._dispatcher.as_saved.buckets
        if not self._source.is_settled and not all(
            n.weights_may_diverge for n in self._executor.gradients.store.nodes.values()
        ):
            raise ValueError(
                "a model with static_graph=True lays out its buckets after its second pass, and only one was made, so "
                "that a state saved now would not go on to the bit; save after the next step, or before the first."
            )
        return self._source.layout

    @property
    def _saver(self) -> Saver:
        return Saver(
            executor=self._executor,
            plan=self.plan,
            comm=self._comm,
            module=self._module,
            optimizer=self._relaxed.local_optimizer,
            parameters=self._relaxed.parameters,
        )
