"""Decoders of the laboratory: language models of characters from 0.06 to 125 M parameters."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

from pliant_bench.models import CHARS_LENGTH

__all__ = ["SIZES", "Decoder", "DecoderShape"]


class DecoderShape(NamedTuple):
    """Width of a decoder, its blocks and the heads of each."""

    width: int
    depth: int
    heads: int


SIZES = {
    "0.06M": DecoderShape(64, 1, 2),
    "0.4M": DecoderShape(128, 2, 4),
    "3M": DecoderShape(256, 4, 8),
    "12M": DecoderShape(512, 4, 8),
    "125M": DecoderShape(1024, 10, 16),
}
"""Parameters of a decoder, 12 width^2 in each block -> its shape."""


class Decoder(nn.Module):
    """Pre-norm decoder with learned places, whose blocks have no biases in linear layers.

    Every matrix of a block is a layer of its own, since Muon makes the singular values of a whole matrix equal: those
    of queries, keys and values together would be another update. Input and output embeddings are not tied: AdamW keeps
    a second moment of each element, and the output's gradients, which reach all characters in every step, would hide
    those of the input. Their 26,000 parameters are 6 % of the model of 0.4 M.
    """

    def __init__(self, vocabulary: int, shape: DecoderShape, length: int = CHARS_LENGTH) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, shape.width), nn.Embedding(length, shape.width)
        for embedding in (self.tokens, self.places):
            nn.init.normal_(embedding.weight, std=0.02)
        self.blocks = nn.Sequential(*(_Block(shape) for _ in range(shape.depth)))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, vocabulary, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, (batch, length, vocabulary), of characters, (batch, length)."""
        places = torch.arange(x.shape[1], device=x.device)
        return self.head(self.norm(self.blocks(self.tokens(x) + self.places(places))))


class _Block(nn.Module):
    """Attention, then a perceptron of four times the width; what each adds begins smaller in a deeper model (GPT-2)."""

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        width = shape.width
        self._heads = shape.heads
        self.attention_norm, self.perceptron_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.attended = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)
        with torch.no_grad():
            for added in (self.attended, self.down):
                added.weight.mul_((2 * shape.depth) ** -0.5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.attention_norm(x)
        query, key, value = (
            layer(h).unflatten(-1, (self._heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        h = scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attended(h.transpose(1, 2).flatten(2))
        return x + self.down(gelu(self.up(self.perceptron_norm(x))))
