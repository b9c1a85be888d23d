"""DLRM (arXiv:1906.00091) on click data, from one command: tables placed by Pliant, the dense part relaxed by it.

    torchrun --nproc-per-node 2 examples/dlrm.py
    pliant emulate --hosts 4 --rate 100mbit -- python examples/dlrm.py --algorithm bytegrad --memory 64MB

First every rank counts the rows of the same first batches; from that, from the links (measured now, or --topology) and
from --memory follows where each table goes, and why is printed. Then it trains: embeddings by ShardedEmbeddingBag, the next
batch's exchange beside the dense part, whose gradients --algorithm exchanges. AUC is that of all ranks' test data together.
With --checkpoint FOLDER it saves as it goes, and goes on from there when the same command is given again.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

TIMEOUT_S = 300.0


class DenseNet(nn.Module):
    """The part that is the same on all ranks: an MLP below, products of all pairs of vectors, an MLP on top."""

    def __init__(self, num_tables: int, dim: int, num_dense: int = 13, hidden: int = 64) -> None:
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(num_dense, hidden), nn.ReLU(), nn.Linear(hidden, dim), nn.ReLU())
        self.register_buffer("pairs", torch.tril_indices(num_tables + 1, num_tables + 1, offset=-1), persistent=False)
        num_pairs = num_tables * (num_tables + 1) // 2
        self.top = nn.Sequential(nn.Linear(dim + num_pairs, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, dense: Tensor, bags: Sequence[Tensor]) -> Tensor:
        """Return logits (samples,) of dense features (samples, num_dense) and (samples, dim) for each table."""
        x = self.bottom(dense)
        vectors = torch.stack([x, *bags], dim=1)  # (samples, tables + 1, dim)
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        chosen = products[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([x, chosen], dim=1)).squeeze(1)
