"""Results that an interrupted benchmark has left, for the same command to go on with. No torch."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pliant.spec.reading import made_by, read_json
from pliant_bench.harness.setup import Setup

__all__ = ["records_before"]


def records_before(
    path: Path | None, setup: Setup, num_hosts: int, *, alike: Sequence[str], what: str
) -> list[dict[str, Any]]:
    """Return the records that a file of an earlier run has.

    Args:
        path: The file; without it, or where it is not there yet, there are no records.
        setup: What is to be measured now.
        num_hosts: On so many hosts.
        alike: Fields of the setup that must be as they were, for records to stand side by side.
        what: Name of what the records are of, in the plural.

    Raises:
        ValueError: That run was another one.

    """
    if path is None or not path.exists():
        return []
    before = read_json(path)
    with made_by("pliant bench --json", path):
        had, now = _facts(before["setup"], before.get("hosts"), alike), _facts(asdict(setup), num_hosts, alike)
        records = list(before["records"])
    if had != now:
        raise ValueError(
            f"{path} has a benchmark with {had}, but this one has {now}, so that their {what} cannot stand side by "
            "side; give another --json file, or the same settings."
        )
    return records


def _facts(setup: dict[str, Any], num_hosts: int | None, alike: Sequence[str]) -> dict[str, Any]:
    return {**{name: setup[name] for name in alike}, "arms": list(setup["arms"]), "hosts": num_hosts}
