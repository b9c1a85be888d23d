"""From trials, trainings and benchmarks of codecs to a data set."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from pliant.spec.reading import made_by, read_json
from pliant_bench.collect.journal import FILE, read_lines
from pliant_bench.dataset import dataset_of, write
from pliant_bench.tables.winners import read_trained

__all__ = ["export_to"]


def export_to(folder: Path, collections: Sequence[Path], accuracy: Sequence[Path], micro: Sequence[Path]) -> None:
    """Write the data set of collections, with steps to a target from trainings, and times of codecs.

    Raises:
        ValueError: A file is not what it should be; the message names it.
        RuntimeError: pyarrow is not installed.

    """
    lines = [line for collection in collections for line in read_lines(collection / FILE)]
    micro_rows = [row for path in micro for row in _codec_rows(path)]
    convergence = [row for path in accuracy for row in _training_rows(path)]
    files = " or ".join(str(each / FILE) for each in collections)
    if not lines:
        raise ValueError(f"{files}: no trial was run yet; a data set needs at least one.")
    with made_by("pliant collect", files):
        dataset = dataset_of(lines, micro=micro_rows, convergence=convergence)
    write(dataset, folder)
    runs = dataset.runs
    print(f"{len(runs['run_id'])} runs of {len(dataset.plans)} plans in {folder}; see {folder / 'card.md'}")


def _training_rows(path: Path) -> list[dict[str, Any]]:
    trained = read_trained([path])
    setup = read_json(path)["setup"]
    base = trained["ddp-bf16"].steps if "ddp-bf16" in trained else None
    return [
        {
            "algorithm": name,
            "model": found.model,
            "target": setup.get("target", setup.get("target_accuracy")),
            "steps": found.steps,
            "steps_ratio": found.steps / base if found.steps is not None and base else None,
            "gap": found.gap,
            "source": path.name,
        }
        for name, found in trained.items()
    ]


def _codec_rows(path: Path) -> list[dict[str, Any]]:
    body = read_json(path)
    if not isinstance(body, dict) or "megabytes" not in body or "rows" not in body:
        raise ValueError(f"--micro {path} does not come from benchmarks/codecs.py --json; give a file that does.")
    with made_by("benchmarks/codecs.py --json", path):
        return _rows_of(path, cast(dict[str, Any], body))


def _rows_of(path: Path, body: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "operation": row["operation"],
            "codec": row["codec"],
            "input_bytes": round(body["megabytes"] * 1e6),
            "seconds": row["median_s"],
            "spread_s": row["spread_s"],
            "source": path.name,
        }
        for row in body["rows"]
    ]
