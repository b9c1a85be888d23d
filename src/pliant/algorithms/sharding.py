"""Functions for models that are divided among ranks: each returns a node or a setting of it. No torch here."""

from dataclasses import replace
from typing import Any

from pliant.algorithms.inputs import AlgorithmLike, CodecLike, as_codec_spec, node_of
from pliant.spec import (
    AllReduce,
    CodecSpec,
    Exchange,
    ReduceScatter,
    Residual,
    ScatterGather,
    Sharded,
    SyncPlan,
    WeightGather,
)

__all__ = ["differences", "for_shards", "sharded"]


def sharded(
    *,
    gradients: str | AlgorithmLike | CodecSpec | ReduceScatter | None = None,
    weights: str | AlgorithmLike | CodecSpec | WeightGather | None = None,
    replicas: str | AlgorithmLike | None = None,
    residual: Residual | None = None,
    regather: bool | None = None,
    limit_bytes: int = 0,
) -> Sharded:
    """Choose the exchanges of a model under fully_shard, HSDP or replicate(); what is left out stays torch's.

    >>> import pliant
    >>> print(pliant.sharded(gradients="int4", weights="differences(int4)"))
    Sharded(gradients=ReduceScatter(codec=int4, residual='full'), \
weights=WeightGather(codec=int4, differences=True, regather=False))

    Args:
        gradients: The reduce-scatter: "allreduce" for an exact one, or an algorithm that is one codec, such as "int4".
        weights: The all-gather, likewise, or "differences(int4)" for coded changes since the last one.
        replicas: The exchange of ranks that hold the same shard: any algorithm without owners.
        residual: Residual of the reduce-scatter: in float32 ("full"), in 8 bits ("int8"), or none ("none"); then 4 bits
            are rounded at random, without bias, after a Hadamard rotation. None leaves it to the algorithm: "full"
            where it has error feedback, else "none".
        regather: Whether backward gathers weights again; otherwise it decodes what forward has received. None: exact
            and whole weights again, differences not.
        limit_bytes: Most bytes that a rank may keep for all this; 0 for no limit.

    Raises:
        ValueError: What is given is not one codec, or the two do not fit each other.

    """
    scatter = _reduce_scatter(_read(gradients), residual)
    gather = _weight_gather(_read(weights))
    if gather is not None and regather is not None:
        gather = replace(gather, regather=regather)
    if gather is None and regather is not None:
        raise ValueError("regather says how weights travel, but no weights are given; add weights='allreduce'.")
    return Sharded(
        gradients=scatter,
        weights=gather,
        replicas=None if replicas is None else node_of(_read(replicas)),
        limit_bytes=int(limit_bytes),
    )


def differences(codec: str | CodecLike) -> WeightGather:
    """Send coded changes of the weights since the last gather, and let backward use forward's payload.

    Jia et al., SDP4Bit (arXiv:2410.15526): 4 bits cost less accuracy for differences than for weights.

    >>> import pliant
    >>> print(pliant.sharded(weights=pliant.differences("int4")))
    Sharded(weights=WeightGather(codec=int4, differences=True, regather=False))

    """
    return WeightGather.of_differences(as_codec_spec(_read(codec)))


def for_shards(plan: SyncPlan, *, has_replicas: bool, has_shards: bool = True) -> SyncPlan:
    """Return a plan for a model that is divided among ranks, with plain algorithms written out as `Sharded`.

    On a mesh with replicas a plain algorithm is their exchange, and shards stay torch's. Without replicas it carries
    gradients to their shards.

    Raises:
        ValueError: An algorithm is not one codec, but there are no replicas; the plan says what replicas or shards do,
            but there are none; or gradients wait for the end of backward.

    """
    plan.require_order_of_shards()
    rules = tuple(replace(rule, exchange=_for_shards(rule.exchange, has_replicas, has_shards)) for rule in plan.rules)
    return replace(plan, rules=rules)


def _for_shards(node: Exchange, has_replicas: bool, has_shards: bool) -> Sharded:
    if isinstance(node, Sharded):
        if node.replicas is not None and not has_replicas:
            raise ValueError(
                f"the plan says what replicas do ({node.replicas}), but the model is divided among all ranks of its "
                "mesh, and no two hold the same; leave replicas out, or use a mesh of two dimensions."
            )
        if not (has_shards or (node.gradients is None and node.weights is None)):
            raise ValueError(
                f"the plan says how gradients or weights of shards travel ({node}), but under replicate() parameters "
                "are whole on every rank; say what ranks do by replicas=, or call fully_shard(model) instead."
            )
        return node
    if has_replicas:
        return Sharded(replicas=node)
    return Sharded(gradients=_reduce_scatter(node, None), weights=WeightGather())


def _reduce_scatter(given: Any, residual: Residual | None) -> ReduceScatter | None:
    if given is None:
        if residual is not None:
            raise ValueError("residual says what gradients leave behind, but none are given; add gradients='int4'.")
        return None
    if isinstance(given, ReduceScatter):
        return given if residual is None else replace(given, residual=residual)
    codec, feeds_back = _codec_of(given, "gradients")
    if codec is None:
        return ReduceScatter(residual=residual or "none")
    kept = residual or ("full" if feeds_back else "none")
    if kept == "none" and codec.name == "int4":  # the same payload, rounded without bias
        codec = CodecSpec(name="qsgd", settings={"bits": 4, "block": codec.setting("block")})
        return ReduceScatter(codec=codec, rotated=True)
    return ReduceScatter(codec=codec, residual=kept)


def _weight_gather(given: Any) -> WeightGather | None:
    if given is None or isinstance(given, WeightGather):
        return given
    return WeightGather(codec=_codec_of(given, "weights")[0])


def _codec_of(given: Any, what: str) -> tuple[CodecSpec | None, bool]:
    """Return the codec of an algorithm that is one, None for the exact one, and whether errors are fed back."""
    if isinstance(given, CodecSpec):
        return given, given.facts.biased
    node = node_of(given)
    if isinstance(node, AllReduce | ScatterGather) and node.schedule == "ring":
        if isinstance(node, ScatterGather) and node.decay == 1:
            return node.codec, node.feedback != "none"
        if isinstance(node, AllReduce) and (node.codec is None or node.codec.facts.kind == "cast"):
            return node.codec, False
    raise ValueError(
        f"{what} of a sharded model travel in one codec, but {node} is more than that; choose one such as allreduce, "
        "bf16, bytegrad, qsgd, int4 or onebit, or give it to replicas."
    )


def _read(given: Any) -> Any:
    """Return what a text of the grammar names; all else as it is."""
    from pliant.algorithms.grammar import parse_value  # only here: the grammar knows the words of this file

    return parse_value(given) if isinstance(given, str) else given
