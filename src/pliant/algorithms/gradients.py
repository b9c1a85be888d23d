"""Algorithms that exchange gradients, by the names that users type: each returns a node of a plan. No torch here."""

from typing import Literal

from pliant.algorithms.inputs import CodecLike, as_codec_spec
from pliant.spec import (
    Agreement,
    AllGather,
    AllReduce,
    BetweenHosts,
    BlockSparse,
    CodecSpec,
    CompressedMomentum,
    DecoupledMomentum,
    LowRank,
    ParameterServer,
    Placement,
    ScatterGather,
    Selection,
    ShardedOptimizer,
    Topology,
    ValueBits,
)

__all__ = [
    "allreduce",
    "bf16",
    "blocktopk",
    "bytegrad",
    "decoupled_momentum",
    "fp16",
    "int4",
    "natural",
    "onebit",
    "onebit_adam",
    "sharded_optimizer",
    "powersgd",
    "qsgd",
    "randomk",
    "bounded_staleness",
    "tasc",
    "terngrad",
    "topk",
]


def allreduce() -> AllReduce:
    """Exact averaging: what torch DDP does."""
    return AllReduce()


def bf16() -> AllReduce:
    """Averaging with bfloat16 on the wire: half the bytes, the range of float32."""
    return AllReduce(codec=CodecSpec(name="bf16"))


def fp16() -> AllReduce:
    """Averaging with float16 on the wire: half the bytes; values above 65504 become infinite."""
    return AllReduce(codec=CodecSpec(name="fp16"))


def bytegrad() -> ScatterGather:
    """8-bit min-max quantization, deterministic, no feedback: BAGUA's ByteGrad with its codec's flaws removed."""
    return ScatterGather(codec=CodecSpec(name="minmax8"))


def qsgd(bits: int = 8) -> ScatterGather:
    """Stochastic, unbiased quantization to 2, 4 or 8 bits (Alistarh et al., arXiv:1610.02132)."""
    return ScatterGather(codec=CodecSpec(name="qsgd", settings={"bits": bits}))


def onebit() -> ScatterGather:
    """One bit and a scale, with error feedback on both sides (Seide et al. 2014; DoubleSqueeze)."""
    return ScatterGather(codec=CodecSpec(name="sign"), feedback="both")


def terngrad() -> ScatterGather:
    """Stochastic signs and zeros, unbiased (Wen et al., arXiv:1705.07878)."""
    return ScatterGather(codec=CodecSpec(name="ternary"))


def natural() -> ScatterGather:
    """Stochastic rounding to powers of two, unbiased (Horvath et al., arXiv:1905.10988)."""
    return ScatterGather(codec=CodecSpec(name="natural"))


def int4() -> ScatterGather:
    """Deterministic 4-bit blocks with error feedback on both sides."""
    return ScatterGather(codec=CodecSpec(name="int4"), feedback="both")


def topk(ratio: float = 0.01, *, momentum: float = 0.0, ramp_steps: int = 0) -> AllGather:
    """Send the `ratio` largest elements of each bucket, with error feedback; see `AllGatherExecutor`."""
    codec = CodecSpec(name="topk", settings={"ratio": ratio})
    return AllGather(codec=codec, momentum=momentum, ramp_steps=ramp_steps)


def blocktopk(ratio: float = 0.01, *, block: int = 128, momentum: float = 0.0, ramp_steps: int = 0) -> AllGather:
    """Send whole blocks of the largest energy, with error feedback."""
    codec = CodecSpec(name="blocktopk", settings={"ratio": ratio, "block": block})
    return AllGather(codec=codec, momentum=momentum, ramp_steps=ramp_steps)


def randomk(ratio: float = 0.01) -> AllReduce:
    """Send `ratio` of the elements, chosen at random and alike on all ranks, with error feedback."""
    return AllReduce(codec=CodecSpec(name="randomk", settings={"ratio": ratio}))


def powersgd(rank: int = 4) -> LowRank:
    """Low-rank gradients with error feedback."""
    return LowRank(rank=rank)


def decoupled_momentum(
    ratio: float = 1 / 64, *, block: int = 64, momentum: float = 0.999, signed: bool = True
) -> DecoupledMomentum:
    """Send the `ratio` largest cosine coefficients of each block of a momentum that each rank keeps.

    See `DecoupledMomentumExecutor`.
    """
    codec = CodecSpec(name="dct", settings={"ratio": ratio, "block": block})
    return DecoupledMomentum(codec=codec, momentum=momentum, signed=bool(signed))


def tasc(
    ratio: float = 0.01,
    *,
    block: int = 128,
    power: float | None = None,
    agreement: Agreement | Literal["host"] = "leader",
    topology: Topology | None = None,
    momentum: float = 0.0,
    feedback: Literal["worker", "difference"] = "worker",
    ramp_steps: int = 0,
    rescore: int = 8,
    floor: float = 0.05,
    age: float = 0.05,
    dense: float = 0.25,
    value_bits: ValueBits = 4,
    relief: float = 1.0,
) -> BlockSparse | BetweenHosts:
    """Send `ratio` of the bytes of an all-reduce: the blocks that matter most to the loss.

    See `BlockSparseExecutor`. Settings are those of `Selection`, where those that are not named here keep their
    defaults. The agreement 'host' is `between_hosts` of 'local': ranks of one host are summed exactly, and each host
    chooses for itself.
    """
    node = BlockSparse(
        selection=Selection(
            ratio=ratio,
            block=block,
            power=power,
            agreement="local" if agreement == "host" else agreement,
            topology=topology,
            rescore=rescore,
            floor=floor,
            age=age,
            dense=dense,
            value_bits=value_bits,
            relief=relief,
        ),
        feedback=feedback,
        momentum=momentum,
        ramp_steps=ramp_steps,
    )
    return BetweenHosts(inner=node) if agreement == "host" else node


def sharded_optimizer(codec: CodecLike | None = None, *, bandwidths: tuple[float, ...] = ()) -> ShardedOptimizer:
    """Let each parameter's owner step it: optimizer state and work divided by the ranks, bytes as in an all-reduce.

    With a codec without bias, gradients travel in fewer bits. Bandwidths, one for each rank, say how much each owns.
    """
    return ShardedOptimizer(codec=as_codec_spec(codec), placement=Placement(bandwidths=tuple(bandwidths)))


def bounded_staleness(staleness: int = 1, *, bandwidths: tuple[float, ...] = ()) -> ParameterServer:
    """Let owners take gradients as they come, and ranks be at most `staleness` steps ahead of the slowest."""
    return ParameterServer(staleness=staleness, placement=Placement(bandwidths=tuple(bandwidths)))


def onebit_adam(beta: float = 0.9, *, warmup_steps: int = 100) -> CompressedMomentum:
    """Exchange the momentum of 1-bit Adam, with the settings of `pliant.OneBitAdam`; by name, it takes them from it."""
    return CompressedMomentum(beta=beta, warmup_steps=warmup_steps)
