"""Squeeze and restore flat float32 tensors: one idea a file, error feedback as a wrapper."""

from pliant.codecs.base import Codec, FusedFeedback, FusedOwner, SummableCodec
from pliant.codecs.blocktopk import BlockTopK
from pliant.codecs.cast import Bf16, Fp8, Fp16
from pliant.codecs.chunktopk import ChunkTopK
from pliant.codecs.dct import Dct
from pliant.codecs.feedback import decay_residual, encode_feedback
from pliant.codecs.finite import (
    all_finite,
    content_hash,
    finite_flag,
    first_nonfinite,
    keep_unless,
    nonfinite,
    nonfinite_place,
    scale_and_check,
    tensor_hash,
)
from pliant.codecs.int4 import Int4
from pliant.codecs.minmax8 import MinMax8
from pliant.codecs.natural import Natural
from pliant.codecs.qsgd import Qsgd
from pliant.codecs.randomk import RandomK
from pliant.codecs.registry import codec_class, codec_from, spec_of
from pliant.codecs.sigma2 import Sigma2
from pliant.codecs.sign import Sign
from pliant.codecs.ternary import Ternary
from pliant.codecs.topk import TopK

__all__ = [
    "Bf16",
    "BlockTopK",
    "ChunkTopK",
    "Codec",
    "Dct",
    "Fp8",
    "Fp16",
    "FusedFeedback",
    "FusedOwner",
    "Int4",
    "MinMax8",
    "Natural",
    "Qsgd",
    "RandomK",
    "Sigma2",
    "Sign",
    "SummableCodec",
    "Ternary",
    "TopK",
    "all_finite",
    "codec_class",
    "codec_from",
    "content_hash",
    "decay_residual",
    "encode_feedback",
    "finite_flag",
    "first_nonfinite",
    "keep_unless",
    "nonfinite",
    "nonfinite_place",
    "scale_and_check",
    "spec_of",
    "tensor_hash",
]
