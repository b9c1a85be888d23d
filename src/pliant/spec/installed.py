"""Entry points by which other installed distributions add to Pliant."""

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

__all__ = ["take_installed"]


def take_installed(group: str, take: Callable[[Any], None]) -> tuple[str, ...]:
    """Hand what each entry point of a group holds to a function, and return for each that fails why, as a clause.

    Args:
        group: Name of the group, such as ``pliant.commands``.
        take: Function that is called once for each entry point.

    """
    failures: list[str] = []
    for found in entry_points(group=group):
        try:
            take(found.load())
        except Exception as error:  # noqa: BLE001  code of others may raise anything, and the rest must still be known
            owner = "an unnamed distribution" if found.dist is None else f"the distribution {found.dist.name}"
            why = " ".join(f"{type(error).__name__}: {error}".split())
            failures.append(
                f"the entry point {found.name!r} of {owner} in the group {group} cannot be loaded ({why}), so what it "
                "adds is left out until that distribution is mended or uninstalled"
            )
    return tuple(failures)
