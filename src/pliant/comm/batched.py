"""Messages of a round as one operation of a backend that does one thing after another."""

from collections.abc import Sequence

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup  # pyright: ignore[reportPrivateImportUsage]

__all__ = ["batched"]


def batched(
    group: ProcessGroup, sends: Sequence[tuple[int, Tensor]], receives: Sequence[tuple[int, Tensor]]
) -> Sequence[dist.Work]:
    """Post all messages as one group: single ones would wait for each other, and may open a communicator per pair."""
    operations = [dist.P2POp(dist.irecv, x, group=group, group_peer=peer) for peer, x in receives]
    operations += [dist.P2POp(dist.isend, x, group=group, group_peer=peer) for peer, x in sends]
    return dist.batch_isend_irecv(operations) if operations else []
