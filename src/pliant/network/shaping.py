"""Rates, queues and delays as tc command lines: pure functions."""

from pliant.network.addresses import address_of
from pliant.network.host_shape import HostShape

__all__ = [
    "HELD_PACKETS",
    "LEAST_BURST",
    "QUEUE_S",
    "burst_bytes",
    "gso_bytes",
    "htb_lines",
    "netem_command",
    "queue_bytes",
    "tbf_command",
]

QUEUE_S = 0.05
"""How long a full queue takes to empty, if no round trip is longer. Long enough that several senders to one host do not
lose packets for ever, short enough that a small message is not stuck behind seconds of a large one."""

LEAST_BURST = 128_000
"""Bytes. A smaller bucket suits small messages, which should not pass at once, but runs over on a busy machine."""
_MAX_BURST_BYTES = 1_250_000
HELD_PACKETS = 100_000  # a delay line, not a queue: it must not be what drops
_NO_LIMIT = 12.5e9  # bytes/s: more than any emulated host sends
_TURN_BYTES = 60_000  # what a class may send before others have their turn: about one packet before segmentation
_GSO_S, _LEAST_GSO, _MOST_GSO = 0.005, 3_000, 65_536
_FIRST_CLASS = 0x10  # numbers of classes, which tc reads as hexadecimal; 1 is for all of a host, 2 for other targets


def burst_bytes(bytes_per_s: float, least: int = LEAST_BURST) -> int:
    """Return the token bucket's depth: 2 ms of the rate, since a busy machine serves it that late, within limits."""
    return round(min(max(0.002 * bytes_per_s, least), _MAX_BURST_BYTES))


def queue_bytes(bytes_per_s: float, round_trip_s: float = 0.0) -> int:
    """Return what may wait for tokens: QUEUE_S or a round trip of the rate, and never less than two bursts.

    With less than a round trip, a connection that halves its window after a loss leaves the link empty for a while.
    """
    return round(max(max(QUEUE_S, round_trip_s) * bytes_per_s, 2 * burst_bytes(bytes_per_s)))


def gso_bytes(shape: HostShape) -> int:
    """Return the most that a connection may hand to its interface in one piece: 5 ms of the slowest rate.

    A network card cuts a piece of up to 64 KB into frames (generic segmentation offload, GSO), but a shaper lets it
    pass whole. At 10 Mbit/s data would arrive every 52 ms, as on no real link. Connections that are open keep theirs.
    """
    rates = [rate for rate in (shape.send_bytes_per_s, *(o.bytes_per_s for o in shape.outgoing)) if rate]
    return round(min(max(_GSO_S * min(rates, default=_NO_LIMIT), _LEAST_GSO), _MOST_GSO))


def tbf_command(
    device: str,
    bytes_per_s: float,
    *,
    behind_delay: bool = False,
    burst: int = LEAST_BURST,
    round_trip_s: float = 0.0,
) -> list[str]:
    """Return the command that limits what leaves by a device; empty where 0 says that nothing limits it."""
    if bytes_per_s == 0:
        return []
    return [
        *("tc", "qdisc", "replace", "dev", device),
        *(("parent", "1:1", "handle", "2:") if behind_delay else ("root", "handle", "2:")),
        *("tbf", "rate", f"{round(bytes_per_s * 8)}bit"),
        *("burst", f"{burst_bytes(bytes_per_s, burst)}b"),
        *("limit", f"{queue_bytes(bytes_per_s, round_trip_s)}b"),
    ]


def netem_command(device: str, delay_s: float) -> list[str]:
    """Return the command that delays what leaves by a device, with netem. It comes first; a shaper goes behind it.

    The other way round, netem would take the place of the shaper's queue, and its length.
    """
    where = ["tc", "qdisc", "replace", "dev", device, "root", "handle", "1:"]
    return [*where, "netem", "delay", f"{delay_s * 1e6:.0f}us", "limit", str(HELD_PACKETS)]


def htb_lines(device: str, shape: HostShape, *, burst: int = LEAST_BURST, fresh: bool = True) -> list[str]:
    """Return the lines for `tc -batch` that limit what leaves by a device, for each target by itself and in all.

    A class under the host's own may always send at its assured rate. So the assured rates add up to no more than the
    host's. Each class has its part of it, and borrows up to its own limit (tc-htb(8): rate and ceil).

    Args:
        device: The interface.
        shape: Rates of the host and of its pairs.
        burst: Least depth of a bucket in bytes.
        fresh: Whether the device has no classes yet. Otherwise those that are there, for the same targets, get other
            rates, and what waits in their queues stays.

    """
    whole = shape.send_bytes_per_s
    leaves = [(2, whole, shape.round_trip_s)]  # (class, bytes/s, round trip): other hosts, and the switch
    leaves += [(_FIRST_CLASS + o.target, o.bytes_per_s, o.round_trip_s) for o in shape.outgoing]
    limits = [min(rate or _NO_LIMIT, whole or _NO_LIMIT) for _, rate, _ in leaves]
    part = min(1.0, whole / sum(limits)) if whole else 1.0
    lines = [f"qdisc add dev {device} root handle 1: htb default 2"] if fresh else []
    if whole:
        lines.append(_htb_class(device, "1:", 1, whole, whole, burst))
    for (number, _, round_trip_s), limit in zip(leaves, limits, strict=True):
        queue = queue_bytes(limit, round_trip_s) if limit < _NO_LIMIT else queue_bytes(_NO_LIMIT / 100)
        lines.append(_htb_class(device, "1:1" if whole else "1:", number, part * limit, limit, burst))
        lines.append(f"qdisc replace dev {device} parent 1:{number:x} handle {number:x}: bfifo limit {queue}b")
    if fresh:
        lines += [
            f"filter add dev {device} parent 1: protocol ip prio 1 u32 match ip dst {address_of(o.target)}/32 "
            f"flowid 1:{_FIRST_CLASS + o.target:x}"
            for o in shape.outgoing
        ]
    return lines


def _htb_class(device: str, parent: str, number: int, assured: float, limit: float, burst: int) -> str:
    depth = burst_bytes(limit, burst)
    return (
        f"class replace dev {device} parent {parent} classid 1:{number:x} htb rate {max(8, round(assured * 8))}bit "
        f"ceil {round(limit * 8)}bit burst {depth}b cburst {depth}b quantum {_TURN_BYTES}"
    )
