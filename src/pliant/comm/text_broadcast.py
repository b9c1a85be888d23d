"""Broadcast of a text from one rank to all."""

import numpy as np
import numpy.typing as npt
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
    raw = np.frombuffer(text.encode() if comm.rank == source else b"", dtype=np.uint8)
    head = np.zeros(_HEAD_BYTES, dtype=np.uint8)
    head[:8] = np.array([len(raw)], dtype="<i8").view(np.uint8)
    room = _HEAD_BYTES - 8
    head[8 : 8 + len(raw)] = raw[:room]
    told = _broadcast(head, comm, source, device)
    length = int(told[:8].view("<i8")[0])
    if length <= room:
        return told[8 : 8 + length].tobytes().decode()
    rest = raw[room:] if comm.rank == source else np.empty(length - room, dtype=np.uint8)
    return (told[8:].tobytes() + _broadcast(rest, comm, source, device).tobytes()).decode()


def _broadcast(
    raw: npt.NDArray[np.uint8], comm: Comm, source: int, device: torch.device | None
) -> npt.NDArray[np.uint8]:
    shared = torch.from_numpy(raw.copy()).to(device)  # a string's own bytes cannot be written to
    comm.broadcast(shared, source).wait()
    return shared.cpu().numpy()
