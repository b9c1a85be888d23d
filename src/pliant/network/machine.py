"""Measurement of this machine beside the network, while all its ranks do the same."""

import itertools
import socket
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from pliant.accelerator import synchronize
from pliant.codecs import Codec, codec_class
from pliant.comm import Comm, broadcast_text
from pliant.comm.small_gather import gather_small
from pliant.network.cores import count_cpus
from pliant.network.probing import provenance_of
from pliant.network.rank_places import ranks_of_hosts, require_gloo
from pliant.network.socket_cost import socket_cpu_s
from pliant.network.streams import loopback_bytes_per_s, waited_message_s
from pliant.spec import Machine, from_json, to_json
from pliant.spec.codecs import CODECS

__all__ = ["measure_machine"]

_MOST_NUMEL, _LEAST_NUMEL = 1 << 20, 1 << 17
"""Elements of a vector: 4 MB of float32, more than a core's own cache; less where the budget is short."""
_ELEMENT_S = 2e-9
"""Time of an element that a figure is given, in each of its two runs at least; a slow codec takes more."""
_ENOUGH_S = 0.2
"""Budget from which on messages are timed in more than one turn, and longer ones handed round a host."""
_SHORT, _LONG = (1, 1_000_000), (3, 4_000_000)
"""Turns, and bytes that are handed round a host, below that budget and from it on."""
_NUM_VECTORS = 8  # taken in turn, as buckets are: a vector is no more in a cache that cores share when its turn comes


def measure_machine(
    comm: Comm,
    *,
    codecs: Sequence[Codec] | None = None,
    budget_s: float = 1.0,
    device: torch.device | str = "cpu",
    hosts: Sequence[Sequence[int]] | None = None,
) -> Machine:
    """Measure throughput on every rank at once, as in training, where ranks share cores and memory. Collective.

    Ranks that share a core run one after another, and a short run seldom meets another rank's. So each figure is the
    time of all runs in a window in which all ranks work, over their number, and over the ranks per CPU, by which
    predictions multiply it again (`Topology.ranks_per_cpu`). Sockets' figures are CPU time, which needs no such rule.
    Ranks meet once, before all windows: to meet before each would take longer than these on a slow network.

    Args:
        comm: Whose ranks measure; over Gloo.
        codecs: What is timed; each that Pliant has, with default settings, if None.
        budget_s: Time for it all. Each figure is the mean of as many runs as fit, after one that does not count, on
            vectors of 1,048,576 elements; of fewer, and from one turn, where that would take longer.
        device: Where gradients live.
        hosts: Ranks of each host, in order; as for `probe`.

    Returns:
        The median over ranks, under the name of rank 0's machine; the same on all ranks.

    Raises:
        ValueError: The comm is not over Gloo, or two of the codecs have one name.

    """
    require_gloo(comm)
    chosen = [codec_class(name)() for name in CODECS] if codecs is None else list(codecs)
    names = [codec.name for codec in chosen]
    if len(set(names)) < len(names):
        raise ValueError(
            f"the codecs {', '.join(names)} are to be timed, but a machine's figures go by name; time those that share "
            "a name in records of their own."
        )
    start_s = time.perf_counter()
    per_cpu = max(1.0, comm.size / count_cpus(comm))
    on_cpu, each_s = torch.device(device).type == "cpu", budget_s / (2 + 2 * len(chosen))
    numel = _numel_within(each_s) if on_cpu else _MOST_NUMEL
    mine = _measure_codecs(chosen, numel, each_s, torch.device(device), comm)
    if on_cpu:
        mine = [s / per_cpu for s in mine]
    turns, ring_bytes = _LONG if budget_s >= _ENOUGH_S else _SHORT
    mine += [
        loopback_bytes_per_s(comm, ranks_of_hosts(comm, hosts)[1], ring_bytes),
        waited_message_s(comm, budget_s / 10, turns=turns) / per_cpu,
        *socket_cpu_s(comm, budget_s / 10, turns),
    ]
    columns: list[list[float]] = gather_small(comm, torch.tensor(mine, dtype=torch.float64)).t().tolist()
    typical = [statistics.median(column) for column in columns]
    coding_s = [x / numel for x in typical[2:-4]]
    travelling = [_sent_share(codec) for codec in chosen]
    found = Machine(
        name=socket.gethostname(),
        add_bytes_per_s=4 * numel / typical[0],
        memory_bytes_per_s=8 * numel / typical[1],
        encode_s_per_element=dict(zip(names, coding_s[::2], strict=True)),
        decode_s_per_element={n: s / part for n, s, part in zip(names, coding_s[1::2], travelling, strict=True)},
        loopback_bytes_per_s=statistics.median([rate for rate in columns[-4] if rate] or [0.0]),  # some may be alone
        message_s=typical[-3],
        message_cpu_s=typical[-2],
        byte_cpu_s=typical[-1],
        provenance=provenance_of(
            "pliant probe",
            f"median of {comm.size} ranks at once, each with {torch.get_num_threads()} threads on {device}",
            f"took {time.perf_counter() - start_s:.2f} s",
        ),
    )
    return from_json(Machine, broadcast_text(to_json(found), comm))  # rank 0's name and provenance


def _sent_share(codec: Codec) -> float:
    """Return the part of a vector's elements that a codec's payload has: what a sparsifier decodes and adds."""
    sparse = CODECS[codec.name].kind in ("sparsifier", "shared") if codec.name in CODECS else False
    return float(getattr(codec, "ratio", 1.0)) if sparse else 1.0


def _numel_within(each_s: float) -> int:
    """Return the elements of a vector of which two runs fit into the time of a figure: a power of two."""
    fitting = max(1, int(each_s / (2 * _ELEMENT_S)))
    return min(_MOST_NUMEL, max(_LEAST_NUMEL, 1 << fitting.bit_length() - 1))


def _measure_codecs(
    codecs: Sequence[Codec], numel: int, each_s: float, device: torch.device, comm: Comm
) -> list[float]:
    """Return seconds for an addition and a copy, and for each codec's encoding and decoding."""
    x = torch.randn(numel, generator=torch.Generator().manual_seed(0)).to(device).repeat(_NUM_VECTORS, 1)
    acc = torch.zeros_like(x).copy_(x)  # touched, (_NUM_VECTORS, numel)
    turns = itertools.cycle(range(_NUM_VECTORS))
    window = partial(_mean_s, limit_s=each_s, device=device)
    comm.barrier()

    def add() -> None:
        k = next(turns)
        acc[k].add_(x[k])

    def copy() -> None:
        k = next(turns)
        acc[k].copy_(x[k])

    figures = [window(add), window(copy)]
    for codec in codecs:
        payload = torch.empty(codec.nbytes(numel), dtype=torch.uint8, device=device)

        def encode(codec: Codec = codec, payload: Tensor = payload) -> None:
            codec.encode(x[next(turns)], payload, 1)

        def decode(codec: Codec = codec, payload: Tensor = payload) -> None:
            codec.decode_add(payload, acc[next(turns)])

        figures += [window(encode), window(decode)]
        acc.zero_()  # what was added so often must not grow out of bounds
    return figures


def _mean_s(run: Callable[[], object], limit_s: float, device: torch.device) -> float:
    """Return the mean time of runs within some limit_s."""
    run()  # the first touches new memory, and may have to compile
    synchronize(device)
    count, took_s, start_s = 0, 0.0, time.perf_counter()
    while took_s < limit_s:
        run()
        synchronize(device)
        count, took_s = count + 1, time.perf_counter() - start_s
    return took_s / count
