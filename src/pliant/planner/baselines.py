"""Thirteen plans that a person would try first: seeds of the search, and what it has to beat."""

from pliant.planner.genes import Gene, Genes

__all__ = ["BASELINES"]

_DDP_BYTES = 25 << 20
_EXACT = Gene("exact", {"bits": 32})
_BF16 = Gene("exact", {"bits": 16})

BASELINES: dict[str, Genes] = {
    "ddp": Genes(_EXACT, bucket_bytes=_DDP_BYTES),
    "ddp-bf16": Genes(_BF16, bucket_bytes=_DDP_BYTES),
    "one-bucket": Genes(_EXACT, bucket_bytes=1 << 40),
    "per-tensor": Genes(_EXACT, bucket_bytes=1),
    "by-hosts": Genes(_EXACT, bucket_bytes=_DDP_BYTES, by_hosts=True),
    "zero-owner": Genes(Gene("owner", {}), bucket_bytes=_DDP_BYTES),
    "parallax": Genes(
        _BF16,
        (("Embedding*", Gene("sparse", {"choice": "topk", "ratio": 0.01})),),
        bucket_bytes=_DDP_BYTES,
    ),
    "bytegrad": Genes(Gene("quantized", {"bits": 8}), bucket_bytes=_DDP_BYTES),
    "onebit": Genes(Gene("fed_back", {"bits": 1}), bucket_bytes=_DDP_BYTES),
    "powersgd": Genes(Gene("low_rank", {"rank": 4}), bucket_bytes=_DDP_BYTES),
    "topk": Genes(Gene("sparse", {"choice": "topk", "ratio": 0.01}), bucket_bytes=_DDP_BYTES),
    "local_sgd": Genes(Gene("local", {"every": 8}), bucket_bytes=_DDP_BYTES),
    "gossip": Genes(Gene("gossip", {"graph": "one_peer", "every": 1}), bucket_bytes=_DDP_BYTES),
}
"""Name -> genes. Parallax sends an embedding's few touched rows, here its few largest elements, and sums the rest."""
