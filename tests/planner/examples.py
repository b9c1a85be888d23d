"""A workload, topologies, and a made-up machine whose step times are known."""

import math

import numpy as np

from pliant.planner import FAMILIES, Genome, Trial
from pliant.spec import Host, TensorSpec, Topology, Workload

WORKLOAD = Workload(
    name="three layers",
    tensors=tuple(
        TensorSpec(name=f"{i}.{kind}", shape=shape, dtype="float32", layer=kind, ready_s=0.01 * i)
        for i in range(6)
        for kind, shape in (("Linear", (300, 300)), ("Conv2d", (64, 64, 3, 3)), ("LayerNorm", (300,)))
    ),
    forward_s=0.1,
    backward_s=0.2,
)
FLAT = Topology(hosts=tuple(Host(name=f"h{i}") for i in range(4)))
TWO_A_HOST = Topology(hosts=tuple(Host(name=f"h{i}", num_ranks=2) for i in range(4)))


def true_step_s(genes: Genome) -> float:
    """Bytes over a link, a cost per bucket, and one thing that no simulator would know: order at the end is better."""
    weight = {"exact": 1.0, "owner": 1.1, "quantized": 0.3, "fed_back": 0.1, "low_rank": 0.05, "sparse": 0.3}
    size = weight.get(genes.base.family, 0.2) * (0.5 if genes.base.settings.get("bits") in (16, 4) else 1.0)
    bucket = math.log2((genes.bucket_bytes or 25 << 20) / (5 << 20))
    return (0.1 + size) * (1 + 0.02 * bucket**2) * (0.9 if genes.at_end else 1.0)


class Rough:
    """A model that knows sizes, and nothing of buckets or order; it notes how often it was asked and taught."""

    def __init__(self) -> None:
        self.fits: list[int] = []

    def fit(self, trials: list[Trial]) -> None:
        self.fits.append(len(trials))

    def predict(self, candidates):
        plain = [true_step_s(Genome(g.base, bucket_bytes=5 << 20)) for g in candidates]
        return np.log(plain), np.full(len(plain), 0.1)

    def features(self, candidates):
        return np.array(
            [
                [
                    *(g.base.family == family for family in FAMILIES),
                    math.log2(g.bucket_bytes or 25 << 20),
                    g.at_end,
                    math.log2(g.chunk_bytes),
                ]
                for g in candidates
            ],
            dtype=float,
        )


def exactly(genes: Genome, *, give_up_above_s: float) -> Trial:
    del give_up_above_s
    return Trial(genes=genes, steps_s=(true_step_s(genes),))
