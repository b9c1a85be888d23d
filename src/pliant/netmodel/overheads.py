"""Overheads: costs beside the rates of a topology, as coefficients of quantities that are counted."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np

from pliant.netmodel.messages import Floats
from pliant.netmodel.slow_start import INITIAL_WINDOW_BYTES
from pliant.spec import Machine
from pliant.spec.codecs import CODECS

__all__ = ["IDEAL", "KEYS", "Overheads"]

_PLAIN = ("compute_s", "wire_s", "latency_s", "messages", "buckets", "loopback_bytes", "reduce_bytes")

KEYS = (*_PLAIN, *(f"{verb} {codec}" for verb in ("encode", "feedback", "decode", "add") for codec in CODECS))
"""Names of the counted quantities. Seconds: of computing, of the bottleneck's rate, of latency. Counts: messages that a
rank handles; exchanges. Bytes: between ranks of a host; added up or copied. Elements, for each codec: encoded, encoded
with error feedback, decoded, and decoded and added (`topk`, `blocktopk` and `randomk` add only the elements that are
sent)."""


def _seconds(verb: str) -> Mapping[str, float]:
    """Return codec -> seconds per element, from the table's speeds."""
    return MappingProxyType({name: 1e-9 / getattr(facts.speeds, verb) for name, facts in CODECS.items()})


@dataclass(frozen=True, kw_only=True)
class Overheads:
    """Coefficients, all of at least 0: a predicted time is their sum, each times a quantity of `KEYS`.

    Speeds of codecs are those of the table in `pliant.spec.codecs`; messages,
    buckets and the wire's factor are guesses from the 100 Mbit/s and 1 Gbit/s tables in benchmarks/results/steps_*
    and from micro-benchmarks of Gloo. All are to be calibrated where it matters.
    """

    wire_factor: float = 1.05
    """Time on a link over payload bytes / rate: a topology's rates are those of links, which carry headers as well, and
    TCP does not use all."""
    message_s: float = 1.5e-4
    """Seconds of a rank for each message that it sends or receives. Of several that go to a peer at once, the others
    take `handling_share` of it."""
    bucket_s: float = 3e-4
    """Seconds of a rank for each exchange: hook, communication thread, checks."""
    sharing: float = 0.17
    """Cost of flows that share an interface, see `sharing_factor`; fitted in docs/schedules.md."""
    loopback_bytes_per_s: float = 3e9
    """Between ranks of one host."""
    message_cpu_s: float = 1.15e-4
    """Seconds of a core for each message that a rank sends or receives: the part of message_s in which it does not
    wait. It and the next count where ranks share cores (`Topology.cpus_per_rank`), and slow what is computed beside.
    Both defaults are from four emulated hosts on two cores of an EPYC, by Gloo."""
    byte_cpu_s: float = 4e-10
    """Seconds of a core for each byte that a rank sends or receives, while the wire is busy."""
    reduce_bytes_per_s: float = 1.2e10
    """Throughput of sums and copies."""
    encode_s: Mapping[str, float] = field(default_factory=lambda: _seconds("encode"))
    """Codec -> seconds per element."""
    feedback_s: Mapping[str, float] = field(default_factory=lambda: _seconds("feedback"))
    decode_s: Mapping[str, float] = field(default_factory=lambda: _seconds("decode"))
    add_s: Mapping[str, float] = field(default_factory=lambda: _seconds("add"))
    compute_overlap: float = 1.1
    """How much longer computing takes while an exchange runs beside it: at least 1."""
    exchange_overlap: float = 1.05
    """How much longer an exchange takes while the rank computes: at least 1."""
    initial_window_bytes: float = INITIAL_WINDOW_BYTES
    """First window of a TCP connection; 1e30 for transports without slow start."""
    pause_s: float = 0.0
    """Time without messages before an exchange that is predicted by itself, after which TCP starts slowly
    (`netmodel.slow_start`); 0: it follows another over the same connections. The simulator knows its pauses."""
    nccl: str = ""
    """What GPUs of a host communicate over, "nvlink" or "pcie", where NCCL's forms hold (`netmodel.nccl`)."""
    staging_bytes_per_s: float = 0.0
    """Rate of a GPU's bus, where messages to other hosts go through the host's memory; 0: they do not."""
    uncertainty: float = 0.1
    """Mean relative error of predictions, where they were held against measurements; 0: they were not."""
    provenance: str = "defaults"

    def __post_init__(self) -> None:
        for name in ("encode_s", "feedback_s", "decode_s", "add_s"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))
            unknown = sorted(set(getattr(self, name)) ^ set(CODECS))
            if unknown:
                raise ValueError(f"{name} must have a time for each codec and no other, but not so for {unknown[0]!r}.")
        times = [self.message_s, self.bucket_s, self.message_cpu_s, self.byte_cpu_s]
        times += [t for each in (self.encode_s, self.feedback_s, self.decode_s, self.add_s) for t in each.values()]
        rates = [self.loopback_bytes_per_s, self.reduce_bytes_per_s, self.wire_factor]
        at_least_0 = (*times, self.sharing, self.pause_s, self.staging_bytes_per_s, self.uncertainty)
        if min(at_least_0) < 0 or min(*rates, self.initial_window_bytes) <= 0:
            raise ValueError(
                "an overhead is negative or a rate is not positive; times and sharing are at least 0, and the first "
                "window, rates and the wire's factor above 0."
            )
        if min(self.compute_overlap, self.exchange_overlap) < 1:
            raise ValueError(
                f"overlap factors {self.compute_overlap} and {self.exchange_overlap} say how much longer things take "
                "side by side; make them at least 1."
            )
        if self.nccl not in ("", "nvlink", "pcie"):
            raise ValueError(
                f"overheads have GPUs that communicate over {self.nccl!r}; write 'nvlink', 'pcie', or nothing for Gloo."
            )

    def __hash__(self) -> int:
        return hash(
            (self.wire_factor, self.message_s, self.bucket_s, self.compute_overlap, self.exchange_overlap, self.pause_s)
        )

    @property
    def handling_s(self) -> float:
        """Seconds of `message_s` in which a rank does not wait: all that a message costs which goes behind another."""
        return min(self.message_s, self.message_cpu_s)

    @property
    def handling_share(self) -> float:
        """Part of `message_s` that this is."""
        return self.handling_s / self.message_s if self.message_s else 1.0

    def sharing_factor(self, num_flows: Floats) -> Floats:
        """Return how many times as long an interface takes for f flows at once as for one: 1 + sharing (1 - 1/f).

        1 - 1/f is how often the next of a queue's bytes is another flow's than the last one.
        """
        return 1 + self.sharing * (1 - 1 / np.maximum(num_flows, 1.0))

    def coefficients(self) -> Floats:
        """Return seconds per unit of each of `KEYS`, (num_keys,)."""
        plain = [1.0, self.wire_factor, 1.0, self.message_s, self.bucket_s]
        plain += [1 / self.loopback_bytes_per_s, 1 / self.reduce_bytes_per_s]
        verbs = (self.encode_s, self.feedback_s, self.decode_s, self.add_s)
        return np.array([*plain, *(verb[codec] for verb in verbs for codec in CODECS)])

    @classmethod
    def of(cls, machine: Machine, base: "Overheads | None" = None) -> "Overheads":
        """Return the overheads of a measured machine; what was not measured there is scaled from `base`.

        A machine's decoding is timed as decode and add. Encoding with feedback is not timed: it is the base's, times
        the machine's encoding over the base's; decoding alone likewise by adding.

        Args:
            machine: What ``pliant probe --machine`` has written, or a preset.
            base: The defaults, if None.

        """
        base = cls() if base is None else base
        encode = {**base.encode_s, **machine.encode_s_per_element}
        add = {**base.add_s, **machine.decode_s_per_element}
        return replace(
            base if not machine.gpus else _on_gpus(base, machine),
            message_s=machine.message_s + (base.message_s if machine.staged else 0.0),
            message_cpu_s=machine.message_cpu_s or base.message_cpu_s,
            byte_cpu_s=machine.byte_cpu_s or base.byte_cpu_s,
            reduce_bytes_per_s=machine.add_bytes_per_s,
            loopback_bytes_per_s=machine.inside_bytes_per_s or base.loopback_bytes_per_s,
            encode_s=encode,
            add_s=add,
            feedback_s={name: s * _ratio(encode[name], base.encode_s[name]) for name, s in base.feedback_s.items()},
            decode_s={name: s * _ratio(add[name], base.add_s[name]) for name, s in base.decode_s.items()},
            staging_bytes_per_s=machine.host_bytes_per_s if machine.staged else 0.0,
            uncertainty=machine.uncertainty,
            provenance=f"machine {machine.name}: {machine.provenance}",
        )

    def with_coefficients(self, coefficients: Floats) -> "Overheads":
        """Return overheads with these coefficients, (num_keys,), but for those of computing and of latency."""
        least = np.maximum(coefficients, 1e-30)
        verbs = least[len(_PLAIN) :].reshape(4, len(CODECS)).tolist()
        encode, feedback, decode, add = (dict(zip(CODECS, verb, strict=True)) for verb in verbs)
        return replace(
            self,
            wire_factor=float(least[1]),
            message_s=float(least[3]),
            bucket_s=float(least[4]),
            loopback_bytes_per_s=float(1 / least[5]),
            reduce_bytes_per_s=float(1 / least[6]),
            encode_s=encode,
            feedback_s=feedback,
            decode_s=decode,
            add_s=add,
            provenance="fitted coefficients",
        )


_KERNELS = 10
"""Kernels that an exchange of a bucket launches beside its messages: copies, casts, sums, records of events."""


def _on_gpus(base: Overheads, machine: Machine) -> Overheads:
    """Return the overheads of ranks on GPUs, where kernels and messages hardly slow each other down."""
    return replace(
        base,
        bucket_s=_KERNELS * machine.launch_s,
        sharing=0.0,
        compute_overlap=1.0,
        exchange_overlap=1.0,
        nccl="" if machine.staged else "nvlink" if machine.link_bytes_per_s else "pcie",
    )


def _ratio(measured: float, known: float) -> float:
    return measured / known if known > 0 else 1.0


_NOTHING: Mapping[str, float] = MappingProxyType(dict.fromkeys(CODECS, 0.0))

IDEAL = Overheads(
    wire_factor=1.0,
    message_s=0.0,
    bucket_s=0.0,
    message_cpu_s=0.0,
    byte_cpu_s=0.0,
    sharing=0.0,
    loopback_bytes_per_s=1e30,
    reduce_bytes_per_s=1e30,
    initial_window_bytes=1e30,
    encode_s=_NOTHING,
    feedback_s=_NOTHING,
    decode_s=_NOTHING,
    add_s=_NOTHING,
    compute_overlap=1.0,
    exchange_overlap=1.0,
    uncertainty=0.0,
    provenance="nothing but links costs anything: for closed forms and for figures of other people's simulators",
)
"""Overheads under which only links take time."""
