"""Links that change while ranks run, at times that are known before: as records, and as people write them."""

import math
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from pliant.spec import Host, Link, Topology
from pliant.spec.units import parse_rate, parse_share, parse_time

__all__ = ["Change", "Timetable", "parse_changes", "with_links_of", "without_limits"]

_FORM = re.compile(r"\s*at\s+(\S+)\s*:\s*(\S+)\s+(.+)")
_EXAMPLE = "'at 60s: 2-3 10mbit', 'at 60s: 2>3 10mbit delay 50ms jitter 5ms loss 1%' or 'at 2min: 2 none'"


@dataclass(frozen=True, kw_only=True)
class Change:
    """Topology that the links have from some time on."""

    at_s: float
    """Time since the ranks were started."""
    topology: Topology
    """The same hosts, ranks and racks, with other rates, delays or links."""

    def __post_init__(self) -> None:
        if not 0 <= self.at_s < math.inf:
            raise ValueError(f"a change is to come after {self.at_s:g} s; give a time that is finite and at least 0.")


class Timetable:
    """Changes that are still to come; who waits for the ranks calls `tick`."""

    def __init__(self, changes: Iterable[Change], apply: Callable[[Topology], None]) -> None:
        self.left = sorted(changes, key=lambda change: change.at_s)
        """Changes whose time has not come."""
        self._apply = apply
        self._start_s = time.monotonic()

    def tick(self) -> None:
        """Make the changes whose time has come."""
        while self.left and time.monotonic() - self._start_s >= self.left[0].at_s:
            self._apply(self.left.pop(0).topology)


def with_links_of(topology: Topology, others: Sequence[Topology]) -> Topology:
    """Return the topology with a link for each pair that has one in any of the others, its figures as they were.

    So that a change finds the classes and queues which it gives other figures: packets that wait are not lost.
    """
    there = {(link.source, link.target) for link in topology.links}
    delay_s = {host.name: host.delay_s for host in topology.hosts}
    missing = {(link.source, link.target) for other in others for link in other.links} - there
    added = (Link(source=a, target=b, bytes_per_s=0.0, latency_s=delay_s[b]) for a, b in sorted(missing))
    return replace(topology, links=(*topology.links, *added))


def without_limits(topology: Topology) -> Topology:
    """Return the same hosts, racks and links without limits, delays or losses; see `with_links_of` for its use."""
    none = {"send_bytes_per_s": 0.0, "receive_bytes_per_s": 0.0}
    return replace(
        topology,
        hosts=tuple(replace(host, delay_s=0.0, **none) for host in topology.hosts),
        links=tuple(replace(link, bytes_per_s=0.0, latency_s=0.0, jitter_s=0.0, loss=0.0) for link in topology.links),
        racks=tuple(replace(rack, **none) for rack in topology.racks),
    )


def parse_changes(texts: Iterable[str], topology: Topology) -> tuple[Change, ...]:
    """Return changes from texts such as 'at 60s: 2-3 10mbit', each on top of those before it in time.

    '2-3' is a pair of hosts, by number or name, both ways; '2>3' is one way; '2' is a host's own link, both ways. Then
    follow a rate ('none' for no limit) and, after their words, what else changes: 'delay 50ms', 'jitter 5ms', 'loss
    1%'; a host has no jitter or loss of its own.

    Raises:
        ValueError: A text has another form, names a host that is not there, or a figure that cannot be.

    """
    found: list[tuple[float, str, str, str]] = []
    for text in texts:
        form = _FORM.fullmatch(text)
        if form is None:
            raise ValueError(f"the change {text!r} is not understood; write it as {_EXAMPLE}.")
        found.append((parse_time(form[1]), form[2], form[3], text))
    changes: list[Change] = []
    for at_s, where, figures, text in sorted(found, key=lambda item: item[0]):
        topology = _changed(topology, where, _figures(figures, text), text)
        changes.append(Change(at_s=at_s, topology=topology))
    return tuple(changes)


def _figures(text: str, change: str) -> dict[str, float]:
    """Return what a change sets: rate, delay, jitter, loss."""
    readers = {"rate": _rate, "delay": parse_time, "jitter": parse_time, "loss": parse_share}
    words = text.split()
    if words and words[0] not in readers:
        words.insert(0, "rate")
    nouns = words[::2]
    if not words or len(words) % 2 or len(set(nouns)) < len(nouns) or set(nouns) - readers.keys():
        raise ValueError(f"the change {change!r} has {text!r}, which is not understood; write it as {_EXAMPLE}.")
    return {noun: readers[noun](value) for noun, value in zip(nouns, words[1::2], strict=True)}


def _rate(text: str) -> float:
    if text == "none":
        return 0.0
    rate = parse_rate(text)
    if not rate:
        raise ValueError(f"the rate {text!r} would cut a link off; give a rate, or 'none' for no limit.")
    return rate


def _changed(topology: Topology, where: str, figures: dict[str, float], text: str) -> Topology:
    names = [host.name for host in topology.hosts]
    named = {name: name for name in names} | {str(k): name for k, name in enumerate(names) if str(k) not in names}
    if where in named:
        if wrong := [noun for noun in figures if noun in ("jitter", "loss")]:
            raise ValueError(f"the change {text!r} gives a host {wrong[0]}, which only pairs have; name a pair.")
        return replace(
            topology, hosts=tuple(_host(h, figures) if h.name == named[where] else h for h in topology.hosts)
        )
    cuts = [(where[:k], c, where[k + 1 :]) for k, c in enumerate(where) if c in "->"]
    pairs = [(named[a], c, named[b]) for a, c, b in cuts if a in named and b in named and named[a] != named[b]]
    if not pairs:
        raise ValueError(
            f"the change {text!r} names {where!r}, which is neither a host nor two of them, as in 2-3 or 2>3; the "
            f"hosts are {', '.join(names)}, by number 0 to {len(names) - 1}."
        )
    a, way, b = pairs[0]
    for source, target in ((a, b), (b, a))[: 2 if way == "-" else 1]:
        topology = _with_link(topology, source, target, figures)
    return topology


def _host(host: Host, figures: dict[str, float]) -> Host:
    rates = {"send_bytes_per_s": figures["rate"], "receive_bytes_per_s": figures["rate"]} if "rate" in figures else {}
    return replace(host, **rates, **({"delay_s": figures["delay"]} if "delay" in figures else {}))


_FIELDS = {"rate": "bytes_per_s", "delay": "latency_s", "jitter": "jitter_s", "loss": "loss"}


def _with_link(topology: Topology, source: str, target: str, figures: dict[str, float]) -> Topology:
    """Return the topology with other figures of one ordered pair."""
    kept = {(link.source, link.target): link for link in topology.links}
    delay_s = {host.name: host.delay_s for host in topology.hosts}[target]
    link = kept.get((source, target), Link(source=source, target=target, bytes_per_s=0.0, latency_s=delay_s))
    kept[source, target] = replace(link, **{_FIELDS[noun]: value for noun, value in figures.items()})
    return replace(topology, links=tuple(kept.values()))
