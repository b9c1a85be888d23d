"""The arms of the accuracy job: from a name and one number, its size, to a plan."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

import pliant
from pliant.algorithms import Algorithm
from pliant.algorithms.by_name import ONE_BUCKET_BYTES
from pliant.spec import Match, Rule, SyncPlan, ValueBits

RATIOS = (10, 30, 130, 300)
"""Of the bytes of dense float32 to an arm's."""
BLOCK = 64
POWERS = (0.0, 0.5, 1.0)
BLOCKS = (0, 16, 32, 64, 128)
"""Elements of a block of tasc; 0: whole rows."""


@dataclass(frozen=True, kw_only=True)
class Arm:
    """An algorithm whose bytes follow one number."""

    name: str
    made: Callable[[float], Algorithm]
    """From the number to the algorithm."""
    fitted: bool = True
    """Whether the number is to be found by measuring bytes; otherwise it is the share of bytes itself."""
    fixed: bool = False
    """Whether there is no such number."""
    whole: bool = False
    """Whether it decides by itself what is too small to be chosen from; otherwise one-dimensional tensors are exact."""
    probe_steps: int = 3
    """Steps after which its bytes per step are known."""
    momentum: float = 0.9
    """Of SGD."""
    optimizers: tuple[str, ...] = ("sgd", "adam")
    ratios: tuple[int, ...] = RATIOS

    def plan(self, size: float, model: nn.Module) -> SyncPlan:
        """Return the plan, in one bucket: all layers compete, or are at least in one message."""
        rules = [Rule(exchange=self.made(size))]
        if not self.whole:
            small = [name for name, parameter in model.named_parameters() if parameter.dim() < 2]
            rules = [*(Rule(match=Match(pattern=name)) for name in small), *rules]
        return SyncPlan(rules=tuple(rules), bucket_bytes=ONE_BUCKET_BYTES, name=self.name)


def _tasc(power: float, block: int, ratios: tuple[int, ...], bits: ValueBits = 4) -> Arm:
    of = f"b{block}" if block else "rows"
    return Arm(
        name=f"tasc-p{power:g}-{of}" + (f"-{bits}bit" if bits != 4 else ""),
        made=lambda size: pliant.tasc(ratio=size, block=block, power=power, value_bits=bits),
        fitted=False,
        whole=True,
        ratios=ratios,
    )


def _summed(power: float) -> Arm:
    """tasc with the scores of all ranks, told as rarely as a quarter of the bytes pays for."""

    def made(size: float) -> Algorithm:
        rescore = max(8, math.ceil(4 / (size * BLOCK)))
        return pliant.tasc(ratio=size, block=BLOCK, power=power, agreement="global", rescore=rescore)

    return Arm(name=f"tasc-p{power:g}-b{BLOCK}-global", made=made, fitted=False, whole=True, ratios=(130,))


def _corrected(power: float) -> Arm:
    """tasc with the momentum before the choice, as DGC has it, and not in the optimizer."""
    return Arm(
        name=f"tasc-p{power:g}-b{BLOCK}-corrected",
        made=lambda size: pliant.tasc(ratio=size, block=BLOCK, power=power, momentum=0.9),
        fitted=False,
        whole=True,
        momentum=0.0,
        optimizers=("sgd",),
    )


def _peer(name: str, ratios: tuple[int, ...] = (30, 130, 300), bits: int = 32, **other: Any) -> Arm:
    coded = f", bits={bits}" if bits != 32 else ""
    named = name + (f"-{bits}bit" if coded else "")
    return Arm(name=named, made=lambda size: pliant.parse(f"{name}(ratio={size!r}{coded})"), ratios=ratios, **other)


def arms() -> dict[str, Arm]:
    """Return all arms by name: the main ones at every ratio, blocks of other sizes and peers at 130."""
    listed = [
        Arm(name="dense", made=lambda size: pliant.bf16(), fixed=True, whole=True, ratios=(2,)),
        Arm(name="powersgd", made=lambda size: pliant.powersgd(), fixed=True, ratios=(0,)),
        *(_tasc(p, b, RATIOS if b in (0, BLOCK) else (130,)) for b in BLOCKS for p in POWERS),
        *(_tasc(p, BLOCK, RATIOS if bits == 32 else (130,), bits) for bits in (32, 16) for p in (0.0, 1.0)),
        *(make(p) for make in (_summed, _corrected) for p in (0.0, 1.0)),
        Arm(name="magnitude", made=lambda size: pliant.parse(f"magnitude_blocks(ratio={size!r}, block={BLOCK})")),
        Arm(name="uniform", made=lambda size: pliant.parse(f"uniform_blocks(ratio={size!r}, block={BLOCK})")),
        Arm(name="uniform-b16", made=lambda size: pliant.parse(f"uniform_blocks(ratio={size!r}, block=16)")),
        Arm(name="random", made=pliant.randomk),
        Arm(name="topk", made=pliant.topk),
        *(_peer(name, bits=bits) for name in ("sparcml", "scalecom") for bits in (32, 4)),
        _peer("oktopk", probe_steps=160),
        _peer("gtopk"),
        _peer("dgc", ratios=(130,), momentum=0.0, optimizers=("sgd",)),
    ]
    return {arm.name: arm for arm in listed}
