"""The one registry: a row for each name that users type, and the algorithms of their own. No torch here."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import Any

from pliant.algorithms.inputs import AlgorithmLike, HasGroups, node_of, ranks_of
from pliant.algorithms.optimizer_states import moments_of, require_slow_momentum
from pliant.spec import Custom, Exchange, SyncPlan
from pliant.spec.installed import take_installed

__all__ = [
    "ALGORITHMS",
    "Row",
    "algorithm_named",
    "algorithm_names",
    "custom_algorithm",
    "custom_names",
    "is_adaptive",
    "register",
    "row_of",
    "standard_text",
    "why_unknown",
]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One algorithm: `pliant.<name>`, ``relax("<name>")``, the grammar, the command line and the docs read it."""

    make: Callable[..., AlgorithmLike]
    from_optimizer: Callable[[HasGroups], Mapping[str, Any]] | None = None
    """Settings that the bare name takes from the optimizer."""
    example: str = ""
    """How it is typed, where the name alone does not say enough: combinators need what they hold."""
    one_bucket: bool = False
    """Whether all of a model comes in one bucket, so that one budget is divided among all layers."""
    aliases: tuple[str, ...] = ()
    """Older names, which parse to the same node."""
    spare_small: bool = False
    """Whether small parameters are averaged exactly, for algorithms of your own; Pliant's nodes say it themselves."""
    grid: Mapping[str, tuple[float | str, ...]] | None = None
    """Settings that the search may try, each from the mildest to the strongest; None where it does not search.

    Those of `averaging` are texts in the grammar."""
    optimizers: tuple[str, ...] = ()
    """Words of which one must be in the class names of the run's optimizers; empty where any optimizer will do."""
    steps_ratio: float | None = None
    """Steps to the same accuracy over those of bfloat16 DDP, as measured at the end of the grid; None if nobody has."""

    def __post_init__(self) -> None:
        if self.steps_ratio is not None and self.grid is None:
            raise ValueError(f"steps_ratio is {self.steps_ratio}, but there is no grid at whose end it was measured.")

    @property
    def bare(self) -> bool:
        """Whether the name alone says enough."""
        return not self.example


def _rows(module: str, *names: str, **facts: Any) -> dict[str, Row]:
    """Return rows with the same facts for functions of a module of `pliant.algorithms`.

    Nodes that the module defines are known from then on.
    """
    home = import_module(f"pliant.algorithms.{module}")
    return {name: Row(make=getattr(home, name), **facts) for name in names}


def _onebit_adam(optimizer: HasGroups) -> Mapping[str, Any]:
    node = getattr(optimizer, "algorithm", None)
    if not isinstance(node, Exchange):
        raise ValueError(
            f"onebit_adam needs pliant.OneBitAdam as its optimizer, but got {type(optimizer).__name__}; "
            "construct OneBitAdam(params, lr=..., warmup_steps=...) instead."
        )
    return {"beta": optimizer.param_groups[0]["betas"][0], "warmup_steps": vars(optimizer)["warmup_steps"]}


def _momentum(optimizer: HasGroups) -> Mapping[str, Any]:
    """Return the optimizer's momentum, or Adam's beta_1; the largest of its groups, 0 if there is none."""
    found = [float(group.get("momentum", group.get("betas", (0.0,))[0])) for group in optimizer.param_groups]
    return {"lookahead": max(found)}


def _rank(optimizer: HasGroups) -> Mapping[str, Any]:
    """Return the rank to which an optimizer's groups orthogonalize, if they have one."""
    ranks = ranks_of(optimizer)
    if len(ranks) > 1:
        raise ValueError(
            f"dion by name takes the rank of the optimizer, whose groups have {' and '.join(map(str, ranks))}; give "
            f"each its own, as in partition({{'blocks.*': dion({ranks[0]}), '*': dion({ranks[-1]})}})."
        )
    return {"rank": ranks[0]} if ranks else {}


def _power(optimizer: HasGroups) -> Mapping[str, Any]:
    return {"power": 0 if is_adaptive(optimizer) else None}


_OF_ADAPTIVE = ("betas", "beta2_decay", "centered", "initial_accumulator_value", "rho", "etas")
"""Settings by which adaptive optimizers are known: Adam, Adafactor, RMSprop, Adagrad, Adadelta, Rprop."""


def is_adaptive(optimizer: HasGroups) -> bool:
    """Say whether an optimizer divides by what it has seen of the gradient's size, as Adam and RMSprop do."""
    return any(name in group for group in optimizer.param_groups for name in _OF_ADAPTIVE)


_PERIODS = (8, 16, 32, 64)
_IN_FRAGMENTS = {"fragments": (1, 4), "delay_steps": (0, 2)}
_AVERAGES = ("allreduce", "int4")

ALGORITHMS: Mapping[str, Row] = MappingProxyType(
    {
        **_rows("gradients", "allreduce", "bf16", "fp16", "bytegrad", "qsgd", "terngrad", "natural", "int4", "onebit"),
        **_rows("gradients", "sigma2", "chunktopk"),
        **_rows("gradients", "onebit_adam", from_optimizer=_onebit_adam, optimizers=("OneBitAdam",)),
        **_rows("gradients", "powersgd", "topk", "blocktopk", "randomk"),
        **_rows("gradients", "decoupled_momentum", aliases=("demo",)),
        **_rows("momenta", "ef21_muon"),
        **_rows("momenta", "dion", from_optimizer=_rank),
        **_rows(
            "gradients",
            "tasc",
            from_optimizer=_power,
            grid={"agreement": ("leader", "global"), "ratio": (0.1, 0.03, 0.01, 1 / 130)},
        ),
        **_rows("owners", "sharded_optimizer", aliases=("owner",), grid={}, steps_ratio=1.0),
        **_rows("owners", "bounded_staleness", aliases=("stale",)),
        **_rows("owners", "acco", grid={}),
        **_rows("combinators", "delayed", aliases=("late",), from_optimizer=_momentum),
        **_rows("weights", "gossip", "choco", "dcd", "local_sgd"),
        **_rows("outer", "diloco"),
        **_rows(
            "outer",
            "streaming_diloco",
            grid={"period": _PERIODS, **_IN_FRAGMENTS, "outer_momentum": (0.6, 0.8), "averaging": _AVERAGES},
        ),
        **_rows("weights", "sparse_loco", grid={"period": (15, 30, 60)}),
        **_rows("weights", "pulse_loco", grid={"period": (4, 8, 16)}),
        **_rows("weights", "async_average"),
        **_rows("outer", "delayed_nesterov", grid={"period": (4, 8, 16)}),
        **_rows("outer", "decoupled_diloco", grid={"period": (16, 32, 64)}),
        **_rows(
            "outer",
            "muloco",
            optimizers=("Muon",),
            grid={"period": (15, 30, 60), **_IN_FRAGMENTS, "averaging": _AVERAGES},
        ),
        **_rows("outer", "no_loco", grid={"period": (25, 50, 100)}),
        **_rows("regions", "halos"),
        **_rows("outer", "pier", example="pier(total_steps=3200)"),
        **_rows(
            "optimizer_states", "des_loc", from_optimizer=moments_of, optimizers=("Adam",), grid={"period": _PERIODS}
        ),
        **_rows(
            "optimizer_states",
            "mt_dao",
            from_optimizer=require_slow_momentum,
            optimizers=("SlowAdamW",),
            grid={"period": _PERIODS},
        ),
        **_rows(
            "optimizer_states",
            "local_momentum",
            optimizers=("Muon", "SGD"),
            grid={"period": (5, 10, 30), "averaging": _AVERAGES},
        ),
        **_rows("weights", "post_local_sgd", example="post_local_sgd(warmup_steps=100)"),
        **_rows("sharding", "sharded", example="sharded(gradients=int4, weights=differences(int4))"),
        **_rows("combinators", "every", example="every(2, qsgd)"),
        **_rows("combinators", "after", example="after(100, bf16, then=onebit)"),
        **_rows("combinators", "between_hosts", example="between_hosts(int4)"),
        **_rows("combinators", "between_racks", example="between_racks(int4)"),
        **_rows("combinators", "with_target", aliases=("dynamic",), example="with_target(tasc, exposed_share=0.1)"),
    }
)
"""Name -> row."""

_STANDARD: Mapping[str, str] = MappingProxyType({old: name for name, row in ALGORITHMS.items() for old in row.aliases})
"""Older name -> name."""

_WORD = re.compile(r"""(?<![\w"'])[a-z_]\w*(?![\w"'])(?!\s*=)""")

_OWN: dict[str, Row] = {}
"""Algorithms registered in this process, by the user or by an installed distribution."""


def register(
    name: str, builder: Callable[..., AlgorithmLike], *, one_bucket: bool = False, spare_small: bool = False
) -> None:
    """Make an algorithm of your own known, so that relax() takes it by value, by name and in plans.

    Its node names it, ``Custom(name=name, settings={...})``, and `builder(**settings)` must return an
    equal value: a frozen dataclass builds itself. Settings are numbers, and arrive as floats. Plans and checkpoints
    hold the name and the settings, not the code: every rank, and every process that resumes, registers the same
    builder before relax(). A later registration takes the place of an earlier one, as when a notebook's cell runs
    again. A distribution registers its algorithms by an entry point of the group ``pliant.algorithms``: a function
    without arguments, called when a name is not known otherwise.

    Args:
        name: Name, as users type it.
        builder: Makes the algorithm, or a node, from its settings.
        one_bucket: Whether a plan made from the name alone has all of the model in one bucket.
        spare_small: Whether such a plan averages small parameters exactly.

    Raises:
        ValueError: The name is one of Pliant's own.

    """
    if name in ALGORITHMS or name in _STANDARD:
        raise ValueError(f"the name {name!r} is taken by Pliant's own algorithm; register yours under another name.")
    _OWN[name] = Row(make=builder, one_bucket=one_bucket, spare_small=spare_small)


@cache
def _register_installed() -> tuple[str, ...]:
    """Let each installed distribution that has algorithms register them; return why some could not, as clauses."""
    return take_installed("pliant.algorithms", lambda registers: registers())


def why_unknown(said: str) -> str:
    """Return a clause on a name that is not known, and behind it which installed distributions could not be asked."""
    return "; ".join((said, *_register_installed()))


def row_of(name: str) -> Row | None:
    """Return the row of a name: Pliant's, the user's, or an installed distribution's; None if there is none."""
    name = _STANDARD.get(name, name)
    if name not in ALGORITHMS and name not in _OWN:
        _register_installed()
    return ALGORITHMS.get(name) or _OWN.get(name)


def standard_text(text: str) -> str:
    """Return an algorithm's text with the standard name in place of each older one; settings keep their names."""
    return _WORD.sub(lambda word: _STANDARD.get(word[0], word[0]), text)


def custom_names(plan: SyncPlan) -> dict[str, bool]:
    """Return the names in a plan that are not Pliant's, with whether each is registered in this process."""
    nodes = (node for rule in plan.rules for node in rule.exchange.walk())
    return {node.name: row_of(node.name) is not None for node in nodes if isinstance(node, Custom)}


def custom_algorithm(node: Custom) -> AlgorithmLike:
    """Return the registered algorithm that a node names. Raises ValueError if there is none."""
    row = row_of(node.name)
    if row is None:
        said = f"the plan has the algorithm {node.name!r}, but nobody has registered it in this process"
        raise ValueError(f"{why_unknown(said)}; call pliant.register({node.name!r}, ...) on every rank before relax().")
    return row.make(**node.settings)


def algorithm_names(*, bare: bool = False) -> tuple[str, ...]:
    """Return all names, Pliant's and the user's; with `bare`, those that say enough by themselves."""
    return (*(name for name, row in ALGORITHMS.items() if row.bare or not bare), *_OWN)


def algorithm_named(name: str, optimizer: HasGroups | None = None) -> Exchange:
    """Return an algorithm with its default settings, and with those that it takes from the optimizer, if one is given.

    Raises:
        ValueError: There is no such name, or it does not say enough by itself.

    """
    row = row_of(name)
    if row is None:
        there = ", ".join((*algorithm_names(bare=True), "what you register()"))
        raise ValueError(why_unknown(f"there is no algorithm {name!r}; there are {there}, or the path of a plan") + ".")
    if not row.bare:
        raise ValueError(f"{name!r} needs settings; write them behind it, as in {row.example!r}.")
    settings = row.from_optimizer(optimizer) if row.from_optimizer is not None and optimizer is not None else {}
    return node_of(row.make(**settings))
