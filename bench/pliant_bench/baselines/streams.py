"""Sparse vectors on their way: pairs of a place and a value, or all values where that is shorter."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pliant.codecs import Codec, Int4
from pliant.comm.base import Comm

__all__ = [
    "PAIR_BYTES",
    "add_coded",
    "add_stream",
    "codec_of",
    "coded_stream",
    "gather_all",
    "kth_largest",
    "largest",
    "route",
    "stream_of",
]

PAIR_BYTES = 8
"""An int32 place and a float32 value."""


def largest(x: Tensor, k: int) -> Tensor:
    """Return the places of the k largest |x|, int64 (k,), ascending; NaN counts as larger than anything."""
    return x.abs().topk(min(k, x.numel()), sorted=False).indices.sort().values


def kth_largest(x: Tensor, k: int) -> float:
    """Return the k-th largest |x| of a vector, (numel,); 0 where it has fewer elements."""
    return float(x.abs().kthvalue(x.numel() - k + 1).values) if 0 < k <= x.numel() else 0.0


def stream_of(places: Tensor, values: Tensor, extent: int) -> Tensor:
    """Return a vector of `extent` elements as int32 words: all places, (nnz,), then all float32 values, (nnz,).

    Where twice the number of elements would not be fewer words than `extent`, it is the dense vector instead: so the
    length alone says which of the two it is (SparCML, section 5.1).
    """
    if 2 * places.numel() < extent:
        return torch.cat([places.to(torch.int32), values.contiguous().view(torch.int32)])
    dense = torch.zeros(extent, device=values.device)
    dense[places] = values
    return dense.view(torch.int32)


def add_stream(stream: Tensor, out: Tensor) -> None:
    """Add a stream's elements to a vector, float32 (extent,)."""
    if stream.numel() == out.numel():
        out.add_(stream.view(torch.float32))
    else:
        places, values = stream.view(2, -1)
        out[places.long()] += values.view(torch.float32)  # a stream names each place once


def codec_of(bits: float) -> Codec | None:
    """Return the codec of values of so many bits; None for float32. Raises ValueError for any but 4 and 32."""
    if bits not in (4, 32):
        raise ValueError(f"values have {bits:g} bits, but peers send them in 4 or in 32.")
    return Int4() if bits == 4 else None


def coded_stream(places: Tensor, values: Tensor, extent: int, codec: Codec, seed: int) -> Tensor:
    """Return a vector of `extent` elements as int32 words: the number of places, the places, and the values in codes.

    The dense vector in codes, after -1 in the place of their number, where that is shorter; no word for no place.
    """
    num = places.numel()
    if num == 0:
        return torch.empty(0, dtype=torch.int32, device=values.device)
    head = torch.tensor([num], dtype=torch.int32, device=values.device)
    coded = values.contiguous()
    if 4 * num + codec.nbytes(num) >= codec.nbytes(extent):
        head, coded = head.fill_(-1), torch.zeros(extent, device=values.device).index_put_((places,), values)
        places = places[:0]
    payload = torch.zeros(-(-codec.nbytes(coded.numel()) // 4), dtype=torch.int32, device=values.device)
    codec.encode(coded, payload.view(torch.uint8)[: codec.nbytes(coded.numel())], seed)
    return torch.cat([head, places.to(torch.int32), payload])


def add_coded(stream: Tensor, out: Tensor, codec: Codec) -> None:
    """Add what a coded stream holds to a vector, float32 (extent,)."""
    if stream.numel() == 0:
        return
    num = int(stream[0])
    payload = stream[1 + max(num, 0) :].clone().view(torch.uint8)
    values = torch.empty(out.numel() if num < 0 else num, device=out.device)
    codec.decode(payload[: codec.nbytes(values.numel())], values)
    if num < 0:
        out.add_(values)
    else:
        out[stream[1 : 1 + num].long()] += values  # a stream names each place once


def route(parts: Sequence[Tensor], comm: Comm) -> list[Tensor]:
    """Send parts[j], int32 words of any number, to rank j; return what came, in the order of ranks.

    Phases: an all-to-all of lengths, 4 (n-1) bytes; then one message per pair that has anything to say, to the next
    rank first, so that nobody is sent to by all at once. Bytes: as many as the parts for others have.
    """
    device = parts[0].device
    lengths = torch.tensor([part.numel() for part in parts], dtype=torch.int32, device=device)
    coming = torch.empty_like(lengths)
    comm.all_to_all(coming, lengths).wait()
    received = [torch.empty(num, dtype=torch.int32, device=device) for num in coming.tolist()]
    received[comm.rank] = parts[comm.rank]
    _send(comm, parts, received)
    return received


def gather_all(own: Tensor, comm: Comm) -> list[Tensor]:
    """Return every rank's int32 words, of any number each, in the order of ranks.

    Phases: an all-gather of lengths, 4 (n-1) bytes; then each rank sends its own to all: n-1 times its bytes.
    """
    lengths = torch.empty(comm.size, dtype=torch.int32, device=own.device)
    comm.all_gather(lengths, torch.tensor([own.numel()], dtype=torch.int32, device=own.device)).wait()
    received = [torch.empty(num, dtype=torch.int32, device=own.device) for num in lengths.tolist()]
    received[comm.rank] = own
    _send(comm, [own] * comm.size, received)
    return received


def _send(comm: Comm, parts: Sequence[Tensor], received: Sequence[Tensor]) -> None:
    others = [(comm.rank + hop) % comm.size for hop in range(1, comm.size)]
    sends = [(rank, parts[rank].contiguous()) for rank in others if parts[rank].numel()]
    receives = [(rank, received[rank]) for rank in reversed(others) if received[rank].numel()]
    if sends or receives:
        comm.exchange(sends, receives).wait()
