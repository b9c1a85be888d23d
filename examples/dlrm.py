"""DLRM."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

NUM_DENSE = 13


class DenseNet(nn.Module):
    """The part of DLRM (arXiv:1906.00091) that is the same on all ranks: two MLPs, and products of all pairs between."""

    def __init__(self, num_tables: int, dim: int, hidden: int = 64) -> None:
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(NUM_DENSE, hidden), nn.ReLU(), nn.Linear(hidden, dim), nn.ReLU())
        self.register_buffer("pairs", torch.tril_indices(num_tables + 1, num_tables + 1, offset=-1), persistent=False)
        num_pairs = num_tables * (num_tables + 1) // 2
        self.top = nn.Sequential(nn.Linear(dim + num_pairs, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, dense: Tensor, bags: Sequence[Tensor]) -> Tensor:
        """Return logits (samples,) of dense features (samples, 13) and one vector (samples, dim) for each table."""
        x = self.bottom(dense)
        vectors = torch.stack([x, *bags], dim=1)  # (samples, tables + 1, dim)
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        chosen = products[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([x, chosen], dim=1)).squeeze(1)
