"""Rounds of gradients on their way to owners, and of new weights on their way back."""

import numpy as np

from pliant.layouts.payloads import payload_bytes
from pliant.netmodel import BucketBatch, DenseExchange, Floats, Round, passes, work
from pliant.simulator.collective_rounds import all_gather
from pliant.simulator.host_slices import HostSlices
from pliant.spec import CodecSpec, OwnedOptimizer, ParameterServer, Topology

__all__ = [
    "norms_of_parts",
    "owner_rounds",
    "owner_rounds_by_hosts",
    "payloads",
    "spread_inside_hosts",
    "sums_inside_hosts",
    "weights_by_hosts",
    "weights_from_owners",
]


def payloads(codec: CodecSpec | None, numel: Floats) -> Floats:
    """Return payload_bytes of an array of any shape."""
    different, where = np.unique(numel, return_inverse=True)
    return np.array([payload_bytes(codec, int(k)) for k in different], dtype=np.float64)[where].reshape(numel.shape)


def owner_rounds(node: OwnedOptimizer | ParameterServer, batch: BucketBatch, num_ranks: int) -> list[Round]:
    """Return the messages of gradients to owners, who add up; weights follow once, after the step."""
    held = batch.held
    everybody = np.ones((1, num_ranks))
    messages = DenseExchange(give=everybody, take=_payload(node, batch), rotated=True)
    added = held.max(1, initial=0) * (num_ranks - 1)
    before, after = _work(node, batch, coded=batch.numel - held.min(1), added=added)
    return [Round(messages=messages, before=before, after=after)]


def owner_rounds_by_hosts(
    node: OwnedOptimizer | ParameterServer, batch: BucketBatch, topology: Topology
) -> list[Round]:
    """Return the same where ranks of a host add up first, and each part leaves the host once, in codes if at all."""
    slices, held = HostSlices(topology), batch.held
    mine, added = slices.added(held), held.max(1, initial=0) * (slices.num_hosts - 1)
    before, after = _work(node, batch, coded=(mine - held).max(1), added=added)
    between = Round(messages=slices.to_owners(_payload(node, batch)), before=before, after=after)
    return [*sums_inside_hosts(batch, topology), *([between] if slices.num_hosts > 1 else [])]


def sums_inside_hosts(batch: BucketBatch, topology: Topology) -> list[Round]:
    """Return the round in which ranks of a host add up; none if every host has one."""
    inside = HostSlices(topology).sums_inside(batch.held * batch.itemsize[:, None])
    return [Round(messages=inside, after={"reduce_bytes": inside.into.max(1)})] if inside.out.any() else []


def weights_from_owners(held: Floats) -> tuple[Round, ...]:
    """Return the messages of new weights to all after a step, (1, num_ranks) bytes that each rank owns."""
    copied = {"reduce_bytes": held.sum(1)}
    to_all = DenseExchange(give=held, take=np.ones((1, held.shape[1])), rotated=True)
    return (Round(messages=to_all, before=copied, after=copied),)


def weights_by_hosts(held: Floats, topology: Topology) -> tuple[Round, ...]:
    """Return the same by way of one rank of each host, which gives them to the others of its host."""
    slices, copied = HostSlices(topology), {"reduce_bytes": held.sum(1)}
    between = Round(messages=slices.from_owners(held), before=copied) if slices.num_hosts > 1 else work(copied)
    return (between, spread_inside_hosts(held, topology))


def spread_inside_hosts(held: Floats, topology: Topology) -> Round:
    """Return the round in which ranks of a host give each other what they have got, and all copy it."""
    inside, copied = HostSlices(topology).spread_inside(held), {"reduce_bytes": held.sum(1)}
    return Round(messages=inside, after=copied) if inside.out.any() else work(copied)


def _payload(node: OwnedOptimizer | ParameterServer, batch: BucketBatch) -> Floats:
    codec = node.payload_codec
    return batch.held * batch.itemsize[:, None] if codec is None else payloads(codec, batch.held)


def _work(
    node: OwnedOptimizer | ParameterServer, batch: BucketBatch, *, coded: Floats, added: Floats
) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """Return the work before and after messages of gradients, of so many elements on the busiest rank."""
    codec, before, after = node.payload_codec, passes(batch, 1), passes(batch, 1)
    if codec is None:
        after = {"reduce_bytes": after["reduce_bytes"] + 4 * added}
    else:
        before[f"encode {codec.name}"] = coded
        after[f"add {codec.name}"] = added
    return before, after


def norms_of_parts(batch: BucketBatch, num_ranks: int) -> list[Round]:
    """Return the gather of the norms of all parts, and the copy of sums and stand-ins."""
    return [*all_gather(8 * batch.num_held.max(1, initial=0), num_ranks), work(passes(batch, 1))]
