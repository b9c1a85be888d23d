"""Plans that a person would try first: seeds of the search, and what it has to beat."""

from functools import cache

from pliant.algorithms.registry import ALGORITHMS, algorithm_named
from pliant.planner.compositions import searched_genes
from pliant.planner.genome import Gene, Genome
from pliant.planner.steps_ratios import Scale, fitted_ratios

__all__ = ["BASELINES", "OWN_EXCHANGE", "SHARDED_BASELINES", "measured_genomes", "named_genomes"]

_DDP_BYTES = 25 << 20
_EXACT = Gene("exact", {"bits": 32})
_BF16 = Gene("exact", {"bits": 16})

BASELINES: dict[str, Genome] = {
    "ddp": Genome(_EXACT, bucket_bytes=_DDP_BYTES),
    "ddp-bf16": Genome(_BF16, bucket_bytes=_DDP_BYTES),
    "one-bucket": Genome(_EXACT, bucket_bytes=1 << 40),
    "per-tensor": Genome(_EXACT, bucket_bytes=1),
    "by-hosts": Genome(_EXACT, bucket_bytes=_DDP_BYTES, by_hosts=True),
    "zero-owner": Genome(Gene("owner", {}), bucket_bytes=_DDP_BYTES, cut="auto"),
    "parallax": Genome(
        _BF16,
        (("Embedding*", Gene("sparse", {"choice": "topk", "ratio": 0.01})),),
        bucket_bytes=_DDP_BYTES,
    ),
    "bytegrad": Genome(Gene("quantized", {"bits": 8}), bucket_bytes=_DDP_BYTES),
    "onebit": Genome(Gene("fed_back", {"bits": 1}), bucket_bytes=_DDP_BYTES),
    "powersgd": Genome(Gene("low_rank", {"rank": 4}), bucket_bytes=_DDP_BYTES),
    "topk": Genome(Gene("sparse", {"choice": "topk", "ratio": 0.01}), bucket_bytes=_DDP_BYTES),
    "local_sgd": Genome(Gene("local", {"every": 8}), bucket_bytes=_DDP_BYTES),
    "gossip": Genome(Gene("gossip", {"graph": "one_peer", "every": 1}), bucket_bytes=_DDP_BYTES),
    "scheduled": Genome(_EXACT, bucket_bytes=_DDP_BYTES, by_schedule=True),
}
"""Name -> genes. Parallax sends an embedding's few touched rows, here its few largest elements, and sums the rest."""

SHARDED_BASELINES: dict[str, Genome] = {
    "fsdp": Genome(Gene("torch_shards", {})),
    "fsdp-pairwise": Genome(Gene("exact_shards", {"bits": 32, "regather": "yes"})),
    "fsdp-once": Genome(Gene("exact_shards", {"bits": 32, "regather": "no"})),
    "fsdp-bf16": Genome(Gene("exact_shards", {"bits": 16, "regather": "no"})),
    "zero++": Genome(Gene("unbiased_shards", {"bits": 4, "weights": "int8"})),
    "sdp4bit": Genome(Gene("unbiased_shards", {"bits": 4, "weights": "differences"})),
    "loco": Genome(Gene("coded_shards", {"bits": 4, "residual": "int8", "weights": "exact"})),
    "fsdp-int8": Genome(Gene("unbiased_shards", {"bits": 8, "weights": "exact"})),
    "fsdp-int4": Genome(Gene("coded_shards", {"bits": 4, "residual": "full", "weights": "exact"})),
    "fsdp-onebit": Genome(Gene("coded_shards", {"bits": 1, "residual": "full", "weights": "differences"})),
}
"""The same for models that are divided among all ranks."""

OWN_EXCHANGE = {False: Genome(_EXACT), True: Genome(Gene("torch_shards", {}))}
"""Whether a model is sharded -> torch's own exchange: DDP's, in its own buckets, or FSDP2's."""


def measured_genomes(optimizer: str, scale: Scale) -> dict[str, Genome]:
    """Return, by summary, the genes whose steps were measured with an optimizer, in DDP's own buckets."""
    return {gene.summary: Genome(gene, bucket_bytes=_DDP_BYTES) for gene in fitted_ratios(optimizer, scale)}


@cache
def named_genomes() -> dict[str, Genome]:
    """Return, by name, the genes of the algorithms whose name says enough, in DDP's own buckets."""
    genes = {gene.exchange: gene for gene in reversed(searched_genes())}
    found: dict[str, Genome] = {}
    for name, row in ALGORITHMS.items():
        if row.bare and row.from_optimizer is None and (node := algorithm_named(name)) in genes:
            found[name] = Genome(genes[node])
    return found
