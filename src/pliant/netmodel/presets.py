"""Presets of machines, from vendors' figures; a probe's figures are better (``pliant probe --machine``)."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from pliant.netmodel.overheads import Overheads
from pliant.spec import Machine

__all__ = ["PRESETS", "Preset"]

_CORE = Overheads()


@dataclass(frozen=True, kw_only=True)
class Preset:
    """One kind of host: its machine, its ranks and the rate of its interfaces."""

    machine: Machine
    num_ranks: int
    bytes_per_s: float
    """Rate of all network interfaces of the host together, each way; 0: no limit."""


def _gpus(
    name: str, *, memory_bytes_per_s: float, nvlink_bytes_per_s: float, nic_bits_per_s: float, nics: int
) -> Preset:
    """Return a host of 8 GPUs; codecs are as much faster than on a core as adding up is, since memory limits both.

    Args:
        name: Name of the machine.
        memory_bytes_per_s: Of one GPU's memory. An addition reads two vectors and writes one.
        nvlink_bytes_per_s: Of one GPU's NVLink, each way.
        nic_bits_per_s: Of one network interface.
        nics: Number of interfaces.

    """
    add_bytes_per_s = memory_bytes_per_s / 3
    faster = add_bytes_per_s / _CORE.reduce_bytes_per_s
    machine = Machine(
        name=name,
        message_s=1e-5,
        add_bytes_per_s=add_bytes_per_s,
        memory_bytes_per_s=memory_bytes_per_s,
        loopback_bytes_per_s=8 * nvlink_bytes_per_s,
        encode_s_per_element={codec: s / faster for codec, s in _CORE.encode_s.items()},
        decode_s_per_element={codec: s / faster for codec, s in _CORE.add_s.items()},
        provenance="vendors' figures",
    )
    return Preset(machine=machine, num_ranks=8, bytes_per_s=nics * nic_bits_per_s / 8)


PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        "cpu-core": Preset(
            machine=Machine(
                name="cpu-core",
                message_s=_CORE.message_s,
                add_bytes_per_s=_CORE.reduce_bytes_per_s,
                memory_bytes_per_s=2 * _CORE.reduce_bytes_per_s,
                loopback_bytes_per_s=_CORE.loopback_bytes_per_s,
                encode_s_per_element=_CORE.encode_s,
                decode_s_per_element=_CORE.add_s,
                provenance="defaults: one core and Gloo",
            ),
            num_ranks=1,
            bytes_per_s=0.0,
        ),
        "v100x8": _gpus("v100x8", memory_bytes_per_s=0.9e12, nvlink_bytes_per_s=150e9, nic_bits_per_s=25e9, nics=1),
        "a100x8": _gpus("a100x8", memory_bytes_per_s=2.0e12, nvlink_bytes_per_s=300e9, nic_bits_per_s=200e9, nics=8),
        "h100x8": _gpus("h100x8", memory_bytes_per_s=3.35e12, nvlink_bytes_per_s=450e9, nic_bits_per_s=400e9, nics=8),
    }
)
"""Name -> preset: one CPU core; 8 GPUs with NVLink and one or eight network interfaces."""
