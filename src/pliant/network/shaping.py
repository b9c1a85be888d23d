"""Rates, queues and delays as tc command lines: pure functions."""

__all__ = ["LEAST_BURST", "QUEUE_S", "burst_bytes", "netem_command", "queue_bytes", "tbf_command"]

QUEUE_S = 0.05
"""How long a full queue takes to empty. Long enough that several senders to one host do not lose packets for ever,
short enough that a small message is not stuck behind seconds of a large one."""

LEAST_BURST = 128_000
"""Bytes. A smaller bucket suits small messages, which should not pass at once, but runs over on a busy machine."""
_MAX_BURST_BYTES = 1_250_000
_HELD_PACKETS = 100_000  # a delay line, not a queue: it must not be what drops


def burst_bytes(bytes_per_s: float, least: int = LEAST_BURST) -> int:
    """Return the token bucket's depth: 2 ms of the rate, since a busy machine serves it that late, within limits."""
    return round(min(max(0.002 * bytes_per_s, least), _MAX_BURST_BYTES))


def queue_bytes(bytes_per_s: float) -> int:
    """Return what may wait for tokens: QUEUE_S of the rate, and never less than two bursts."""
    return round(max(QUEUE_S * bytes_per_s, 2 * burst_bytes(bytes_per_s)))


def tbf_command(device: str, bytes_per_s: float, *, behind_delay: bool = False, burst: int = LEAST_BURST) -> list[str]:
    """Return the command that limits what leaves by a device; empty where 0 says that nothing limits it."""
    if bytes_per_s == 0:
        return []
    return [
        *("tc", "qdisc", "replace", "dev", device),
        *(("parent", "1:1", "handle", "2:") if behind_delay else ("root", "handle", "2:")),
        *("tbf", "rate", f"{round(bytes_per_s * 8)}bit"),
        *("burst", f"{burst_bytes(bytes_per_s, burst)}b"),
        *("limit", f"{queue_bytes(bytes_per_s)}b"),
    ]


def netem_command(device: str, delay_s: float) -> list[str]:
    """Return the command that delays what leaves by a device, with netem. It comes first; a shaper goes behind it.

    The other way round, netem would take the place of the shaper's queue, and its length.
    """
    where = ["tc", "qdisc", "replace", "dev", device, "root", "handle", "1:"]
    return [*where, "netem", "delay", f"{delay_s * 1e6:.0f}us", "limit", str(_HELD_PACKETS)]
