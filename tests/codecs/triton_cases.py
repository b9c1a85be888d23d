"""The Triton kernels beside the C kernels: one row for each codec, and the comparisons, on whatever device.

`scripts/gpu` uses them on a GPU, `triton_laws` in Triton's interpreter.
"""

from dataclasses import dataclass, field

import torch

from pliant.codecs.kernels import native
from tables import vector

KINDS = ["normal", "huge", "denormal", "constant", "zero", "offset", "sparse", "tiny range", "least", "bad", "one bad"]


@dataclass(frozen=True)
class Row:
    """One codec's kernels and their arguments behind x, residual and payload."""

    name: str
    settings: tuple = ()
    bits: int = 8
    header_bytes: int = 4
    seed: tuple = ()
    keywords: dict = field(default_factory=dict)

    @property
    def label(self) -> str:
        return "-".join(str(part) for part in (self.name, *self.settings, *self.keywords.values()))

    def nbytes(self, numel: int) -> int:
        blocks = -(-numel // self.settings[0]) if self.header_bytes else 0
        return self.header_bytes * blocks + -(-numel * self.bits // 8)

    def encode(self, kernels, x, residual, payload, **more) -> None:
        settings = *self.settings, *self.seed
        getattr(kernels, f"{self.name}_encode")(x, residual, payload, *settings, **self.keywords, **more)

    def decode(self, kernels, payload, acc, *, add) -> None:
        getattr(kernels, f"{self.name}_decode")(payload, acc, *self.settings, add=add)

    def mean(self, kernels, x, owed, payloads, payload, **more) -> None:
        settings = *self.settings, *self.seed
        getattr(kernels, f"{self.name}_mean")(x, owed, payloads, payload, *settings, **self.keywords, **more)


def _levels(block: int, bits: int, *, stochastic: bool) -> Row:
    return Row("levels", (block, bits), bits, seed=(0xDEADBEEF,), keywords={"stochastic": stochastic})


ROWS = [
    Row("minmax8", (2048,), header_bytes=12),
    _levels(64, 4, stochastic=False),
    _levels(512, 8, stochastic=True),
    _levels(512, 2, stochastic=True),
    Row("sign", (1024,), bits=1),
    Row("sigma", (1024,), bits=2, header_bytes=8),
    Row("natural", (2048,), seed=(99,)),
    Row("fp8", (1024,)),
    Row("cast", (torch.bfloat16,), 16, header_bytes=0),
    Row("cast", (torch.float16,), 16, header_bytes=0),
]
"""The codecs as they are by default."""
ODD_ROWS = [
    Row("minmax8", (33,), header_bytes=12),
    _levels(96, 4, stochastic=True),
    _levels(32, 2, stochastic=False),
    Row("sign", (32,), bits=1),
    Row("sign", (96,), bits=1),
    Row("sigma", (96,), bits=2, header_bytes=8),
    Row("natural", (7,), seed=(99,)),
    Row("fp8", (64,)),
]
"""Blocks that are no power of two, or small."""


def values(kind: str, numel: int, seed: int) -> torch.Tensor:
    if kind not in ("bad", "one bad"):
        return vector(kind, numel, seed)
    x = vector("normal", numel, seed)
    x[numel // 2] = torch.nan
    if kind == "bad":
        x[0], x[-1] = -torch.inf, 3e38
    return x


def same(mine: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Say whether all is equal to the bit, NaN as NaN."""
    mine, theirs = mine.cpu(), theirs.cpu()
    if mine.dtype != torch.float32:
        return torch.equal(mine, theirs)
    equal = mine.view(torch.int32) == theirs.view(torch.int32)
    return bool((equal | (mine.isnan() & theirs.isnan())).all())


def same_payload(row: Row, mine: torch.Tensor, theirs: torch.Tensor, numel: int) -> bool:
    """Say whether payloads are equal; a NaN in a header, or in a cast, has no bits of its own."""
    mine, theirs = mine.cpu(), theirs.cpu()
    if row.name == "cast":
        dtype = row.settings[0]
        return same(mine.view(dtype).float(), theirs.view(dtype).float())
    cut = row.header_bytes * -(-numel // row.settings[0])
    heads = mine[:cut].view(torch.float32), theirs[:cut].view(torch.float32)
    return same(*heads) and torch.equal(mine[cut:], theirs[cut:])


def encode_differs(row: Row, kernels, x: torch.Tensor, residual: torch.Tensor | None, device: str) -> list[str]:
    """Encode x with Triton on a device and with C on the CPU, and decode; return what differs."""
    found, numel = [], x.numel()
    mine, theirs = (None if residual is None else residual.clone() for _ in range(2))
    mine = None if mine is None else mine.to(device)
    payload = torch.full((row.nbytes(numel),), 255, dtype=torch.uint8, device=device)
    expected = torch.zeros(row.nbytes(numel), dtype=torch.uint8)
    row.encode(kernels, x.to(device), mine, payload)
    row.encode(native, x, theirs, expected)
    if not same_payload(row, payload, expected, numel):
        found.append("payload")
    if mine is not None and not same(mine, theirs):
        found.append("residual")
    for add in (False, True):
        acc = vector("normal", numel, 3)
        out = acc.to(device, copy=True)
        row.decode(kernels, expected.to(device), out, add=add)
        row.decode(native, expected, acc, add=add)
        if not same(out, acc):
            found.append(f"decode, add={add}")
    return found


def mean_differs(
    row: Row, kernels, x: torch.Tensor, owed: torch.Tensor | None, num_peers: int, device: str, *, feedback: bool
) -> list[str]:
    """Do an owner's step in one launch with Triton, and step by step with C; return what differs."""
    numel, size = x.numel(), num_peers + 1
    payloads = torch.zeros(num_peers, -(-row.nbytes(numel) // 16) * 16, dtype=torch.uint8)
    total = x.clone() if owed is None else x + owed
    for k, theirs in enumerate(payloads[:, : row.nbytes(numel)]):
        row.encode(native, vector("normal", numel, 10 + k), None, theirs)
        row.decode(native, theirs, total, add=True)
    total.div_(size)
    error = torch.zeros_like(total)
    expected = torch.zeros(row.nbytes(numel), dtype=torch.uint8)
    row.encode(native, total, error, expected)
    row.decode(native, expected, total, add=False)
    mine, debt = x.to(device, copy=True), None if owed is None else owed.to(device, copy=True)
    payload = torch.full_like(expected, 255, device=device)
    row.mean(kernels, mine, debt, payloads.to(device), payload, feedback=feedback)
    found = [] if same_payload(row, payload, expected, numel) else ["payload of the mean"]
    if not same(mine, total):
        found.append("decoded mean")
    if owed is not None:  # poisoned blocks keep what is owed
        left = torch.where(total.isfinite(), error * size if feedback else 0.0, owed)
        if not torch.equal(debt.cpu(), left):
            found.append("what is owed")
    return found


def topk_differs(kernels, x: torch.Tensor, k: int, stride: int, device: str) -> list[str]:
    mine = torch.zeros(k, dtype=torch.int32, device=device), torch.zeros(k, device=device)
    theirs = torch.zeros(k, dtype=torch.int32), torch.zeros(k)
    kernels.topk_encode(x.to(device), *mine, stride)
    native.topk_encode(x, *theirs, stride)
    names = "indices", "values"
    return [name for name, a, b in zip(names, mine, theirs, strict=True) if not same(a, b)]


def factors_of(shapes: list[tuple[int, int]], device: str) -> list[torch.Tensor]:
    """Return factors, (r, n), that lie one behind the other, and one row in the first that depends on another."""
    flat = vector("normal", sum(r * n for r, n in shapes), 6).to(device)
    ps = [p.view(shape) for p, shape in zip(flat.split([r * n for r, n in shapes]), shapes, strict=True)]
    ps[0][-1] = 2 * ps[0][0]
    return ps
