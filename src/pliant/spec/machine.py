"""Speeds of one machine beside the network: compress, add, copy, and hand messages over."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

__all__ = ["Machine"]


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Measured throughput of one rank while all ranks of its machine do the same, over the ranks per CPU."""

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
