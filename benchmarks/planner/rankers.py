"""AutoSync's own learners, on our features: a linear ranker and RankNet. Arms to compare with, not parts of Pliant.

Zhang et al., AutoSync (NeurIPS 2020): a pairwise logistic loss over plans of one cell. They give an order and no times.
"""

import numpy as np
import torch
from torch import nn

_STEPS, _PAIRS = 400, 256

torch.set_num_threads(1)


class Ranker:
    """Scores plans; the lower, the faster. Learns from pairs: softplus(score of the faster - score of the slower)."""

    def __init__(self, hidden: int, seed: int) -> None:
        """Make one with two hidden layers of so many units, or, with 0, a linear one."""
        self._hidden, self._seed = hidden, seed

    def fit(self, features: np.ndarray, log_s: np.ndarray, groups: np.ndarray) -> None:
        """Learn the order of plans of one group (a cell), and of each."""
        torch.manual_seed(self._seed)
        self._mean, self._scale = features.mean(0), features.std(0) + 1e-9
        x = torch.tensor((features - self._mean) / self._scale, dtype=torch.float32)
        y = torch.tensor(log_s, dtype=torch.float32)
        width, hidden = x.shape[1], self._hidden
        between = [nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU()] if hidden else []
        self._net = nn.Sequential(*between, nn.Linear(hidden or width, 1))
        optimizer = torch.optim.Adam(self._net.parameters(), lr=1e-2 if not hidden else 2e-3, weight_decay=3e-4)
        rng = np.random.default_rng(self._seed)
        members = {group: np.flatnonzero(groups == group) for group in np.unique(groups)}
        for _ in range(_STEPS):
            i = rng.integers(0, len(y), _PAIRS)
            j = np.array([rng.choice(members[groups[k]]) for k in i])
            scores = self._net(x).squeeze(1)
            sign = torch.sign(y[i] - y[j])
            loss = nn.functional.softplus(-sign * (scores[i] - scores[j]))[sign != 0].mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    def predict(self, features: np.ndarray) -> np.ndarray:
        x = torch.tensor((features - self._mean) / self._scale, dtype=torch.float32)
        with torch.no_grad():
            return self._net(x).squeeze(1).double().numpy()
