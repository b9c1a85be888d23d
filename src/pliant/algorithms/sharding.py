"""Functions for sharded models that read texts of the grammar as well as nodes and codecs."""

from typing import Any

from pliant.algorithms import shards
from pliant.algorithms.grammar import parse_value
from pliant.algorithms.inputs import AlgorithmLike, CodecLike
from pliant.spec import CodecSpec, ReduceScatter, Residual, Sharded, WeightGather

__all__ = ["differences", "sharded"]


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
    return shards.sharded(
        gradients=_read(gradients),
        weights=_read(weights),
        replicas=_read(replicas),
        residual=residual,
        regather=regather,
        limit_bytes=limit_bytes,
    )


def differences(codec: str | CodecLike) -> WeightGather:
    """Send coded changes of the weights since the last gather; see `pliant.sharded`.

    Wang et al., SDP4Bit (arXiv:2410.15526).

    >>> import pliant
    >>> print(pliant.sharded(weights=pliant.differences("int4")))
    Sharded(weights=WeightGather(codec=int4, differences=True, regather=False))

    """
    return shards.differences(_read(codec))


def _read(given: Any) -> Any:
    return parse_value(given) if isinstance(given, str) else given
