"""Presets of machines, from data sheets and published measurements; a probe's figures are better.

Rates of memory, NVLink, PCIe and interfaces are the vendors'. What NCCL reaches of them was measured by others. An
A100's NVLink gives 235 GB/s, the cap in NCCL's own model (src/graph/tuning.cc), an H100's 370 GB/s by a maintainer's
figure (NVIDIA/nccl-tests#212). A V100's six links give 130 GB/s after headers. Between GPUs on PCIe NCCL counts on 9 of
12 GB/s (src/graph/topo.h). Of InfiniBand with an interface for each GPU some nine tenths are reached, of four on a
DGX-1 40 of 50 GB/s (NVIDIA/nccl-tests#29), of TCP at 25 to 50 Gbit/s six tenths (NVIDIA/nccl#209). Launches and
messages (5 and 10 microseconds) are estimates. Nothing is fitted to the tables of docs/published.md, by which they are
judged.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from pliant.netmodel.overheads import Overheads
from pliant.spec import Machine, Topology
from pliant.spec.codecs import CODECS

__all__ = ["PRESETS", "machine_of", "overheads_of"]

_CORE = Overheads()
_GBIT = 1e9 / 8
_PCIE3, _PCIE4, _PCIE5 = 12e9, 24e9, 50e9
"""Bytes per second that a copy between a GPU and its host reaches over 16 pairs of wires."""
_THROUGH_CPU = 9 / 12
"""Share of the bus that NCCL counts on between GPUs without NVLink, whose bytes go through the processor."""
_PASS_BYTES = 9.0
"""Bytes of memory that coding one element moves: float32 in, a few bits out, float32 of the residual."""


def _gpus(
    name: str,
    gpus: int,
    memory_bytes_per_s: float,
    host_bytes_per_s: float,
    nics: int,
    nic_bits_per_s: float,
    transport_efficiency: float,
    *,
    link_bytes_per_s: float = 0.0,
    uncertainty: float = 0.0,
) -> Machine:
    """Return a host of GPUs, whose memory limits sums (two vectors in, one out) and element-wise codecs.

    Sparsifiers and transforms, which do more, are as much faster than on a core as sums are.
    """
    add_bytes_per_s = memory_bytes_per_s / 3
    faster = add_bytes_per_s / _CORE.reduce_bytes_per_s

    def coding(known: Mapping[str, float]) -> dict[str, float]:
        by_memory = _PASS_BYTES / memory_bytes_per_s
        simple = {codec: facts.kind in ("cast", "quantizer") for codec, facts in CODECS.items()}
        return {codec: by_memory if simple[codec] else s / faster for codec, s in known.items()}

    return Machine(
        name=name,
        message_s=1e-5,
        add_bytes_per_s=add_bytes_per_s,
        memory_bytes_per_s=memory_bytes_per_s,
        loopback_bytes_per_s=0.0 if link_bytes_per_s else gpus * _THROUGH_CPU * host_bytes_per_s,
        encode_s_per_element=coding(_CORE.encode_s),
        decode_s_per_element=coding(_CORE.add_s),
        provenance="data sheets and NCCL's published rates",
        gpus=gpus,
        link_bytes_per_s=link_bytes_per_s,
        host_bytes_per_s=host_bytes_per_s,
        nics=nics,
        nic_bytes_per_s=nic_bits_per_s / 8,
        launch_s=5e-6,
        transport_efficiency=transport_efficiency,
        uncertainty=uncertainty,
    )


_CPU_CORE = Machine(
    name="cpu-core",
    message_s=_CORE.message_s,
    add_bytes_per_s=_CORE.reduce_bytes_per_s,
    memory_bytes_per_s=2 * _CORE.reduce_bytes_per_s,
    loopback_bytes_per_s=_CORE.loopback_bytes_per_s,
    encode_s_per_element=_CORE.encode_s,
    decode_s_per_element=_CORE.add_s,
    provenance="defaults: one core and Gloo",
    uncertainty=_CORE.uncertainty,
)

PRESETS: Mapping[str, Machine] = MappingProxyType(
    {
        "cpu-core": _CPU_CORE,
        "v100": _gpus("v100", 8, 0.9e12, _PCIE3, 4, 100e9, 0.8, link_bytes_per_s=130e9, uncertainty=0.2),
        "t4": _gpus("t4", 4, 0.32e12, _PCIE3, 1, 50e9, 0.6),
        "titan-x": _gpus("titan-x", 1, 0.336e12, _PCIE3, 1, 40e9, 0.6),
        "a100": _gpus("a100", 8, 2.0e12, _PCIE4, 8, 200e9, 0.9, link_bytes_per_s=235e9),
        "h100": _gpus("h100", 8, 3.35e12, _PCIE5, 8, 400e9, 0.9, link_bytes_per_s=370e9),
        "h200": _gpus("h200", 8, 4.8e12, _PCIE5, 8, 400e9, 0.9, link_bytes_per_s=370e9),
    }
)
"""Name -> machine: a CPU core; DGX-1, g4dn.12xlarge, a host with one GPU, DGX A100, H100 and H200."""


def machine_of(name: str) -> Machine:
    """Return a preset.

    Raises:
        ValueError: There is none of that name.

    """
    if name not in PRESETS:
        raise ValueError(f"there is no machine {name!r}; there are {', '.join(PRESETS)}.")
    return PRESETS[name]


def overheads_of(topology: Topology) -> Overheads:
    """Return the overheads of the machines that a topology's hosts name; the defaults where none names one.

    Ranks wait for one another, so each cost is that of the machine on which it is largest. Hosts that name no machine
    have a CPU core's, once others name one.
    """
    names = list(dict.fromkeys(host.machine for host in topology.hosts))
    if names == [""]:
        return Overheads()
    found = [Overheads.of(machine_of(name or "cpu-core")) for name in names]
    slowest = found[0]
    for each in found[1:]:
        slowest = _slower(slowest, each)
    return slowest


def _slower(a: Overheads, b: Overheads) -> Overheads:
    most = {
        name: max(getattr(a, name), getattr(b, name))
        for name in ("message_s", "bucket_s", "sharing", "wire_factor", "compute_overlap", "exchange_overlap")
    }
    verbs = {
        name: {codec: max(getattr(a, name)[codec], getattr(b, name)[codec]) for codec in CODECS}
        for name in ("encode_s", "feedback_s", "decode_s", "add_s")
    }
    return replace(
        a,
        **most,
        **verbs,
        loopback_bytes_per_s=min(a.loopback_bytes_per_s, b.loopback_bytes_per_s),
        reduce_bytes_per_s=min(a.reduce_bytes_per_s, b.reduce_bytes_per_s),
        nccl=min(a.nccl, b.nccl, key=("", "pcie", "nvlink").index),
        uncertainty=max(a.uncertainty, b.uncertainty) if a.uncertainty and b.uncertainty else 0.0,
        provenance=f"{a.provenance}; {b.provenance}",
    )
