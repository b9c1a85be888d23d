"""An elastic run begins: its options, and what it needs of a model and a plan."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn
from torch.distributed import ProcessGroup

from pliant.comm.elastic import ElasticGroup
from pliant.comm.secret import read_secret
from pliant.comm.transport import Transport
from pliant.engine.connecting import Connections
from pliant.engine.elastic_run import ElasticRun
from pliant.engine.gradient_exchange import NonFinite
from pliant.engine.launcher_env import run_from_torchrun
from pliant.engine.relaxed_model import RelaxedModel
from pliant.spec import CodedGossip, Gossip, NeighborMean, SyncPlan

__all__ = ["Elastic", "require_possible_settings", "start_elastic"]

_UNASKED = (0, 100)
"""Values of `agreement_every` that ask for nothing here: none, and the default of `pliant.relax`."""


@dataclass(frozen=True, kw_only=True)
class Elastic:
    """Options of an elastic run, which continues without lost ranks and accepts new ones.

    >>> Elastic(min_ranks=2).regroup_s
    30.0
    """

    min_ranks: int = 1
    """Fewest ranks that continue; with fewer, all end with a CommError."""
    regroup_s: float = 30.0
    """Longest wait for a rank that is alive but does not arrive; make it longer than the longest step."""
    secret_file: str | Path | None = None
    """File with at least 16 bytes that all ranks can read and nobody else may read. With it, ranks sign their messages
    in the store and check who receives weights. Without it the run must stay on loopback."""

    def __post_init__(self) -> None:
        if self.min_ranks < 1 or self.regroup_s <= 0:
            raise ValueError(
                f"an elastic run of at least {self.min_ranks} ranks that waits {self.regroup_s:g}s cannot be; "
                "min_ranks must be 1 or more, and regroup_s more than 0."
            )


def require_possible_settings(
    hosts: Sequence[Sequence[int]] | None,
    rack: str,
    agreement_every: int,
    transport: Transport,
    connections: Connections | None,
) -> None:
    """Raise ValueError for a setting of `pliant.relax` that no elastic run could follow; arguments are those of it."""
    refused = (
        ("hosts", hosts, hosts is not None, "an elastic run has no level of hosts, since ranks may leave"),
        ("rack", rack, bool(rack), "an elastic run has no level of racks, since ranks may leave"),
        (
            "agreement_every",
            agreement_every,
            agreement_every not in _UNASKED,
            "ranks of an elastic run are not compared, since others may join",
        ),
        (
            "transport",
            transport,
            transport not in ("auto", "host"),
            "tensors of an elastic run go by the host's memory, over Gloo",
        ),
        (
            "connections",
            connections,
            connections is not None,
            "the groups of an elastic run have one connection between each two ranks",
        ),
    )
    for name, value, is_given, why in refused:
        if is_given:
            raise ValueError(f"{name}={value!r} is given, but {why}; leave {name}= or elastic= out.")


def start_elastic(
    relaxed: RelaxedModel,
    plan: SyncPlan,
    elastic: Elastic,
    *,
    group: ProcessGroup | None,
    timeout_s: float,
    start_timeout_s: float,
    nonfinite: NonFinite,
) -> ElasticRun:
    """Begin an elastic run, or join one."""
    _require_possible(relaxed, plan)
    party = ElasticGroup(
        group,
        min_ranks=elastic.min_ranks,
        regroup_s=elastic.regroup_s,
        timeout_s=timeout_s,
        start_timeout_s=start_timeout_s,
        secret=None if elastic.secret_file is None else read_secret(elastic.secret_file),
        run=run_from_torchrun(),
    )
    try:
        party.require_same(_fingerprint(relaxed.module, plan))
        return ElasticRun(relaxed, plan, party=party, nonfinite=nonfinite)
    except BaseException:
        party.leave()
        raise


def _require_possible(relaxed: RelaxedModel, plan: SyncPlan) -> None:
    if relaxed.ddp is not None:
        raise ValueError(
            "an elastic run needs a plain module, but got a DistributedDataParallel: DDP talks to all ranks of its "
            "group by itself (about its buckets, about unused parameters), and would wait for a lost rank; pass "
            "model.module, and call run.model."
        )
    if not all(rule.exchange.exchanges_weights and rule.exchange.leaves_gradients(0) for rule in plan.rules):
        raise ValueError(
            f"an elastic run needs a plan whose ranks exchange weights between steps, but {plan.name or plan.hash!r} "
            "exchanges gradients, whose mean is not known without the lost rank; use gossip, local_sgd, diloco or "
            "async_average, without a warm-up, or leave `elastic` out and resume from a checkpoint."
        )
    for node in (node for rule in plan.rules for node in rule.exchange.walk()):
        if isinstance(node, (Gossip, CodedGossip, NeighborMean)) and node.graph.kind == "matrix":
            raise ValueError(
                f"the mixing matrix is for {len(node.graph.rows)} ranks, but the number of ranks of an elastic "
                "run changes; use a graph that has a rule, such as 'ring'."
            )
        if (node.timing.quorum or 0) > 0:
            raise ValueError(
                f"a quorum of {node.timing.quorum} is for one number of ranks, but that of an elastic run changes; set "
                "quorum=-1 for all ranks but one."
            )
        if getattr(node, "schedule", "ring") != "ring":
            raise ValueError(
                f"the sums of {type(node).__name__} have a schedule, which is for one number of ranks, but that of an "
                "elastic run changes; set schedule='ring'."
            )


def _fingerprint(model: nn.Module, plan: SyncPlan) -> str:
    tensors = {n: v for n, v in model.state_dict().items() if isinstance(v, Tensor)}
    shapes = " ".join(f"{name} {tuple(value.shape)} {value.dtype}" for name, value in tensors.items())
    return f"plan {plan.hash}, model {zlib.crc32(shapes.encode()):08x}"
