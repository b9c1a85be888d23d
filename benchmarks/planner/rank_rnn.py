"""AutoSync's learned simulator on our measured plans: a bi-LSTM over a model's variables that learns their order.

Zhang et al., AutoSync (NeurIPS 2020): each variable of a strategy has features of its own (where it is placed, its
group, its compressor, its kind of synchronization, sizes and analytic costs); two layers of a bidirectional LSTM read
them in the order of the graph, and a linear layer gives a score. It learns from pairs: the cross-entropy of RankNet.

It gives an order and no times. An arm to compare with, not a part of Pliant.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from pliant.layouts.payloads import payload_bytes
from pliant.planner import Genome
from pliant.planner.families import NAMED_FAMILIES
from pliant.simulator.layout import buckets_of, itemsize
from pliant.simulator.owned import owned_parts
from pliant.simulator.simulate import BUCKET_BYTES
from pliant.spec import Exchange, LocalSteps, LowRank, Topology, Workload

__all__ = ["RankRnn", "variables_of"]

_DEVICES, _GROUPS = 16, 64
"""Places of one-hot features: owners, and buckets; the paper's code has 16 and 600."""
_FAMILIES = tuple(NAMED_FAMILIES)
_UNLIMITED = 1.25e9
"""Bytes a second of a link that has no limit."""
_HIDDEN, _PLANS, _STEPS = 128, 32, 400
"""Units of the LSTM, plans of one cell in a batch (all their pairs count), and batches."""
_LARGEST_NORM = 0.25
"""The gradient of the LSTM is scaled down to it."""
_LEAST_SPREAD = 1e-6


def variables_of(genes: Genome, workload: Workload, topology: Topology) -> np.ndarray:
    """Return the features of a plan's variables in the order of the graph, (num_variables, num_features)."""
    plan, num_ranks = genes.plan(), topology.num_ranks
    tensors = workload.tensors
    nodes = [plan.exchange_for(t.name, t.layer, t.numel) for t in tensors]
    owned_by = {k: int(own.owners[own.numels.argmax()]) for k, own in owned_parts(nodes, workload, num_ranks).items()}
    bucket_of = {k: b for b, held in enumerate(buckets_of(plan, workload, BUCKET_BYTES)) for k in held}
    slowest = min(rate or _UNLIMITED for h in topology.hosts for rate in (h.send_bytes_per_s, h.receive_bytes_per_s))
    ranks_a_host = max(host.num_ranks for host in topology.hosts)
    total = workload.numel
    rows = []
    for k, (tensor, node) in enumerate(zip(tensors, nodes, strict=True)):
        sent = payload_of(node, tensor.shape, itemsize(tensor)) / node.timing.period
        owned = node.has_owners
        numbers = [tensor.numel / total, np.log2(max(1, tensor.numel)) / 32, np.log10(slowest) / 10, num_ranks / 16]
        analytic = [np.log10(1e-6 + sent / slowest), (num_ranks if owned else 1) / 16, ranks_a_host / 8, float(owned)]
        kinds = [float(owned), float(node.exchanges_weights), float(node.timing.period > 1), float(genes.by_hosts)]
        settings = [float(genes.at_end), np.log2(genes.chunk_bytes) / 32]
        rows.append(
            one_hot(owned_by.get(k, -1), _DEVICES)
            + one_hot(min(bucket_of[k], _GROUPS - 1), _GROUPS)
            + one_hot(_FAMILIES.index(genes.base.family), len(_FAMILIES))
            + [*kinds, *settings, *numbers, *analytic]
        )
    return np.array(rows[::-1], dtype=np.float32)  # gradients come from the last layer on


def payload_of(node: Exchange, shape: tuple[int, ...], item_bytes: int) -> float:
    """Return about how many bytes a payload of a tensor has under a node."""
    core, numel = node.core, math.prod(shape)
    inner = core.averaging if isinstance(core, LocalSteps) else core
    if isinstance(inner, LowRank) and len(shape) > 1:
        return 4.0 * inner.rank * (shape[0] + numel / shape[0])
    if inner.payload_codec is not None:
        return float(payload_bytes(inner.payload_codec, numel))
    return numel * item_bytes * (inner.ratio or 1.0)


def one_hot(place: int, length: int) -> list[float]:
    return [float(k == place) for k in range(length)]


class _Net(nn.Module):
    """Features of variables -> score: a perceptron for each, two layers of a bi-LSTM, and a linear layer."""

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.each = nn.Sequential(nn.Linear(num_features, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, 32), nn.ReLU())
        self.sequence = nn.LSTM(32, _HIDDEN, num_layers=2, bidirectional=True, batch_first=True)
        self.score = nn.Linear(2 * _HIDDEN, 1)

    def forward(self, variables: Tensor) -> Tensor:
        """Return the scores of plans of one model, (num,), of (num, num_variables, num_features)."""
        _, (hidden, _) = self.sequence(self.each(variables))
        return self.score(torch.cat([hidden[-2], hidden[-1]], dim=1)).squeeze(1)


class RankRnn:
    """Scores plans; the lower, the faster.

    Args:
        seed: Of the initial weights and of the batches.

    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def fit(self, cells: Sequence[tuple[np.ndarray, np.ndarray]]) -> None:
        """Learn the order of the plans of each cell.

        Args:
            cells: Per cell the variables of its plans, (num, num_variables, num_features), and the logarithm of their
                times, (num,).

        """
        torch.manual_seed(self._seed)
        every = np.concatenate([x.reshape(-1, x.shape[2]) for x, _ in cells])
        self._mean, self._scale = every.mean(0), every.std(0)
        self._scale[self._scale < _LEAST_SPREAD] = 1.0  # what never varied says nothing
        given = [(self._ready(x), torch.tensor(y, dtype=torch.float32)) for x, y in cells if len(y) > 1]
        self._net = _Net(every.shape[1])
        optimizer = torch.optim.Adam(self._net.parameters(), lr=2e-3, weight_decay=3e-4)
        falls = torch.optim.lr_scheduler.MultiStepLR(optimizer, [_STEPS * 2 // 5, _STEPS * 4 // 5], gamma=0.3)
        rng = np.random.default_rng(self._seed)
        chances = np.array([len(y) for _, y in given], dtype=float)
        for _ in range(_STEPS):
            x, y = given[rng.choice(len(given), p=chances / chances.sum())]
            drawn = rng.permutation(len(y))[:_PLANS]
            scores, known = self._net(x[drawn]), y[drawn]
            i, j = torch.triu_indices(len(drawn), len(drawn), 1)
            sign = torch.sign(known[i] - known[j])
            loss = nn.functional.softplus(-sign * (scores[i] - scores[j]))[sign != 0].mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self._net.sequence.parameters(), _LARGEST_NORM)
            optimizer.step()
            falls.step()

    def predict(self, variables: np.ndarray) -> np.ndarray:
        """Return the scores of plans, (num,)."""
        with torch.no_grad():
            return self._net(self._ready(variables)).double().numpy()

    def _ready(self, variables: np.ndarray) -> Tensor:
        return torch.tensor((variables - self._mean) / self._scale, dtype=torch.float32)
