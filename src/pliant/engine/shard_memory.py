"""Memory that a rank keeps for the shards of a model under a plan, known before anything is allocated."""

from collections.abc import Mapping
from typing import get_args

from pliant.engine.shard_layout import columns_of
from pliant.engine.sharded_model import ShardedModel
from pliant.layouts.shards import Column, gather_state_bytes, residual_bytes, scatter_payload_bytes
from pliant.spec import Exchange, Residual, Sharded

__all__ = ["describe_kept", "kept_bytes", "nodes_of_shards", "require_within_limits"]


def nodes_of_shards(nodes: Mapping[str, Exchange]) -> dict[str, Sharded]:
    """Return parameter -> node, of those whose node says how shards travel."""
    return {name: node for name, node in nodes.items() if isinstance(node, Sharded)}


def kept_bytes(model: ShardedModel, nodes: Mapping[str, Sharded], rank: int) -> dict[str, int]:
    """Return what a rank keeps: residuals of gradients and their payloads, and payloads and copies of weights.

    Args:
        model: The model.
        nodes: Parameter -> node of the plan.
        rank: The rank among those that share the model.

    """
    kept = {"gradients": 0, "payloads": 0, "weights": 0}
    for column, itemsize in _columns(model, nodes):
        node = nodes[column.name]
        if node.gradients is not None:
            kept["gradients"] += residual_bytes(node.gradients.residual, sum(column.valid))
            kept["payloads"] += scatter_payload_bytes(node.gradients, column.valid, rank)
        kept["weights"] += gather_state_bytes(node.weights, column.valid, itemsize)
    return kept


def describe_kept(model: ShardedModel, nodes: Mapping[str, Sharded]) -> str:
    """Say in a sentence what this rank keeps for its shards."""
    kept = kept_bytes(model, nodes, model.shard_rank)
    lossy = [c for c, _ in _columns(model, nodes) if (setting := nodes[c.name].gradients) and setting.codec]
    others = ", ".join(
        f"{kind} {sum(residual_bytes(kind, sum(c.valid)) for c in lossy) / 1e6:.3g}" for kind in get_args(Residual)
    )
    return (
        f"Shards: each of {model.num_shards} ranks keeps {kept['gradients'] / 1e6:.3g} MB of residuals of "
        f"gradients{f' (of residual={others})' if lossy else ''}, {kept['payloads'] / 1e6:.3g} MB of their "
        f"payloads, and {kept['weights'] / 1e6:.3g} MB of payloads and copies of weights."
    )


def require_within_limits(model: ShardedModel, nodes: Mapping[str, Exchange]) -> None:
    """Raise ValueError, on all ranks alike, if one would keep more than the plan allows.

    That is the first rank, which has the largest shard of each parameter.
    """
    of_shards = nodes_of_shards(nodes)
    limits = [node.limit_bytes for node in of_shards.values() if node.limit_bytes]
    kept = kept_bytes(model, of_shards, 0) if limits else {}
    if limits and sum(kept.values()) > min(limits):
        raise ValueError(
            f"the plan keeps {kept['gradients']} bytes of residuals, {kept['payloads']} of payloads of gradients, "
            f"and {kept['weights']} of payloads and copies of weights on the first rank, but limit_bytes is "
            f"{min(limits)}; use residual='int8' or 'none', weights without differences, or a larger limit."
        )


def _columns(model: ShardedModel, nodes: Mapping[str, Sharded]) -> list[tuple[Column, int]]:
    """Return places of all parameters that are trained and divided, and bytes of an element that is gathered."""
    size = model.num_shards
    groups = [(each, max(d.itemsize for d in each.gathered_dtypes)) for each in model.groups if size > 1]
    return [(c, n) for each, n in groups for c in columns_of(each, model.names_of(each), size, nodes)]
