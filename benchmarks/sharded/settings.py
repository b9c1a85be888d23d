"""Models and ways of exchanging them that the jobs here compare: plans in the grammar, and what torch does itself."""

from dataclasses import dataclass

__all__ = ["BASELINES", "BYTES", "HSDP", "LOSS", "LOSS_SHAPE", "MODELS", "RATES", "RATIOS", "STEPS", "Setting", "Shape"]

RATES = ("100mbit", "1gbit")


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Size of a GPT over bytes, and what a rank takes of text in a step."""

    width: int
    layers: int
    heads: int
    length: int = 64
    batch: int = 2


MODELS = {"3M": Shape(width=256, layers=4, heads=4), "13M": Shape(width=512, layers=4, heads=8)}
"""3.3 M and 12.9 M parameters."""
LOSS_SHAPE = Shape(width=64, layers=2, heads=4, length=32, batch=4)
"""0.13 M parameters, so that 1,000 steps of four ranks take a minute."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A name, and what is done: a plan, or one of `BASELINES`, which Pliant has no part in."""

    name: str
    what: str


BASELINES = ("computing alone", "plain FSDP2", "torch's bf16", "plain HSDP")
COMPUTE, PLAIN, TORCH_BF16, PLAIN_HSDP = (Setting(name=name, what=name) for name in BASELINES)

EXACT = Setting(name="exact", what="allreduce")
BF16_TWICE = Setting(name="bf16, gathered twice", what="sharded(gradients=bf16, weights=bf16)")
BF16_ONCE = Setting(name="bf16, gathered once", what="sharded(gradients=bf16, weights=bf16, regather=False)")
INT8_TWICE = Setting(name="int8 / int8, gathered twice", what="sharded(gradients=bytegrad, weights=bytegrad)")
INT8 = Setting(name="int8 / int8", what="sharded(gradients=bytegrad, weights=bytegrad, regather=False)")
INT4 = Setting(name="int4 / int4 differences", what="sharded(gradients=int4, weights=differences(int4))")
ONEBIT_TWICE = Setting(name="onebit / int8, gathered twice", what="sharded(gradients=onebit, weights=bytegrad)")
ONEBIT_ONCE = Setting(name="onebit / int8", what="sharded(gradients=onebit, weights=bytegrad, regather=False)")
ONEBIT = Setting(name="onebit / int4 differences", what="sharded(gradients=onebit, weights=differences(int4))")

STEPS = (COMPUTE, PLAIN, TORCH_BF16, EXACT, INT8_TWICE, INT8, INT4, ONEBIT_TWICE, ONEBIT_ONCE, ONEBIT)
"""Of `steps.py`, in the order of even rounds. Differences are gathered once: the plan refuses anything else."""

BYTES = (PLAIN, TORCH_BF16, EXACT, BF16_TWICE, BF16_ONCE, *STEPS[4:])
"""Of `bytes.py`, on four hosts."""

HSDP = (
    PLAIN_HSDP,
    Setting(name="onebit", what="onebit"),
    Setting(name="streaming_diloco", what="streaming_diloco(period=32)"),
)
"""Of `bytes.py`, on two hosts of two ranks each: shards inside a host, replicas between, which average in int4."""

LOSS = (
    PLAIN,
    EXACT,
    *(Setting(name=name, what=name) for name in ("bf16", "bytegrad", "qsgd", "natural", "terngrad", "int4", "onebit")),
    BF16_ONCE,
    INT8,
    INT4,
    Setting(
        name="int4, residual in 8 bits / int4 differences",
        what="sharded(gradients=int4, residual=int8, weights=differences(int4))",
    ),
    Setting(
        name="int4, no residual / int4 differences",
        what="sharded(gradients=int4, residual=none, weights=differences(int4))",
    ),
    ONEBIT,
)
"""Of `loss.py`: all values of docs/sharded.md by name, and both ways together."""

RATIOS = (PLAIN, EXACT, BF16_ONCE, INT8, INT4)
"""Of `ratios.py`, with SGD: 8 and 4 bits for gradients and weights alike."""
