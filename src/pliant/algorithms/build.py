"""The one registry: a name to an algorithm, and a plan's choice to the algorithm that carries it out."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import MappingProxyType
from typing import Literal, cast

from torch.optim import Optimizer

from pliant.algorithms.allreduce import AllReduce, allreduce, bf16, fp16
from pliant.algorithms.base import Algorithm
from pliant.algorithms.course import is_adaptive
from pliant.algorithms.demo import DeMo, demo
from pliant.algorithms.gossip import CodedNeighbours, Neighbours, choco, dcd, gossip
from pliant.algorithms.hierarchy import BetweenHosts
from pliant.algorithms.local import Local, async_average, diloco, local_sgd, sparse_loco, streaming_diloco
from pliant.algorithms.onebit_adam import Momentum, OneBitAdam
from pliant.algorithms.owner import Owner, owner, stale
from pliant.algorithms.powersgd import PowerSgd, powersgd
from pliant.algorithms.quantized import Quantized, bytegrad, int4, natural, onebit, qsgd, terngrad
from pliant.algorithms.randomk import RandomSparse, randomk
from pliant.algorithms.sparse import Sparse, blocktopk, topk
from pliant.algorithms.tasc import Tasc, tasc
from pliant.algorithms.timing import After, Every, Late, late
from pliant.codecs import BlockTopK, Dct, RandomK, TopK, codec_from
from pliant.spec import Choice, CodecSpec, Outer, OwnSpec, Selection, SyncPlan

__all__ = ["ALGORITHMS", "build", "named", "own_names", "register"]


def _onebit_adam(optimizer: Optimizer) -> Algorithm:
    if not isinstance(optimizer, OneBitAdam):
        raise ValueError(
            f"onebit_adam needs pliant.OneBitAdam as its optimizer, but got {type(optimizer).__name__}; "
            "construct OneBitAdam(params, lr=..., warmup_steps=...) instead."
        )
    return optimizer.algorithm


def _momentum(optimizer: Optimizer) -> float:
    """Return the optimizer's momentum, or Adam's beta_1; the largest of its groups, 0 if there is none."""
    return max(float(group.get("momentum", group.get("betas", (0.0,))[0])) for group in optimizer.param_groups)


ALGORITHMS = MappingProxyType[str, Callable[[Optimizer], Algorithm]](
    {
        "allreduce": lambda optimizer: allreduce(),
        "bf16": lambda optimizer: bf16(),
        "fp16": lambda optimizer: fp16(),
        "bytegrad": lambda optimizer: bytegrad(),
        "qsgd": lambda optimizer: qsgd(),
        "terngrad": lambda optimizer: terngrad(),
        "natural": lambda optimizer: natural(),
        "int4": lambda optimizer: int4(),
        "onebit": lambda optimizer: onebit(),
        "onebit_adam": _onebit_adam,
        "powersgd": lambda optimizer: powersgd(),
        "topk": lambda optimizer: topk(),
        "blocktopk": lambda optimizer: blocktopk(),
        "randomk": lambda optimizer: randomk(),
        "demo": lambda optimizer: demo(),
        "tasc": lambda optimizer: tasc(power=0 if is_adaptive(optimizer) else None),
        "owner": lambda optimizer: owner(),
        "stale": lambda optimizer: stale(),
        "late": lambda optimizer: late(allreduce(), lookahead=_momentum(optimizer)),
        "gossip": lambda optimizer: gossip(),
        "choco": lambda optimizer: choco(),
        "dcd": lambda optimizer: dcd(),
        "local_sgd": lambda optimizer: local_sgd(),
        "diloco": lambda optimizer: diloco(),
        "streaming_diloco": lambda optimizer: streaming_diloco(),
        "sparse_loco": lambda optimizer: sparse_loco(),
        "async_average": lambda optimizer: async_average(),
    }
)
"""Every algorithm with its default settings; the optimizer is what some take their settings from."""


_OWN: dict[str, Callable[..., Algorithm]] = {}
"""What the user has registered in this process."""


def register(name: str, builder: Callable[..., Algorithm]) -> None:
    """Make an algorithm of your own known, so that relax() takes it by value, by name and in plans.

    Its choice names it, ``Choice(own=OwnSpec(name=name, settings={...}))``, and `builder(**settings)` must return an
    equal value: a frozen dataclass builds itself. Settings are numbers, and arrive as floats. Plans and checkpoints
    hold the name and the settings, not the code: every rank, and every process that resumes, registers the same
    builder before relax(). A later registration takes the place of an earlier one, as when a notebook's cell runs
    again.

    Raises:
        ValueError: The name is one of Pliant's own.

    """
    if name in ALGORITHMS:
        raise ValueError(f"the name {name!r} is taken by Pliant's own algorithm; register yours under another name.")
    _OWN[name] = builder


def own_names(plan: SyncPlan) -> dict[str, bool]:
    """Return the names in a plan that are not Pliant's, with whether each is registered in this process."""
    stages = (stage for rule in plan.rules for stage in _stages(rule.choice))
    return {stage.own.name: stage.own.name in _OWN for stage in stages if stage.own is not None}


def _stages(choice: Choice | None) -> Iterator[Choice]:
    while choice is not None:
        yield choice
        choice = choice.before


def named(name: str, optimizer: Optimizer) -> Algorithm:
    """Return an algorithm with default settings."""
    if name in _OWN:
        return _OWN[name]()
    if name not in ALGORITHMS:
        there = ", ".join([*ALGORITHMS, *_OWN])
        raise ValueError(
            f"there is no algorithm {name!r}; there are {there}, what you register(), or the path of a plan."
        )
    return ALGORITHMS[name](optimizer)


def build(choice: Choice) -> Algorithm:
    """Return the algorithm that carries out a choice; `build(a.choice) == a`."""
    if choice.hierarchical:
        before = replace(choice.before, hierarchical=False) if choice.before else None
        return BetweenHosts(inner=build(replace(choice, hierarchical=False, before=before)))
    if choice.what == "momentum":
        return Momentum(
            beta=choice.momentum,
            warmup_steps=choice.until_step,
            codec=codec_from(_codec(choice)),
            chunk_bytes=choice.chunk_bytes,
        )
    if choice.before is not None:
        then = build(replace(choice, before=None, until_step=0))
        return After(num_steps=choice.until_step, first=build(choice.before), then=then)
    if choice.what == "change":
        return _local(choice)
    if choice.delay_steps and choice.what == "gradient":
        inner = build(replace(choice, delay_steps=0, compensation=0, lookahead=0))
        return Late(inner=inner, compensation=choice.compensation, lookahead=choice.lookahead)
    if choice.every > 1 and choice.what == "gradient":
        return Every(period=choice.every, inner=build(replace(choice, every=1)))
    if choice.own is not None:
        return _own(choice.own)
    return _CARRIERS[choice.collective](choice)


def _own(spec: OwnSpec) -> Algorithm:
    if spec.name not in _OWN:
        raise ValueError(
            f"the plan has the algorithm {spec.name!r}, but nobody has registered it in this process; "
            f"call pliant.register({spec.name!r}, ...) on every rank before relax()."
        )
    return _OWN[spec.name](**spec.settings)


def _local(choice: Choice) -> Algorithm:
    averaging = replace(
        choice,
        what="gradient",
        outer=None,
        every=1,
        stretch=0,
        fragments=1,
        delay_steps=0,
        pace="lockstep",
        weighted=False,
    )
    return Local(
        inner=build(averaging),
        period=choice.every,
        outer=choice.outer or Outer(),
        stretch=choice.stretch,
        fragments=choice.fragments,
        delay_steps=choice.delay_steps,
        free=choice.pace == "free",
        weighted=choice.weighted,
    )


def _gossip(choice: Choice) -> Algorithm:
    graph = choice.graph or Neighbours().graph
    if choice.codec is None:
        return Neighbours(graph=graph, period=choice.every, free=choice.pace == "free")
    return CodedNeighbours(codec=codec_from(choice.codec), graph=graph, gamma=choice.gamma, period=choice.every)


def _codec(choice: Choice) -> CodecSpec:
    if choice.codec is None:
        raise ValueError(f"{choice.collective} needs a codec, but the choice names none.")
    return choice.codec


def _all_reduce(choice: Choice) -> Algorithm:
    if choice.codec is None:
        return AllReduce()
    if choice.codec.name == "randomk":
        return RandomSparse(codec=cast(RandomK, codec_from(choice.codec)))
    return AllReduce(wire=cast(Literal["bf16", "fp16"], choice.codec.name))


def _scatter_gather(choice: Choice) -> Algorithm:
    codec = codec_from(_codec(choice))
    feedback = "none" if choice.feedback == "difference" else choice.feedback  # which the validity table refuses here
    return Quantized(codec=codec, feedback=feedback, chunk_bytes=choice.chunk_bytes)


def _all_gather(choice: Choice) -> Algorithm:
    codec = cast(TopK | BlockTopK | Dct, codec_from(_codec(choice)))
    if isinstance(codec, Dct):
        return DeMo(codec=codec, momentum=choice.momentum, signed=choice.signed)
    return Sparse(codec=codec, momentum=choice.momentum, ramp_steps=choice.ramp_steps, target=choice.target)


def _low_rank(choice: Choice) -> Algorithm:
    return PowerSgd(rank=int(_codec(choice).settings.get("rank", PowerSgd.rank)))


def _owner(choice: Choice) -> Algorithm:
    codec = None if choice.codec is None else codec_from(choice.codec)
    staleness = choice.staleness if choice.served else None
    return Owner(codec=codec, bandwidths=choice.bandwidths, staleness=staleness)


def _blocks(choice: Choice) -> Algorithm:
    return Tasc(
        selection=choice.selection or Selection(),
        feedback="difference" if choice.feedback == "difference" else "worker",
        momentum=choice.momentum,
        ramp_steps=choice.ramp_steps,
        target=choice.target,
    )


_CARRIERS: dict[str, Callable[[Choice], Algorithm]] = {
    "all_reduce": _all_reduce,
    "scatter_gather": _scatter_gather,
    "all_gather": _all_gather,
    "low_rank": _low_rank,
    "gossip": _gossip,
    "owner": _owner,
    "blocks": _blocks,
}
