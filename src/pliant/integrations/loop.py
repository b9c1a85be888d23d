"""Frameworks whose users write the training loop: one way to relax what they have set up, and one to write logs."""

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim import Optimizer

from pliant.autotune.options import Auto
from pliant.engine.plan_resolution import PlanLike
from pliant.engine.run import Run
from pliant.entry import relax as relax_model

__all__ = ["FrameworkLog", "RelaxesLoop", "part_name"]

_runs: "weakref.WeakKeyDictionary[Any, list[weakref.ref[Run]]]" = weakref.WeakKeyDictionary()
"""Framework -> its runs, in the order of the names that they have in its checkpoints."""


def part_name(framework: Any, run: Run) -> str:
    """Return a run's name in a framework's checkpoints: pliant, and pliant2 beside an open run of another model."""
    runs = _runs.setdefault(framework, [])
    place = next((k for k, held in enumerate(runs) if (other := held()) is None or not other.is_open), len(runs))
    runs[place : place + 1] = [weakref.ref(run)]
    return "pliant" if place == 0 else f"pliant{place + 1}"


@dataclass(frozen=True, kw_only=True)
class FrameworkLog:
    """Writes rows by a framework's own loggers, which the framework closes."""

    write: Callable[[Mapping[str, Any], int], object]
    """Called with values and step."""
    writes_texts: bool = False
    """Whether the loggers take texts, such as the name of a plan."""

    def log(self, step: int, values: Mapping[str, float | str]) -> None:
        """Write the row of a step, under names that begin with ``pliant/``."""
        self.write(
            {f"pliant/{name}": v for name, v in values.items() if self.writes_texts or not isinstance(v, str)}, step
        )

    def close(self) -> None:
        """Leave the loggers to the framework."""


@dataclass(frozen=True, kw_only=True)
class RelaxesLoop:
    """Relaxes the model of a training loop: ``run = relax(accelerator, model, optimizer, "onebit")``, or of a Fabric.

    Each framework has one of these as its ``relax``. The framework's checkpoints then hold each rank's part of the run,
    its GradScaler decides on gradients that are not finite, and what steps cost goes to its loggers, if it has some.
    """

    scaler_of: Callable[[Any], Any]
    """Returns the framework's GradScaler, or None."""
    log_of: Callable[[Any], FrameworkLog | None]
    """Returns a log of the framework's loggers; None if it has none."""
    follow: Callable[[Any, Run, nn.Module], None]
    """Lets a run be saved, loaded and closed by the framework."""

    def __call__(
        self,
        framework: Any,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        what: PlanLike | Auto,
        *,
        hosts: Sequence[Sequence[int]] | None = None,
        rack: str = "",
        timeout_s: float = 300.0,
        log_every: int = 10,
    ) -> Run:
        """Relax what the framework has set up. Collective.

        Args:
            framework: The Accelerator or the Fabric.
            model: The model that it has prepared or set up.
            optimizer: The optimizer that it has prepared or set up, or several.
            what: As for `pliant.relax`.
            hosts: As for `pliant.relax`.
            rack: As for `pliant.relax`.
            timeout_s: As for `pliant.relax`.
            log_every: Steps of one row in the loggers; 0 for none.

        Raises:
            ValueError: What `pliant.relax` raises.

        """
        nonfinite = "raise" if self.scaler_of(framework) is None else "propagate"
        run = relax_model(model, optimizer, what, hosts=hosts, rack=rack, timeout_s=timeout_s, nonfinite=nonfinite)
        self.follow(framework, run, model)
        if log_every > 0 and (log := self.log_of(framework)) is not None:
            run.log_to(log, every=log_every)
        return run
