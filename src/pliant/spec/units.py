"""Sizes, times and rates as people write them: '25MB', '1.2ms', '100mbit'."""

import re

__all__ = ["format_bytes", "format_rate", "format_time", "parse_bytes", "parse_rate", "parse_share", "parse_time"]

_BYTES = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_SECONDS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0}
# Networks are sold in bits, so a rate is in bits unless it says bytes; the value returned is always bytes per second.
_RATES = {
    "bit": 1 / 8,
    "kbit": 1e3 / 8,
    "mbit": 1e6 / 8,
    "gbit": 1e9 / 8,
    "b/s": 1.0,
    "kb/s": 1e3,
    "mb/s": 1e6,
    "gb/s": 1e9,
}
_NUMBER = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*([a-zA-Zµ/%]*)\s*")


def _parse(text: str, units: dict[str, int] | dict[str, float], noun: str) -> float:
    match = _NUMBER.fullmatch(text)
    unit = match.group(2).lower() if match else ""
    if match is None or unit not in units:
        known = ", ".join(u for u in units if u)
        raise ValueError(f"{text!r} is not {noun}: write a number and one of {known}.")
    return float(match.group(1)) * units[unit]


def parse_bytes(text: str) -> int:
    """Return a size in bytes: '25MB' is 25,000,000 and '25MiB' is 26,214,400."""
    return round(_parse(text, _BYTES, "a size"))


def parse_time(text: str) -> float:
    """Return a time in seconds: '1.2ms' is 0.0012."""
    return _parse(text, _SECONDS, "a time")


def parse_rate(text: str) -> float:
    """Return a rate in bytes per second: '100mbit' and '12.5MB/s' are both 12,500,000."""
    return _parse(text, _RATES, "a rate")


def parse_share(text: str) -> float:
    """Return a share as a number: '0.5%' and '0.005' are both 0.005."""
    return _parse(text, {"": 1.0, "%": 0.01}, "a share")


def _format(value: float, scale: tuple[tuple[float, str], ...]) -> str:
    least, unit = scale[-1]
    for factor, larger in scale:
        if float(f"{abs(value) / factor:.3g}") >= 1:  # as it is printed, so that 999.7 of a unit are 1 of the next
            least, unit = factor, larger
            break
    number = value / least
    return f"{number:.3g}{unit}" if abs(number) < 999.5 else f"{number:.0f}{unit}"


def format_bytes(num_bytes: float) -> str:
    """Print a size for people: 25000000 is '25MB'."""
    return _format(num_bytes, ((1e9, "GB"), (1e6, "MB"), (1e3, "KB"), (1, "B")))


def format_time(time_s: float) -> str:
    """Print a time for people: 0.0012 is '1.2ms'."""
    return _format(time_s, ((1, "s"), (1e-3, "ms"), (1e-6, "us")))


def format_rate(bytes_per_s: float) -> str:
    """Print a rate for people: 12500000 is '100mbit'."""
    return _format(bytes_per_s * 8, ((1e9, "gbit"), (1e6, "mbit"), (1e3, "kbit"), (1, "bit")))
