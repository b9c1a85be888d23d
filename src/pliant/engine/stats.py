"""Cost of a run so far, as a record."""

from typing import TypedDict

__all__ = ["RunStats"]


class RunStats(TypedDict):
    """Cost of a run on this rank so far."""

    steps: int
    """Optimizer steps, those before the run counted in if the optimizer counts."""
    exchanges: int
    """Backward passes that were synchronized, or, where weights are exchanged, local."""
    sent_bytes: int
    received_bytes: int
    exposed_s: float
    """Time in which backward, or the step, was done and the exchange was not."""
    exchange_s: float
    """Time in which the comm thread was at work: waiting for the network, and codecs."""
    codec_s: float
    """The part of exchange_s that was not spent waiting for the network."""
    consensus_distance: float
    """Euclidean norm of what the last exchange of weights has changed in this rank's; 0 without such."""
    residual_norm: float
    """Euclidean norm of what this rank's error feedback still owes."""
    last_agreement_step: int
    """The last step after which replicas were found equal; -1 before the first check."""
    curvature_s: float
    """Time that looks at the curvature have taken, for algorithms that ask for it; 0 without such."""
    ratio: float
    """What `dynamic` has set a sparsifier's ratio to; 0 without it, or before its first decision."""
