"""Topologies from matrices: a row for each host that sends, a column for each that receives."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from pliant.spec.reading import shorten
from pliant.spec.topology import Host, Link, Topology
from pliant.spec.units import format_time, parse_rate, parse_share, parse_time

__all__ = ["topology_of_matrices", "topology_of_words"]

Matrix = Sequence[Sequence[float]]
_SAME = 1e-9


def topology_of_matrices(
    bytes_per_s: Matrix,
    latency_s: Matrix = (),
    *,
    round_trip_s: Matrix = (),
    jitter_s: Matrix = (),
    loss: Matrix = (),
    names: Sequence[str] = (),
) -> Topology:
    """Return hosts of one rank, without limits of their own, and a link from each to each.

    Args:
        bytes_per_s: (hosts, hosts) rates from row to column, headers included; 0: not limited. Diagonals are 0.
        latency_s: (hosts, hosts) one-way delays; may be left out, as all that follow.
        round_trip_s: (hosts, hosts) times there and back, instead: half of each is the delay of either way.
        jitter_s: (hosts, hosts) longest further delays.
        loss: (hosts, hosts) shares of packets that are lost.
        names: Of the hosts; host0, host1 and so on if left out.

    Raises:
        ValueError: A matrix is not square or for another number of hosts, a figure is negative, not finite or on the
            diagonal, round trips are not symmetric, or both delays and round trips are given.

    """
    given = {"rate": bytes_per_s, "delay": latency_s, "round trip": round_trip_s, "jitter": jitter_s, "loss": loss}
    hosts = list(names) or [f"host{k}" for k in range(len(bytes_per_s))]
    for noun, matrix in given.items():
        if len(matrix) or noun == "rate":
            _require_square(noun, matrix, hosts)
    if len(round_trip_s):
        if len(latency_s):
            raise ValueError("there is a matrix of delays and one of round trips; give one of them.")
        _require_symmetric(round_trip_s, hosts)
        latency_s = [[float(there_and_back) / 2 for there_and_back in row] for row in round_trip_s]

    def figure(matrix: Matrix, a: int, b: int) -> float:
        return float(matrix[a][b]) if len(matrix) else 0.0

    links = tuple(
        Link(
            source=source,
            target=target,
            bytes_per_s=figure(bytes_per_s, a, b),
            latency_s=figure(latency_s, a, b),
            jitter_s=figure(jitter_s, a, b),
            loss=figure(loss, a, b),
        )
        for a, source in enumerate(hosts)
        for b, target in enumerate(hosts)
        if a != b
    )
    return Topology(hosts=tuple(Host(name=name) for name in hosts), links=links, provenance="given")


def topology_of_words(body: Mapping[str, Any]) -> Topology:
    """Return the topology of matrices as people write them.

    ``{"hosts": ["a", "b"], "rates": [["-", "10mbit"], ["none", "-"]], "delays": [["-", "5ms"], ["5ms", "-"]]}``,
    where ``none`` is a rate without limit; also ``round_trips`` instead of ``delays``, ``jitters`` in times, and
    ``losses`` such as ``"0.5%"``. ``hosts`` may be left out.

    Raises:
        ValueError: A key is not known, a figure cannot be read, a host cannot be reached, or see
            `topology_of_matrices`.

    """
    if unknown := [key for key in body if key not in _WORDS and key != "hosts"]:
        known = ", ".join(("hosts", *_WORDS))
        raise ValueError(f"a file of matrices has no {shorten(unknown[0])}; it has {known}.")
    names = _list(body.get("hosts", []), "hosts")
    if wrong := [name for name in names if not isinstance(name, str)]:
        raise ValueError(f"hosts must be a list of names, but has {shorten(wrong[0])}.")
    return topology_of_matrices(
        **{argument: _numbers(body, key, read) for key, (argument, read) in _WORDS.items() if key in body},
        names=names,
    )


def _rate(text: str) -> float:
    return 0.0 if text == "none" else parse_rate(text)


_WORDS: Mapping[str, tuple[str, Callable[[str], float]]] = {
    "rates": ("bytes_per_s", _rate),
    "delays": ("latency_s", parse_time),
    "round_trips": ("round_trip_s", parse_time),
    "jitters": ("jitter_s", parse_time),
    "losses": ("loss", parse_share),
}
"""Key of a file -> (argument of `topology_of_matrices`, what reads one word)."""


def _numbers(body: Mapping[str, Any], key: str, read: Callable[[str], float]) -> list[list[float]]:
    """Return one matrix of a file in numbers; - is 0: on the diagonal, or no delay, jitter or loss."""
    numbers: list[list[float]] = []
    for a, row in enumerate(_list(body[key], key)):
        numbers.append([])
        for b, word in enumerate(_list(row, f"{key}[{a}]")):
            if not isinstance(word, str):
                raise ValueError(f"{key}[{a}][{b}] is {shorten(word)}; write text with a unit, and - on the diagonal.")
            numbers[-1].append(0.0 if word == "-" else read(word))
            if key == "rates" and a != b and numbers[-1][-1] == 0 and word != "none":
                raise ValueError(
                    f"rates[{a}][{b}] is {word!r}, so that the second host could not be reached from the first, but "
                    "torch connects each rank to each; give a rate, or 'none' for one without limit."
                )
    return numbers


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{where} must be a list, but is {shorten(value)}.")
    return cast(list[Any], value)


def _require_square(noun: str, matrix: Matrix, hosts: Sequence[str]) -> None:
    """Raise ValueError for a matrix that is not one of so many hosts, or whose figures cannot be."""
    num = len(hosts)
    if len(matrix) != num:
        raise ValueError(f"the {noun} matrix has {len(matrix)} rows, but there are {num} hosts; give one for each.")
    for a, row in enumerate(matrix):
        if len(row) != num:
            raise ValueError(
                f"the {noun} matrix is not square: it has {num} rows, but {len(row)} columns in the row of "
                f"{hosts[a]}; give one for each host."
            )
        for b, number in enumerate(row):
            if not 0 <= number < math.inf:
                raise ValueError(
                    f"the {noun} from {hosts[a]} to {hosts[b]} is {number:g}; it must be finite and at least 0."
                )
            if a == b and number:
                raise ValueError(f"the {noun} from {hosts[a]} to itself is {number:g}; write 0 on the diagonal.")


def _require_symmetric(round_trip_s: Matrix, hosts: Sequence[str]) -> None:
    for a, row in enumerate(round_trip_s):
        for b, there in enumerate(row[:a]):
            back = round_trip_s[b][a]
            if abs(there - back) > _SAME:
                raise ValueError(
                    f"the round trip from {hosts[a]} to {hosts[b]} is {format_time(there)}, but from {hosts[b]} to "
                    f"{hosts[a]} {format_time(back)}; it is one time both ways: give delays where ways differ."
                )
