"""Which blocks to send: a budget for the whole model, divided among its parameters, and the best blocks of each."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["select_blocks", "solve_counts", "minimum_counts"]


def select_blocks(density: Tensor, numels: Tensor, layers: Tensor, first: Tensor, room: int) -> Tensor:
    """Return the blocks that are sent, bool (num_blocks,): densest first, as many elements as there is room for.

    Of each layer the `first` densest go before all others. With floors as `first` this is the greedy solution of

        max sum_b s_b x_b   with   sum_b c_b x_b <= room,   at least first_l blocks of layer l,   x_b in {0, 1},

    a multiple-choice knapsack of layers and numbers of blocks whose gains are concave, as the best go first: what it
    misses is less than the gain of one block, which is less than 1 % of the total where a hundred or more are sent
    (L-GreCo, arXiv:2210.17357, solves the same for compression errors). With an earlier solution's counts it finds
    the best blocks of each layer. Ties go to the lower index: equal arguments give equal masks.

    Args:
        density: Score over elements, (num_blocks,), finite.
        numels: Elements of each block, int64 (num_blocks,).
        layers: To which layer each belongs, int64 (num_blocks,), in order.
        first: Blocks of each layer that go first, int64 (num_layers,).
        room: Elements.

    """
    order = torch.argsort(density, descending=True, stable=True)
    by_layer = order[torch.argsort(layers[order], stable=True)]
    count = torch.bincount(layers, minlength=len(first))
    begin = count.cumsum(0) - count
    place = torch.empty_like(order)  # (num_blocks,) how many of its layer are denser
    place[by_layer] = torch.arange(len(order), device=order.device) - begin[layers[by_layer]]
    later = (place >= first[layers]).to(torch.uint8)
    order = order[torch.argsort(later[order], stable=True)]
    chosen = torch.zeros(len(order), dtype=torch.bool, device=order.device)
    chosen[order[numels[order].cumsum(0) <= room]] = True
    return chosen


def minimum_counts(share: float, room: int, layer_numels: Tensor, segments: Tensor) -> Tensor:
    """Return how many blocks of each layer have its share of the mean density, rounded down: int64 (num_layers,).

    Args:
        share: Of the mean density that a layer gets at least.
        room: Elements that are sent.
        layer_numels: Elements of each layer, (num_layers,).
        segments: Elements of its blocks, (num_layers,).

    """
    mean = room / max(int(layer_numels.sum()), 1)
    return (share * mean * layer_numels / segments).to(torch.int64)


def solve_counts(
    gains: Sequence[Sequence[float]], costs: Sequence[Sequence[int]], room: int, *, limit_s: float = 10.0
) -> tuple[int, ...]:
    """Return the place on each layer's menu that together gain most, by an integer program: what greedy is held to.

        max sum_lj gains_lj x_lj   with   sum_j x_lj = 1,   sum_lj costs_lj x_lj <= room,   x binary

    Args:
        gains: Per layer, what each place on its menu gains, such as the sum of scores of its j best blocks.
        costs: Per layer, what each place costs.
        room: What all may cost.
        limit_s: Of the solver.

    Raises:
        ValueError: Nothing on the menus is cheap enough.
        RuntimeError: SciPy is not installed, or found nothing in time.

    """
    try:
        from scipy import optimize as untyped
    except ImportError as error:
        raise RuntimeError(
            "exact budgets need SciPy, which is not installed; run `pip install 'pliant[schedules]'`, or be greedy."
        ) from error
    if sum(min(menu) for menu in costs) > room:
        raise ValueError(f"the cheapest places cost {sum(min(menu) for menu in costs)}, but there is room for {room}.")
    optimize: Any = untyped
    lengths = [len(menu) for menu in costs]
    one: NDArray[np.float64] = np.zeros((len(costs), sum(lengths)))
    begin = np.cumsum([0, *lengths])
    for layer, (start, stop) in enumerate(pairwise(begin)):
        one[layer, start:stop] = 1
    found: Any = optimize.milp(
        -np.concatenate([np.asarray(menu, dtype=np.float64) for menu in gains]),
        integrality=np.ones(sum(lengths)),
        bounds=optimize.Bounds(0, 1),
        constraints=[
            optimize.LinearConstraint(one, 1, 1),
            optimize.LinearConstraint(np.concatenate([np.asarray(menu) for menu in costs])[None], -np.inf, room),
        ],
        options={"time_limit": limit_s},
    )
    if found.x is None:
        raise RuntimeError(f"HiGHS has found no budgets in {limit_s:g} s; give it longer, or use greedy ones.")
    return tuple(int(np.argmax(found.x[a:b])) for a, b in pairwise(begin))
