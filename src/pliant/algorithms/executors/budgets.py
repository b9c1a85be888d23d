"""Selection of blocks: a budget for the whole model, divided among its parameters, and the best blocks of each."""

import torch
from torch import Tensor

__all__ = ["minimum_counts", "select_blocks"]


def select_blocks(density: Tensor, numels: Tensor, layers: Tensor, first: Tensor, room: int) -> Tensor:
    """Return the blocks that are sent, bool (num_blocks,): densest first, as many elements as there is room for.

    Of each layer the `first` densest go before all others. With floors as `first` this is the greedy solution of

        max sum_b s_b x_b   with   sum_b c_b x_b <= room,   at least first_l blocks of layer l,   x_b in {0, 1},

    This is a multiple-choice knapsack of layers and numbers of blocks whose gains are concave, as the best go first.
    The solution misses less than the gain of one block, which is less than 1 % of the total where a hundred or more are
    sent. (L-GreCo, arXiv:2210.17357, solves the same for compression errors.) With an earlier solution's counts it
    finds the best blocks of each layer. Ties go to the lower index: equal arguments give equal masks.

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
