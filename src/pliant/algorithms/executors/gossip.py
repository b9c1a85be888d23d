"""Weights averaged with neighbours in a graph, beside the gradient steps: BAGUA's decentralized primitives."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from pliant.algorithms.base import Deferred, State, StateSpec, StepContext
from pliant.buckets import Bucket
from pliant.codecs import codec_from
from pliant.collectives.gossip import CodedNeighborAverage as CodedNeighborAverage, NeighborAverage as NeighborAverage
from pliant.collectives.pair_average import CodedPairAverage, PairAverage, PairRule
from pliant.comm.base import Comm
from pliant.spec import CodedGossip, Gossip

__all__ = ["CodedGossipExecutor", "GossipExecutor"]


@dataclass(frozen=True)
class GossipExecutor:
    """One step of gossip runs beside each gradient step.

    Lian et al., D-PSGD (arXiv:1705.09056), Algorithm 1; with one partner a step, BAGUA's D_FP_S (arXiv:2107.01499):

        x_i <- sum_j W_ij x_j - lr g_i(x_i),  with g_i taken at the x_i that was sent

    The exchange starts when a step is done and is added one step later, so all of forward, backward and step hides
    it. Bytes per exchange: 4 N to each rank whose row names this one, and from each that its own row names.

    At a free pace neighbours meet in pairs (`PairAverage`), each whenever it likes. Bytes per exchange: 4 N out and in.
    """

    node: Gossip

    def slots(self, shape: tuple[int, ...], comm: Comm) -> StateSpec:
        """Keep nothing between two exchanges."""
        return {}

    def prepare(self, bucket: Bucket, comm: Comm) -> Any:
        """Make the buffers for the sources' weights."""
        if self.node.meets_in_pairs:
            return None
        graph = self.node.graph
        return NeighborAverage(graph, bucket.numel, comm, dtype=bucket.flat.dtype, device=bucket.flat.device)

    def on_ready(self, bucket: Bucket, state: State, comm: Comm, context: StepContext) -> Deferred | None:
        """Leave gradients as they are."""

    def reset_reference(self, bucket: Bucket, state: State) -> None:
        """Keep nothing between two exchanges."""

    def exchange_weights(self, bucket: Bucket, state: State, comm: Comm, context: StepContext) -> Deferred | None:
        """Average once with the neighbours."""
        state.workspace(bucket.flat, context.round)
        return None

    def pair_rule(self, numel: int, state: State) -> PairRule:
        """Return the mean of two vectors in full precision."""
        return PairAverage(numel)


@dataclass(frozen=True)
class CodedGossipExecutor:
    """Gossip in fewer bits: neighbours keep replicas of each other, and exchange coded differences to them.

    With gamma above 0, CHOCO-SGD (Koloskova et al., arXiv:1902.00340, Algorithm 2), one step late like `Gossip`:

        q_i = C(x_i - r_i);  r_i <- r_i + q_i, here and at the neighbours;  x_i <- x_i + gamma sum_j W_ij (r_j - r_i)

    With gamma 0, DCD-PSGD (Tang et al., arXiv:1803.06443, Algorithm 1; BAGUA's D_LP_S), whose weights are the replica:

        q_i = C(x_i - lr g_i + sum_j W_ij r_j - 2 r_i);  r_i <- r_i + q_i;  x_i <- r_i,  where x_i was r_i before

    A rank knows its own r_i at once, and its neighbours' only by the next step. So messages run beside forward and
    backward here as well, and the result is still the paper's. Bytes per exchange: one payload per target and source.
    Memory: one replica per source and one of its own.

    At a free pace neighbours meet in pairs (`CodedPairAverage`), and each pair has two replicas of its own: so a change
    need not be told to anybody else, and the graph may be any. Bytes per exchange: one payload out and one in. Memory:
    two replicas per neighbour.
    """

    node: CodedGossip

    def slots(self, shape: tuple[int, ...], comm: Comm) -> StateSpec:
        """A replica per rank whose messages come here, and one of its own; two for each neighbour at a free pace."""
        if self.node.meets_in_pairs:
            neighbours = sorted(self.node.graph.neighbours(comm.size)[comm.rank])
            return {f"replica {whose} {peer}": None for peer in neighbours for whose in ("own", "other")}
        return {f"replica {rank}": None for rank in self.node.graph.mixing(0, comm.size)[comm.rank] | {comm.rank: 1.0}}

    def prepare(self, bucket: Bucket, comm: Comm) -> Any:
        """Make the buffers of payloads."""
        if self.node.meets_in_pairs:
            return None
        node, codec = self.node, codec_from(self.node.codec)
        gamma, device = node.gamma or 1.0, bucket.flat.device
        return CodedNeighborAverage(codec, node.graph, bucket.numel, comm, gamma=gamma, device=device)

    def on_ready(self, bucket: Bucket, state: State, comm: Comm, context: StepContext) -> Deferred | None:
        """Leave gradients as they are."""

    def reset_reference(self, bucket: Bucket, state: State) -> None:
        """Set all replicas to the weights, which are equal on all ranks."""
        for slot, replica in state.flat.items():
            if slot.startswith("replica"):
                replica.copy_(bucket.flat)

    def exchange_weights(self, bucket: Bucket, state: State, comm: Comm, context: StepContext) -> Deferred | None:
        """Average once: by way of the own replica, or towards all. A rank alone, as of one host, has nobody to tell."""
        if comm.size == 1:
            return None
        x, coded, replicas = bucket.flat, state.workspace, _replicas(state)
        if self.node.gamma:
            coded.encode(x, replicas, context.seed)
            coded.exchange(replicas)
            coded.mix_replicas(x, replicas)
            return None
        coded.mix_replicas(x, replicas)
        coded.encode(x, replicas, context.seed)
        x.copy_(replicas[comm.rank])
        return lambda: coded.exchange(replicas)

    def pair_rule(self, numel: int, state: State) -> PairRule:
        """Return the step of two vectors towards each other, by the replicas of each pair."""
        own, others = _replicas(state, "own"), _replicas(state, "other")
        return CodedPairAverage(codec_from(self.node.codec), numel, gamma=self.node.gamma, own=own, others=others)


def _replicas(state: State, whose: str = "") -> Mapping[int, Tensor]:
    prefix = f"replica {whose}".strip() + " "
    return {int(slot.removeprefix(prefix)): x for slot, x in state.flat.items() if slot.startswith(prefix)}
