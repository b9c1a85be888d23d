"""Which rows are hot, and how that changes while training: without a stop, and without a change of values."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from pliant.codecs.finite import tensor_hash
from pliant.comm.agreement import require_same, telling_of_failure
from pliant.comm.base import Comm
from pliant.recsys.embedding.channel import PairwiseChannel
from pliant.recsys.embedding.groups import Group
from pliant.recsys.embedding.initial import PART_ROWS
from pliant.recsys.embedding.replicas import Replicas
from pliant.recsys.embedding.shard import TableShard
from pliant.spec.embedding import EmbeddingPlan

__all__ = ["HotRows", "agree_hot_ids"]


class HotRows:
    """The hot rows of one group: replicas on all ranks, beside the places that they keep at their owners."""

    def __init__(self, group: Group, shard: TableShard, replicas: Replicas, rank: int) -> None:
        self.group, self._shard, self._replicas, self._rank = group, shard, replicas, rank
        mine = {piece.index for piece in group.pieces}
        device = replicas.touched.device
        room = [s for s in replicas.spans if s.piece.index in mine and s.piece.layout.kind == "rows"]
        self._room = torch.cat([torch.arange(s.slot, s.slot + s.num, device=device) for s in room])

    @property
    def nbytes(self) -> int:
        """Bytes of what is known of places."""
        return self._room.nbytes + self.group.hot_keys.nbytes + self.group.hot_slots.nbytes

    def change(self, ids: Mapping[int, Tensor], channel: PairwiseChannel) -> None:
        """Make these the hot rows: ids, int64 ascending, by index of table. All ranks call it with the same.

        Rows that cool go back to their owner out of its own replica, and nothing is sent. Rows that become hot are sent
        by their owners to all, with what the optimizer keeps, in parts of at most PART_ROWS.
        """
        group = self.group
        wanted = torch.cat([group.keys_of(k, ids[index]) for k, index in enumerate(group.indices) if index in ids])
        wanted = wanted.sort()[0]
        stay = torch.isin(group.hot_keys, wanted)
        self._cool(group.hot_keys[~stay], group.hot_slots[~stay])
        kept_keys, kept_slots = group.hot_keys[stay], group.hot_slots[stay]
        new = wanted[~torch.isin(wanted, kept_keys)]
        slots = self._room[~torch.isin(self._room, kept_slots)][: len(new)]
        for keys_part, slots_part in zip(new.split(PART_ROWS), slots.split(PART_ROWS), strict=True):
            self._send(keys_part, slots_part, channel)
        keys, slots = torch.cat([kept_keys, new]), torch.cat([kept_slots, slots])
        group.hot_keys, order = keys.sort()
        group.hot_slots = slots[order]

    def _cool(self, keys: Tensor, slots: Tensor) -> None:
        own = keys // self.group.stride == self._rank
        keys, slots = keys[own] - self._rank * self.group.stride, slots[own]
        for at in range(0, len(keys), PART_ROWS):
            part = slice(at, at + PART_ROWS)
            self._shard.rows.write(keys[part], self._replicas.rows.read(slots[part]))

    def _send(self, keys: Tensor, slots: Tensor, channel: PairwiseChannel) -> None:
        """Copy rows with these keys, ascending, (num,), from their owners to these slots of everybody's replicas."""
        n, rank = channel.comm.size, channel.comm.rank
        owners = keys // self.group.stride
        counts = torch.bincount(owners, minlength=n).tolist()
        own = self._shard.rows.read((keys - owners * self.group.stride).split(counts)[rank])
        came = [own.new_empty(count if peer != rank else 0, own.shape[1]) for peer, count in enumerate(counts)]
        channel.exchange("hot rows", [[own]] * n, [[part] for part in came]).wait()
        came[rank] = own
        for part, its in zip(came, slots.split(counts), strict=True):
            self._replicas.rows.write(its, part)

    def refresh_owner(self) -> None:
        """Bring the places that hot rows keep at this rank up to date."""
        self._cool(self.group.hot_keys, self.group.hot_slots)


def agree_hot_ids(
    plan: EmbeddingPlan, hot: Mapping[str, Tensor | Sequence[int]], comm: Comm, device: torch.device
) -> dict[int, Tensor]:
    """Return hot ids, int64, ascending and distinct, by the index of their table, for each that may have some.

    Raises:
        ValueError: Ranks name different rows, or a table may not have hot rows, or not so many.
        IndexError: A table has no such row.
        TypeError: What is named are no ids.

    """
    what = "the set of hot rows"
    with telling_of_failure(comm, what, device):
        ids = _checked(plan, hot, device)
    counts = torch.tensor([len(its) for its in ids.values()], dtype=torch.int64, device=device)
    require_same(comm, what, tensor_hash(torch.cat([counts, *ids.values()])), device)
    return ids


def _checked(plan: EmbeddingPlan, hot: Mapping[str, Tensor | Sequence[int]], device: torch.device) -> dict[int, Tensor]:
    index = {table.name: t for t, table in enumerate(plan.tables)}
    unknown = [name for name in hot if name not in index]
    if unknown:
        raise ValueError(f"there is no table {unknown[0]!r}; tables are {', '.join(index)}.")
    found: dict[int, Tensor] = {}
    for name, t in index.items():
        layout, num_rows = plan.layouts[t], plan.tables[t].num_rows
        ids = torch.as_tensor(hot.get(name, []), dtype=torch.int64, device=device).view(-1).unique()
        if len(ids) > layout.num_hot:
            raise ValueError(f"table {name!r} got {len(ids)} hot rows, but its layout has room for {layout.num_hot}.")
        if len(ids) and not 0 <= int(ids[0]) <= int(ids[-1]) < num_rows:
            raise IndexError(f"hot rows {int(ids[0])} to {int(ids[-1])} of table {name!r}: it has 0 to {num_rows - 1}.")
        if layout.num_hot:
            found[t] = ids
    return found
