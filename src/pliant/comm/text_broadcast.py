"""Broadcast of a text from one rank to all."""

import torch

from pliant.comm.base import Comm

__all__ = ["broadcast_text"]

_HEAD_BYTES = 2048
"""Bytes that are sent at once, whatever the text: on a long way they take no longer than few."""


def broadcast_text(text: str, comm: Comm, source: int = 0, *, device: torch.device | None = None) -> str:
    """Return one rank's text on every rank. Collective.

    Phases: 2048 bytes are broadcast, of which the first 8 are the length of the text in UTF-8, and then what has no
    room in them. Most texts take one round trip so.

    Args:
        text: Text of the source; ignored on other ranks.
        comm: Ranks that share it.
        source: Rank of the text.
        device: Device of the comm's tensors; None: the CPU.

    """
    raw, room = text.encode() if comm.rank == source else b"", _HEAD_BYTES - 8
    head = _broadcast(len(raw).to_bytes(8, "little") + raw[:room].ljust(room, b"\0"), comm, source, device)
    length = int.from_bytes(head[:8], "little")
    rest = _broadcast(raw[room:] or bytes(length - room), comm, source, device) if length > room else b""
    return (head[8:] + rest)[:length].decode()


def _broadcast(raw: bytes, comm: Comm, source: int, device: torch.device | None) -> bytes:
    shared = torch.frombuffer(bytearray(raw), dtype=torch.uint8).to(device)
    comm.broadcast(shared, source).wait()
    return shared.cpu().numpy().tobytes()
