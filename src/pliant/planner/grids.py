"""Grids of sizes and settings on which a search goes from place to place."""

import random

from pliant.planner.families import FAMILIES
from pliant.planner.genome import SMALL_NUMEL, Gene
from pliant.planner.node_families import NodeFamily
from pliant.spec import Workload

__all__ = ["beside", "distance", "separating", "useful"]

_SIZES = tuple(1 << k for k in range(14, 29, 2))


def useful(grid: tuple[int, ...], total: int) -> tuple[int, ...]:
    """Return the sizes up to the first that holds all: larger ones give the same plan."""
    return grid[: 1 + next((i for i, size in enumerate(grid) if size >= total), len(grid) - 1)]


def distance(one: Gene, other: Gene) -> int:
    """Return the steps on the grids between two genes of a family; all nodes that may be inside are one step apart."""
    family = FAMILIES[one.family]
    grids, inside = (family.others, family.holds) if isinstance(family, NodeFamily) else (family.grids, "")
    steps = sum(abs(grid.index(one.settings[key]) - grid.index(other.settings[key])) for key, grid in grids.items())
    return steps + (1 if inside and one.settings[inside] != other.settings[inside] else 0)


def separating(workload: Workload) -> tuple[int, ...]:
    """Return the sizes, in elements, that divide the parameters that weigh into smaller and larger ones."""
    numels = [tensor.numel for tensor in workload.tensors if tensor.numel > SMALL_NUMEL]
    divided = {sum(numel <= size for numel in numels): size for size in reversed(_SIZES)}
    return tuple(sorted(size for number, size in divided.items() if 0 < number < len(numels)))


def beside(grid: tuple[int, ...], value: int, rng: random.Random) -> int:
    """Return the size one place on the grid from the nearest to a value, which is DDP's where it is 0."""
    nearest = min(range(len(grid)), key=lambda i: abs(grid[i] - (value or 25 << 20)))
    return grid[max(0, min(len(grid) - 1, nearest + rng.choice((-1, 1))))]
