# pyright: reportMissingImports=false, reportUntypedBaseClass=false, reportUnknownParameterType=false
"""Pliant in the workers of Ray Train."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray.train
from ray.train.collective import broadcast_from_rank_zero
from torch import nn
from torch.optim import Optimizer

from pliant.autotune.options import Auto
from pliant.engine.plan_resolution import PlanLike
from pliant.engine.run import Run
from pliant.engine.step_meter import StepMeter
from pliant.entry import relax as relax_model
from pliant.integrations.loop import part_name

__all__ = ["relax"]


def relax(
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    what: PlanLike | Auto,
    *,
    hosts: Sequence[Sequence[int]] | None = None,
    rack: str = "",
    timeout_s: float = 300.0,
    scaler: Any = None,
) -> Run:
    """Relax what ``ray.train.torch.prepare_model`` has returned, in the function that each worker runs. Collective.

    If the worker was started with a checkpoint, model and optimizer have been loaded from it before, and the run goes
    on to the bit. From then on ``ray.train.report`` adds what steps cost to the metrics, and, if rank 0 gives it a
    checkpoint, each rank's part in ``pliant/``. All workers call it alike, as Ray asks for, and wait for the upload.

    Args:
        model: The prepared model.
        optimizer: The optimizer, or several.
        what: As for `pliant.relax`.
        hosts: As for `pliant.relax`.
        rack: As for `pliant.relax`.
        timeout_s: As for `pliant.relax`.
        scaler: The GradScaler that makes steps, if there is one.

    Raises:
        ValueError: What `pliant.relax` raises; the checkpoint holds nothing of Pliant.

    """
    nonfinite = "raise" if scaler is None else "propagate"
    run = relax_model(model, optimizer, what, hosts=hosts, rack=rack, timeout_s=timeout_s, nonfinite=nonfinite)
    name = part_name(ray.train, run)
    try:
        if (checkpoint := ray.train.get_checkpoint()) is not None:
            with checkpoint.as_directory() as folder:
                run.load_part(Path(folder) / name, scaler=scaler)
    except BaseException as error:
        run.__exit__(type(error), error, None)
        raise
    _follow_reports(run, name)
    return run


def _follow_reports(run: Run, name: str) -> None:
    """Take part in the reports of this worker, since Ray calls nobody back."""
    report, meter = ray.train.report, StepMeter(run)

    def _report(metrics: dict[str, Any], checkpoint: Any = None, **options: Any) -> None:
        mode = options.get("checkpoint_upload_mode")
        if run.is_open and mode is not None and mode.name != "SYNC":
            raise ValueError(
                f"ray.train.report() was given {mode}, but each rank's part of the run lies in a folder that is gone "
                "when the report returns; leave checkpoint_upload_mode out."
            )
        costs = {f"pliant/{cost}": value for cost, value in meter.take().items()}
        with tempfile.TemporaryDirectory() as folder:
            if run.is_open and broadcast_from_rank_zero(checkpoint is not None):
                if checkpoint is None:
                    checkpoint = ray.train.Checkpoint.from_directory(folder)
                run.save_part(Path(checkpoint.path) / name)
            report({**costs, **metrics}, checkpoint=checkpoint, **options)

    ray.train.report = _report
