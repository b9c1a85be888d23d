"""Functions for algorithms that exchange gradients: each returns a node of a plan. No torch here."""

from typing import Literal

from pliant.algorithms.inputs import ScheduleLike, as_schedule
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
    ScatterGather,
    Selection,
    Topology,
    ValueBits,
)

__all__ = [
    "allreduce",
    "bf16",
    "blocktopk",
    "bytegrad",
    "chunktopk",
    "decoupled_momentum",
    "fp16",
    "int4",
    "natural",
    "onebit",
    "onebit_adam",
    "powersgd",
    "qsgd",
    "randomk",
    "sigma2",
    "tasc",
    "terngrad",
    "topk",
]


def allreduce(*, schedule: ScheduleLike = "ring", few_rounds: bool = False) -> AllReduce:
    """Average gradients exactly by an all-reduce, as torch DDP does; a `schedule` finds sums faster ways than a ring.

    With `few_rounds` short means take one or two rounds, and differ from DDP's by rounding.

    >>> str(allreduce(schedule="auto"))
    "AllReduce(schedule='auto')"
    """
    return AllReduce(schedule=as_schedule(schedule), few_rounds=bool(few_rounds))


def bf16(*, schedule: ScheduleLike = "ring") -> AllReduce:
    """Average in bfloat16: half the bytes, with the range of float32; `schedule` as for `allreduce`.

    >>> str(bf16())
    'AllReduce(codec=bf16)'
    """
    return AllReduce(codec=CodecSpec(name="bf16"), schedule=as_schedule(schedule))


def fp16(*, schedule: ScheduleLike = "ring") -> AllReduce:
    """Average in float16: half the bytes; a value above 65504 becomes infinite; `schedule` as for `allreduce`.

    >>> str(fp16())
    'AllReduce(codec=fp16)'
    """
    return AllReduce(codec=CodecSpec(name="fp16"), schedule=as_schedule(schedule))


def bytegrad(*, schedule: ScheduleLike = "ring") -> ScatterGather:
    """Quantize each block to 256 values between its least and largest element, without error feedback.

    ByteGrad of BAGUA (Gan et al., arXiv:2107.01499), with a codec of blocks; `schedule` as for `allreduce`.

    >>> str(bytegrad())
    'ScatterGather(codec=minmax8)'
    """
    return ScatterGather(codec=CodecSpec(name="minmax8"), schedule=as_schedule(schedule))


def qsgd(bits: int = 8, *, schedule: ScheduleLike = "ring") -> ScatterGather:
    """Quantize to 2, 4 or 8 bits with random rounding, unbiased (QSGD, Alistarh et al., arXiv:1610.02132).

    >>> str(qsgd(bits=4))
    'ScatterGather(codec=qsgd(bits=4))'
    """
    return ScatterGather(codec=CodecSpec(name="qsgd", settings={"bits": bits}), schedule=as_schedule(schedule))


def onebit(*, schedule: ScheduleLike = "ring") -> ScatterGather:
    """Send one bit per element and a scale per block, with error feedback on worker and chunk owner.

    1-bit SGD (Seide et al., Interspeech 2014) with both residuals of DoubleSqueeze (Tang et al., arXiv:1905.05957).

    >>> str(onebit())
    "ScatterGather(codec=sign, feedback='both')"
    """
    return ScatterGather(codec=CodecSpec(name="sign"), feedback="both", schedule=as_schedule(schedule))


def terngrad(*, schedule: ScheduleLike = "ring") -> ScatterGather:
    """Quantize to -1, 0 or 1 with random rounding, unbiased (TernGrad, Wen et al., arXiv:1705.07878).

    >>> str(terngrad())
    'ScatterGather(codec=ternary)'
    """
    return ScatterGather(codec=CodecSpec(name="ternary"), schedule=as_schedule(schedule))


def natural(*, schedule: ScheduleLike = "ring") -> ScatterGather:
    """Round to powers of two at random, unbiased (natural compression, Horvath et al., arXiv:1905.10988).

    >>> str(natural())
    'ScatterGather(codec=natural)'
    """
    return ScatterGather(codec=CodecSpec(name="natural"), schedule=as_schedule(schedule))


def int4(*, decay: float = 1.0, schedule: ScheduleLike = "ring") -> ScatterGather:
    """Round to 4-bit integers with a scale per block, with error feedback on worker and chunk owner.

    `decay` is the factor of the errors that are kept, from one exchange to the next.

    >>> str(int4())
    "ScatterGather(codec=int4, feedback='both')"
    """
    return ScatterGather(codec=CodecSpec(name="int4"), feedback="both", decay=decay, schedule=as_schedule(schedule))


def sigma2(*, decay: float = 1.0, schedule: ScheduleLike = "ring") -> ScatterGather:
    """Send a sign and one of two sizes, small or large beside its block, with error feedback on worker and owner.

    The two bits of MuLoCo (arXiv:2505.23725), whose `decay` is 0.9. Details: `Sigma2`.

    >>> str(sigma2(decay=0.9))
    "ScatterGather(codec=sigma2, feedback='both', decay=0.9)"
    """
    return ScatterGather(codec=CodecSpec(name="sigma2"), feedback="both", decay=decay, schedule=as_schedule(schedule))


def topk(ratio: float = 0.01, *, decay: float = 1.0, momentum: float = 0.0, ramp_steps: int = 0) -> AllGather:
    """Send the `ratio` largest elements of each bucket, with error feedback.

    Aji and Heafield, arXiv:1704.05021; with `momentum` and `ramp_steps` the momentum correction and the warm-up of Deep
    Gradient Compression (Lin et al., arXiv:1712.01887). Details: `AllGatherExecutor`.

    Args:
        ratio: Share of the elements, above 0 and at most 1.
        decay: Factor of what is kept, from one exchange to the next.
        momentum: Factor of the momentum correction; the optimizer's own momentum must then be 0.
        ramp_steps: Steps over which the ratio falls from a large one to `ratio`.

    >>> str(topk(0.05))
    'AllGather(codec=topk(ratio=0.05))'

    """
    codec = CodecSpec(name="topk", settings={"ratio": ratio})
    return AllGather(codec=codec, decay=decay, momentum=momentum, ramp_steps=ramp_steps)


def blocktopk(ratio: float = 0.01, *, block: int = 128, momentum: float = 0.0, ramp_steps: int = 0) -> AllGather:
    """Send the blocks of `block` elements with the largest norm, `ratio` of all, with error feedback.

    >>> str(blocktopk(0.05))
    'AllGather(codec=blocktopk(ratio=0.05))'
    """
    codec = CodecSpec(name="blocktopk", settings={"ratio": ratio, "block": block})
    return AllGather(codec=codec, momentum=momentum, ramp_steps=ramp_steps)


def chunktopk(
    ratio: float = 1 / 64, *, block: int = 4096, bits: int = 2, decay: float = 1.0, ramp_steps: int = 0
) -> AllGather:
    """Send the `ratio` largest elements of each chunk of `block`, in 2, 8 or 16 bits, with error feedback.

    The coding of SparseLoCo (Sarfi et al., arXiv:2508.15706), whose `decay` is 0.95. Details: `ChunkTopK`.

    >>> str(chunktopk(decay=0.95))
    'AllGather(codec=chunktopk, decay=0.95)'
    """
    codec = CodecSpec(name="chunktopk", settings={"ratio": ratio, "block": block, "bits": bits})
    return AllGather(codec=codec, decay=decay, ramp_steps=ramp_steps)


def randomk(ratio: float = 0.01, *, schedule: ScheduleLike = "ring") -> AllReduce:
    """Send `ratio` of the elements, at random places that all ranks share, with error feedback.

    >>> str(randomk(0.05))
    'AllReduce(codec=randomk(ratio=0.05))'
    """
    return AllReduce(codec=CodecSpec(name="randomk", settings={"ratio": ratio}), schedule=as_schedule(schedule))


def powersgd(rank: int = 4, *, schedule: ScheduleLike = "ring") -> LowRank:
    """Send gradients as products of two matrices of this rank, with error feedback (Vogels et al., arXiv:1905.13727).

    >>> str(powersgd(rank=2))
    'LowRank(rank=2)'
    """
    return LowRank(rank=rank, schedule=as_schedule(schedule))


def decoupled_momentum(
    ratio: float = 1 / 64, *, block: int = 64, momentum: float = 0.999, signed: bool = True
) -> DecoupledMomentum:
    """Send the `ratio` largest cosine coefficients of each block of a momentum that each rank keeps for itself.

    DeMo (Peng et al., arXiv:2411.19870). Details: `DecoupledMomentumExecutor`.

    >>> str(decoupled_momentum(momentum=0.9))
    'DecoupledMomentum(momentum=0.9)'
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
    schedule: ScheduleLike = "ring",
) -> BlockSparse | BetweenHosts:
    """Send the blocks that matter most to the loss, with `ratio` of the bytes of an all-reduce in float32.

    Settings are those of `Selection`; details: `BlockSparseExecutor`. The agreement 'host' is `between_hosts` of
    'local': each host selects for itself. `schedule` is as for `allreduce`.

    >>> str(tasc(0.05))
    'BlockSparse(selection=Selection(ratio=0.05))'
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
        schedule=as_schedule(schedule),
    )
    return BetweenHosts(inner=node) if agreement == "host" else node


def onebit_adam(beta: float = 0.9, *, warmup_steps: int = 100, schedule: ScheduleLike = "ring") -> CompressedMomentum:
    """Exchange the momentum of 1-bit Adam in one bit after a warm-up (Tang et al., arXiv:2102.02888).

    It belongs to the optimizer `pliant.OneBitAdam`; by name, ``relax(model, optimizer, "onebit_adam")``, it takes its
    settings from there. `schedule` is as for `allreduce`, for the momenta alone: the warm-up has a ring.

    >>> str(onebit_adam(warmup_steps=50))
    'CompressedMomentum(beta=0.9, warmup_steps=50)'
    """
    return CompressedMomentum(beta=beta, warmup_steps=warmup_steps, averaging=onebit(schedule=schedule))
