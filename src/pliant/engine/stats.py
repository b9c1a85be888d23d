"""Cost of a run so far, as a record."""

from typing import TypedDict

__all__ = ["RunStats"]


class RunStats(TypedDict):
    """Cost of a run on this rank so far."""

    steps: int
    """Optimizer steps, those before the run counted in if the optimizer counts."""
    exchanges: int
    """Backward passes whose gradients were exchanged, or, where weights are exchanged, stayed local."""
    sent_bytes: int
    received_bytes: int
    sent_messages: int
    """Messages out of this rank: a ring's in each of its rounds, a broadcast's as many as its tree is deep."""
    exposed_s: float
    """Time that backward or the step has waited for exchanges."""
    exchange_s: float
    """Time in which communication threads were busy: waiting for the network, and codecs."""
    codec_s: float
    """The part of exchange_s that was not spent waiting for the network."""
    consensus_distance: float
    """Euclidean norm of the last exchange's change of this rank's weights; 0 without exchanges of weights."""
    residual_norm: float
    """Euclidean norm of this rank's residuals of error feedback."""
    last_agreement_step: int
    """The last step after which replicas were found equal; -1 before the first check."""
    curvature_s: float
    """Time that estimates of the curvature have taken, for algorithms that ask for it; 0 without such."""
    ratio: float
    """Ratio that `with_target` has set last; 0 without it, or before its first decision."""
    connections: int
    """Connections between each two ranks, over which large messages are divided."""
    connections_why: str
    """Reason for that number, such as the rates that were measured."""
    exchanges_in_pairs: int
    """Exchanges with one other rank that this rank has taken part in, at a free pace; 0 without such."""
    staleness: int
    """Steps that this rank and the partner of its last exchange in pairs were apart."""
