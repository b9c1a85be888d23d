"""`pliant dataset`: holds the simulator against measured runs, fits overheads to them, and adds what it predicts."""

from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from pliant.planner.predictor import TransferPrior
from pliant.simulator import Overheads
from pliant.spec import canonical_hash, save
from pliant.spec.files import write_atomically
from pliant_bench.dataset import append_simulated, load, write
from pliant_bench.dataset.measured import MeasuredCell, measured_cells
from pliant_bench.dataset.sampled import simulated_runs
from pliant_bench.dataset.validation import validate

__all__ = ["dataset"]


def dataset(
    folder: Annotated[Path, typer.Argument(help="A data set of pliant collect --export.")],
    out: Annotated[
        Path | None, typer.Option(help="Write the data set with simulated runs behind its own there.")
    ] = None,
    simulated: Annotated[int, typer.Option(help="Runs to simulate.")] = 9000,
    seed: Annotated[int, typer.Option(help="Of the cells and plans that are simulated.")] = 0,
    overheads: Annotated[
        Path | None, typer.Option(help="Write the overheads that fit all measured runs there, for simulate and plan.")
    ] = None,
) -> None:
    """Hold the simulator against cells that it has not seen; add simulated runs to the data set if it does well."""
    measured = load(folder)
    cells = measured_cells(measured)
    found = validate(cells)
    text = found.text()
    print(text)
    fitted = _fit(cells)
    if overheads is not None:
        save(fitted, overheads)
    if out is None:
        return
    if not found.is_open:
        raise RuntimeError(
            f"the simulator misses a limit on the cells of {folder} that were held out, so that nothing is written to "
            f"{out}: simulated rows would mislead. Collect more cells, or use the measured ones alone."
        )
    simulator = f"pliant {version('pliant')}, overheads {canonical_hash(fitted)[:8]}"
    runs = simulated_runs(simulated, found.families, fitted, simulator, seed)
    write(append_simulated(measured, runs), out)
    write_atomically(out / "gate.md", f"# Was the simulator good enough?\n\n{text}")
    print(f"{sum(len(cell.trials) for cell in cells)} measured plans, {len(runs)} simulated runs in {out}")


def _fit(cells: list[MeasuredCell]) -> Overheads:
    coefficients = TransferPrior.of([(cell.physics, cell.trials) for cell in cells]).coefficients
    return Overheads().with_coefficients(coefficients)
