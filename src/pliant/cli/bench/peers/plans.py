"""From the name of a peer to what `relax` takes."""

from collections.abc import Callable, Mapping

from pliant.algorithms import Algorithm, AlgorithmLike, blocktopk, node_of, register, topk
from pliant.algorithms.by_name import ONE_BUCKET_BYTES, SPARED_NUMEL
from pliant.cli.bench.peers.gtopk import GTopK
from pliant.cli.bench.peers.layered import UniformBlocks
from pliant.cli.bench.peers.oktopk import OkTopk
from pliant.cli.bench.peers.scalecom import ScaleCom
from pliant.cli.bench.peers.sparcml import SparCml
from pliant.spec import Match, Rule, SyncPlan

__all__ = ["peer", "peer_plan", "register_peers"]

_OWN: dict[str, Callable[..., Algorithm]] = {
    "sparcml": SparCml,
    "oktopk": OkTopk,
    "gtopk": GTopK,
    "scalecom": ScaleCom,
    "uniform_blocks": UniformBlocks,
}


def _dgc(ratio: float = 0.01, momentum: float = 0.9, ramp_steps: int = 0) -> AlgorithmLike:
    return topk(ratio, momentum=momentum, ramp_steps=ramp_steps)


def _magnitude_blocks(ratio: float = 0.01, block: int = 64) -> AlgorithmLike:
    return blocktopk(ratio, block=block)


_MADE: dict[str, Callable[..., AlgorithmLike]] = {"dgc": _dgc, "magnitude_blocks": _magnitude_blocks}
"""Points of Pliant's own space, under the names by which they are compared."""


def register_peers() -> None:
    """Make the peers known by name in this process, for plans that hold them; again is as good as once."""
    for name, builder in _OWN.items():
        register(name, builder)


def peer(name: str, settings: Mapping[str, float]) -> AlgorithmLike:
    """Return a peer with its settings.

    Raises:
        ValueError: There is no such peer, or it does not take the settings.

    """
    register_peers()
    make = (_OWN | _MADE).get(name)
    if make is None:
        raise ValueError(f"there is no peer {name!r}; there are {', '.join(_OWN | _MADE)}.")
    try:
        return make(**settings)
    except TypeError as error:
        raise ValueError(f"{name} does not take the settings {dict(settings)}: {error}") from error


def peer_plan(name: str, settings: Mapping[str, float], title: str = "") -> SyncPlan:
    """Return the plan of a peer: one bucket for the model, since a layer competes with all others; small ones exact.

    What counts as small is the same as for Pliant's algorithms when they are asked for by name.
    """
    rules = (Rule(match=Match(max_numel=SPARED_NUMEL)), Rule(exchange=node_of(peer(name, settings))))
    return SyncPlan(rules=rules, bucket_bytes=ONE_BUCKET_BYTES, name=title or name)
