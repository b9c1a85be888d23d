"""Sparse algorithms of other systems, written from their papers, as arms to compare with; not part of Pliant's own."""

from pliant import blocktopk, register, topk
from pliant.algorithms.inputs import AlgorithmLike
from pliant_bench.baselines.gtopk import GTopK
from pliant_bench.baselines.layered import UniformBlocks
from pliant_bench.baselines.oktopk import OkTopk
from pliant_bench.baselines.scalecom import ScaleCom
from pliant_bench.baselines.sparcml import SparCml

__all__ = ["GTopK", "OkTopk", "ScaleCom", "SparCml", "UniformBlocks", "register_baselines"]


def _dgc(ratio: float = 0.01, momentum: float = 0.9, ramp_steps: int = 0) -> AlgorithmLike:
    return topk(ratio, momentum=momentum, ramp_steps=ramp_steps)


def _magnitude_blocks(ratio: float = 0.01, block: int = 64) -> AlgorithmLike:
    return blocktopk(ratio, block=block)


def register_baselines() -> None:
    """Make the baselines known by name in this process; Pliant calls this by an entry point.

    All come in one bucket, since a layer competes with all others, and spare what is small, as Pliant's own algorithms
    do when they are asked for by name. The last two are points of Pliant's own space under the names by which they are
    compared.
    """
    builders = {
        "sparcml": SparCml,
        "oktopk": OkTopk,
        "gtopk": GTopK,
        "scalecom": ScaleCom,
        "uniform_blocks": UniformBlocks,
        "dgc": _dgc,
        "magnitude_blocks": _magnitude_blocks,
    }
    for name, builder in builders.items():
        register(name, builder, one_bucket=True, spare_small=True)
