"""Speeds of one kind of host: what its ranks compute, and what its GPUs, its bus and its interfaces carry."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from pliant.spec.plain import LATER

__all__ = ["Machine"]


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Throughput of one rank while all ranks of its host do the same, over the ranks per CPU; and the host's hardware.

    Fields from `gpus` on are of hosts with GPUs. A probe leaves them at 0; presets have them from data sheets.
    """

    name: str
    message_s: float
    """Time that one more message costs, however small it is."""
    add_bytes_per_s: float
    """Float32 bytes that are added to others per second: the reduce rate."""
    memory_bytes_per_s: float
    """Bytes that a copy reads and writes per second."""
    loopback_bytes_per_s: float = 0.0
    """Bytes that all ranks of a host together hand to one another per second; 0: not measured, a host has one rank."""
    message_cpu_s: float = 0.0
    """CPU time of a rank for a message that it sends or receives, without waits for it; 0: not measured."""
    byte_cpu_s: float = 0.0
    """CPU time of a rank for a byte that it sends or receives; 0: not measured."""
    encode_s_per_element: Mapping[str, float] = field(default_factory=dict[str, float], hash=False)
    """Codec's name -> time to encode one float32 element."""
    decode_s_per_element: Mapping[str, float] = field(default_factory=dict[str, float], hash=False)
    """Codec's name -> time to decode one element and add it; of sparsifiers, one element that travels."""
    provenance: str = ""
    """Where the figures come from: the command and time of a measurement."""
    gpus: int = field(default=0, metadata=LATER)
    """GPUs of a host, each of which is a rank; 0: ranks compute on CPU cores."""
    link_bytes_per_s: float = field(default=0.0, metadata=LATER)
    """Rate at which each GPU sends to its peers over NVLink; 0: it has none, and uses the host's bus."""
    host_bytes_per_s: float = field(default=0.0, metadata=LATER)
    """Rate of the bus between one GPU and its host, each way."""
    nics: int = field(default=1, metadata=LATER)
    """Network interfaces of a host."""
    nic_bytes_per_s: float = field(default=0.0, metadata=LATER)
    """Rate of each interface, each way; 0: not known."""
    launch_s: float = field(default=0.0, metadata=LATER)
    """Time to launch one kernel."""
    transport_efficiency: float = field(default=1.0, metadata=LATER)
    """Share of its interfaces' rate that the transport reaches with large messages."""
    staged: bool = field(default=False, metadata=LATER)
    """Whether messages to other hosts go through the host's memory, as Gloo needs it, and not straight from a GPU."""
    uncertainty: float = field(default=0.0, metadata=LATER)
    """Mean relative error of predictions with it, where they were held against measurements; 0: they were not."""

    def __post_init__(self) -> None:
        for name in ("encode_s_per_element", "decode_s_per_element"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))
        numbers = [self.message_s, *self.encode_s_per_element.values(), *self.decode_s_per_element.values()]
        numbers += [self.message_cpu_s, self.byte_cpu_s]
        if min(*numbers, self.loopback_bytes_per_s) < 0 or min(self.add_bytes_per_s, self.memory_bytes_per_s) <= 0:
            raise ValueError(
                f"machine {self.name!r} has a time below 0, or a rate that is not above 0; times are in seconds, rates "
                "in bytes per second."
            )
        rates = (self.link_bytes_per_s, self.host_bytes_per_s, self.nic_bytes_per_s, self.launch_s, self.uncertainty)
        if not all(0 <= each < math.inf for each in rates) or self.gpus < 0 or self.nics < 1:
            raise ValueError(
                f"machine {self.name!r} has {self.gpus} GPUs, {self.nics} interfaces, or a rate or time of them below "
                "0; there is at least one interface, and no figure is negative."
            )
        if not 0 < self.transport_efficiency <= 1:
            raise ValueError(
                f"machine {self.name!r} reaches {self.transport_efficiency:g} of its interfaces' rate; that must be "
                "more than 0 and at most 1."
            )
        if (self.gpus or self.staged) and not self.host_bytes_per_s:
            raise ValueError(
                f"machine {self.name!r} has {self.gpus} GPUs, but no rate of the bus between them and the host; give "
                "host_bytes_per_s."
            )

    @property
    def interfaces_bytes_per_s(self) -> float:
        """Rate of all interfaces of a host together, each way; 0: not known."""
        return self.nics * self.nic_bytes_per_s

    @property
    def transport_bytes_per_s(self) -> float:
        """Payload that the transport carries per second into or out of a host; 0: not known."""
        return self.transport_efficiency * self.interfaces_bytes_per_s

    @property
    def inside_bytes_per_s(self) -> float:
        """Bytes that all ranks of a host hand to one another per second: measured, or those of all GPUs' links."""
        return self.loopback_bytes_per_s or self.gpus * (self.link_bytes_per_s or self.host_bytes_per_s)
