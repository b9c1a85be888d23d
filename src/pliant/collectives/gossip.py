"""Averages with neighbours in a graph: in full precision, or as coded differences to what neighbours know."""

from collections.abc import Mapping

import torch
from torch import Tensor

from pliant.codecs import Codec
from pliant.comm.base import Comm, PeerTensors
from pliant.comm.standing import StandingReceives
from pliant.spec import Graph

__all__ = ["CodedNeighborAverage", "NeighborAverage", "require_same_neighbours"]


class NeighborAverage:
    """One averaging step x_i <- sum_j W_ij x_j with the graph's matrix of the step.

    Phases: every rank sends its vector to the ranks whose rows name it, and receives from those that its own row names,
    all at once; then it adds them up in the order of ranks, and lets the receives of the next step stand, from whoever
    that step's row names (`StandingReceives`). Bytes: N out per target and in per source.

    Lian et al., D-PSGD (arXiv:1705.09056), is this beside the gradient step.

    Args:
        graph: Mixing matrix of each step.
        numel: Elements of each vector.
        comm: Ranks that mix.
        dtype: Of the vectors.
        device: Device of the buffers.

    """

    def __init__(self, graph: Graph, numel: int, comm: Comm, *, dtype: torch.dtype, device: torch.device) -> None:
        self._graph, self._comm = graph, comm
        steps = range(graph.period(comm.size) or 1)
        most = max(len(graph.mixing(step, comm.size)[comm.rank]) for step in steps)
        # A matching may leave this rank alone in its first step, and pair it in another.
        self._buffers = torch.empty(max(most - 1, 1), numel, dtype=dtype, device=device)
        self._coming: list[PeerTensors] = [()]
        """Receives of the next step, from its sources."""
        self._begin(0)

    def __call__(self, x: Tensor, step: int) -> None:
        """Replace x, (numel,), by what the step's matrix makes of all ranks' vectors."""
        if step != self._step:  # on all ranks, as after a state was loaded: nobody sends what stands
            self._begin(step)
        row, received = self._row, self._coming[0]
        self._receives.exchange([(i, x) for i in self._targets]).wait()
        x.mul_(row[self._comm.rank])
        for j, theirs in received:
            x.add_(theirs, alpha=row[j])
        self._look_ahead(step + 1)
        self._receives.stand()

    def _begin(self, step: int) -> None:
        self._receives = StandingReceives(self._comm, self._coming)
        self._look_ahead(step)

    def _look_ahead(self, step: int) -> None:
        """Find out with whom this rank mixes in a step."""
        mixing, me = self._graph.mixing(step, self._comm.size), self._comm.rank
        self._step, self._row = step, mixing[me]
        self._targets = [i for i, row in enumerate(mixing) if i != me and me in row]
        self._coming[0] = list(zip(sorted(self._row.keys() - {me}), self._buffers, strict=False))


class CodedNeighborAverage:
    """One averaging step in which neighbours send coded differences to replicas of their vectors.

    Every rank i has a replica r_i, and so have its targets, equal to the bit since all decode the same bytes:

        q_i = C(x_i - r_i);  r_i <- r_i + q_i on all;  x_i <- x_i + gamma sum_j W_ij (r_j - r_i)

    Koloskova et al., CHOCO-SGD (arXiv:1902.00340), Algorithm 2. With gamma = 1 and x_i then set to the replicas' mean,
    it is the difference compression of Tang et al., DCD-PSGD (arXiv:1803.06443). What a codec loses stays in the
    difference, so no residual is needed. The graph must be the same in every step. Bytes: one payload out per target
    and in per source.

    Args:
        codec: Any codec.
        graph: Mixing matrix, with a period of 1.
        numel: Elements of each vector.
        comm: Ranks that mix.
        gamma: Share of the way to the replicas' mean.
        device: Device of the buffers.

    """

    def __init__(
        self, codec: Codec, graph: Graph, numel: int, comm: Comm, *, gamma: float, device: torch.device
    ) -> None:
        require_same_neighbours(graph, comm.size)
        self._codec, self._comm, self._gamma = codec, comm, gamma
        mixing = graph.mixing(0, comm.size)
        self._row = mixing[comm.rank]
        self.sources = sorted(self._row.keys() - {comm.rank})
        """Ranks whose replicas this rank keeps, beside its own."""
        self._targets = [i for i, row in enumerate(mixing) if i != comm.rank and comm.rank in row]
        self._own, *others = (
            torch.empty(codec.nbytes(numel), dtype=torch.uint8, device=device) for _ in range(1 + len(self.sources))
        )
        self._received = dict(zip(self.sources, others, strict=True))
        self._difference = torch.empty(numel, dtype=torch.float32, device=device)
        self._receives = StandingReceives(comm, [list(self._received.items())])

    def encode(self, x: Tensor, replicas: Mapping[int, Tensor], seed: int) -> None:
        """Take what is new in x, float32 (numel,), into its own replica, as far as the codec carries it."""
        me = self._comm.rank
        torch.sub(x, replicas[me], out=self._difference)
        self._codec.encode(self._difference, self._own, seed + me + 1)
        self._codec.decode_add(self._own, replicas[me])

    def exchange(self, replicas: Mapping[int, Tensor]) -> None:
        """Send what `encode` left to all that keep a replica of this rank's vector, and follow the sources."""
        sends = [(i, self._own) for i in self._targets]
        self._receives.exchange(sends).wait()
        for j in self.sources:
            self._codec.decode_add(self._received[j], replicas[j])
        self._receives.stand()

    def mix_replicas(self, x: Tensor, replicas: Mapping[int, Tensor]) -> None:
        """Move x towards what the replicas, rank -> (numel,) of this rank and all sources, say."""
        x.sub_(replicas[self._comm.rank], alpha=self._gamma * sum(self._row[j] for j in self.sources))
        for j in self.sources:
            x.add_(replicas[j], alpha=self._gamma * self._row[j])


def require_same_neighbours(graph: Graph, num_ranks: int) -> None:
    """Raise ValueError for a graph in which the neighbours of so many ranks change from step to step."""
    if graph.period(num_ranks) != 1:
        raise ValueError(
            f"coded gossip needs the same neighbours in every step, but a graph of kind {graph.kind!r} changes them; "
            "use ring, exponential, grid, complete or matrix, or gossip in full precision."
        )
