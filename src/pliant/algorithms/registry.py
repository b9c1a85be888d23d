"""The one registry: a name to an algorithm, and the algorithms of the user's own."""

from collections.abc import Callable
from types import MappingProxyType

from torch.optim import Optimizer

from pliant.algorithms.allreduce import allreduce, bf16, fp16
from pliant.algorithms.base import Algorithm
from pliant.algorithms.course import is_adaptive
from pliant.algorithms.demo import demo
from pliant.algorithms.given import node_of
from pliant.algorithms.gossip import choco, dcd, gossip
from pliant.algorithms.local import async_average, diloco, local_sgd, sparse_loco, streaming_diloco
from pliant.algorithms.onebit_adam import OneBitAdam
from pliant.algorithms.owner import owner, stale
from pliant.algorithms.powersgd import powersgd
from pliant.algorithms.quantized import bytegrad, int4, natural, onebit, qsgd, terngrad
from pliant.algorithms.randomk import randomk
from pliant.algorithms.sparse import blocktopk, topk
from pliant.algorithms.tasc import tasc
from pliant.algorithms.timing import late
from pliant.spec import Custom, Exchange, SyncPlan

__all__ = ["ALGORITHMS", "custom", "named", "own_names", "register"]


def _onebit_adam(optimizer: Optimizer) -> Exchange:
    if not isinstance(optimizer, OneBitAdam):
        raise ValueError(
            f"onebit_adam needs pliant.OneBitAdam as its optimizer, but got {type(optimizer).__name__}; "
            "construct OneBitAdam(params, lr=..., warmup_steps=...) instead."
        )
    return optimizer.algorithm


def _momentum(optimizer: Optimizer) -> float:
    """Return the optimizer's momentum, or Adam's beta_1; the largest of its groups, 0 if there is none."""
    return max(float(group.get("momentum", group.get("betas", (0.0,))[0])) for group in optimizer.param_groups)


ALGORITHMS = MappingProxyType[str, Callable[[Optimizer], Exchange]](
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

    Its node names it, ``Custom(name=name, settings={...})``, and `builder(**settings)` must return an
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
    nodes = (node for rule in plan.rules for node in rule.exchange.walk())
    return {node.name: node.name in _OWN for node in nodes if isinstance(node, Custom)}


def custom(node: Custom) -> Algorithm:
    """Return the registered algorithm that a node names. Raises ValueError if there is none."""
    if node.name not in _OWN:
        raise ValueError(
            f"the plan has the algorithm {node.name!r}, but nobody has registered it in this process; "
            f"call pliant.register({node.name!r}, ...) on every rank before relax()."
        )
    return _OWN[node.name](**node.settings)


def named(name: str, optimizer: Optimizer) -> Exchange:
    """Return an algorithm with default settings."""
    if name in _OWN:
        return node_of(_OWN[name]())
    if name not in ALGORITHMS:
        there = ", ".join([*ALGORITHMS, *_OWN])
        raise ValueError(
            f"there is no algorithm {name!r}; there are {there}, what you register(), or the path of a plan."
        )
    return ALGORITHMS[name](optimizer)
