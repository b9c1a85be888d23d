"""One rank's text on every rank."""

import numpy as np
import torch

from pliant.comm.base import Comm

__all__ = ["broadcast_text"]


def broadcast_text(text: str, comm: Comm, source: int = 0, *, device: torch.device | None = None) -> str:
    """Return one rank's text on every rank. Collective.

    Phases: the length, 8 bytes, is broadcast, then the text in UTF-8.

    Args:
        text: What to share; of other ranks than the source it is not looked at.
        comm: Who shares.
        source: Whose text it is.
        device: Where the comm takes tensors; None: the CPU.

    """
    raw = torch.from_numpy(np.frombuffer(text.encode() if comm.rank == source else b"", dtype=np.uint8).copy())
    length = torch.tensor([len(raw)], dtype=torch.int64, device=device)
    comm.broadcast(length, source).wait()
    raw = raw.to(device) if comm.rank == source else torch.empty(int(length), dtype=torch.uint8, device=device)
    comm.broadcast(raw, source).wait()
    return raw.cpu().numpy().tobytes().decode()
