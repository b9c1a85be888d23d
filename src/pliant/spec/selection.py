"""Settings of the selection of blocks, which are part of a plan."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Literal

from pliant.spec.curvature import CurvatureSpec
from pliant.spec.ranges import Count, Decay, Number, Positive, Quantity, Range, Ratio, Share, Tried, check_ranges
from pliant.spec.topology import Topology

__all__ = ["VALUE_BYTES", "Agreement", "Selection", "ValueBits"]

Agreement = Literal["global", "leader", "local"]
ValueBits = Literal[32, 16, 4]
VALUE_BYTES: Mapping[ValueBits, float] = MappingProxyType({32: 4.0, 16: 2.0, 4: 0.5 + 4 / 64})
"""Bytes of an element on the wire, by bits; 4 bits include a float32 scale for each 64 elements."""


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Settings of the selection of blocks: how many, by which score, and which ranks agree on them.

    Raises:
        ValueError: A setting is out of its range, or scores would take more than half of the bytes.

    >>> str(Selection(ratio=0.05, power=1))
    "blocks of 128, a leader's, ratio 0.05, p=1"

    """

    ratio: Annotated[Ratio, Tried((0.1, 0.03, 0.01, 1 / 130))] = 0.01
    """Bytes that a rank sends in a step, over those of an all-reduce of all gradients in float32: blocks, scores, masks
    and tensors that stay dense are all counted. At 1 everything is sent."""
    block: Number = 128
    """Most elements of a block, which is a segment of one row of a parameter; 0 for whole rows, such as the weights of
    an output channel or a neuron."""
    power: float | None = None
    """p of the score h^p |u|^2, h the curvature; None for 0 under optimizers that divide by a variance (such as Adam
    and RMSprop), where the weighting cancels, and 1 under others."""
    agreement: Annotated[Agreement, Tried(("leader", "global", "local"))] = "leader"
    """"global": ranks add up scores and select alike; "leader": one rank selects for all; "local": each for itself."""
    topology: Topology | None = None
    """Network for which sums get a schedule, with a "local" agreement; without it payloads are gathered."""
    rescore: Count = 8
    """Exchanges in which each block's score is sent once, with a "global" agreement, behind the values; 1 sends all
    scores first, in 16 bits and a message of their own."""
    floor: Share = 0.05
    """Least density of each parameter, as a share of the mean density."""
    resolve: Count = 50
    """Exchanges after which blocks are divided among parameters anew; between, each parameter keeps its number. A
    leader divides in each of its turns."""
    age: Quantity = 0.05
    """Growth of a block's score with each 1 / ratio exchanges that it waits, so that no block waits for ever."""
    dense: Decay = 0.25
    """Largest share of the bytes for tensors that stay dense: vectors first, then the smallest, whole ones."""
    value_bits: Annotated[ValueBits, Tried((32, 16, 4))] = 4
    """Bits of an element on the wire: float32; bfloat16; or 4 bits, in steps of the largest of 64 (the codec `int4`).
    The rounding error stays in the residual. Where a ratio pays for everything in more bits, more are used."""
    relief: Annotated[float, Range(low=1)] = 1.0
    """Factor of the ratio for a while when gradients or the learning rate change much; 1 for never."""
    eta: Positive = 0.5
    """Relative change that counts as much: of the norm from one window to the next, or of the learning rate."""
    window: Count = 50
    """Exchanges over which norms are compared, and for which the relief lasts."""
    curvature: CurvatureSpec | None = field(default_factory=CurvatureSpec)
    """Settings of the curvature estimate, used where the power is not 0; None weights all blocks alike."""

    def __post_init__(self) -> None:
        for name in ("ratio", "floor", "age", "dense", "relief", "eta"):
            object.__setattr__(self, name, float(getattr(self, name)))
        if self.power is not None:
            object.__setattr__(self, "power", float(self.power))
        check_ranges(self)
        if self.topology is not None and self.agreement != "local":
            raise ValueError(
                f"a topology is for sums of blocks that each rank chooses by itself, but the agreement is "
                f"{self.agreement!r}; leave it out, or make the agreement 'local'."
            )
        if self.topology is not None and self.is_coded:
            raise ValueError(
                f"a schedule adds values up on their way, but values of {self.value_bits} bits have a scale each; make "
                "value_bits 16 or 32, or leave the topology out: then payloads are gathered."
            )
        self._check_scores()

    @property
    def feels(self) -> bool:
        """Whether the curvature may count."""
        return self.curvature is not None and self.power != 0

    @property
    def value_bytes(self) -> float:
        """Bytes of an element on the wire."""
        return VALUE_BYTES[self.value_bits]

    @property
    def is_coded(self) -> bool:
        """Whether values travel as codes with scales, which do not add up on the way."""
        return self.value_bits == 4

    @property
    def tells_in_turns(self) -> bool:
        """Whether ranks add up some of the blocks' scores in each exchange, and never all of them."""
        return self.agreement == "global" and self.rescore > 1

    def score_bytes(self, num_blocks: int) -> float:
        """Return the bytes of scores in one exchange of so many blocks."""
        apart, behind = self.num_told(num_blocks)
        return 2 * apart + self.value_bytes * behind

    def num_told(self, num_blocks: int) -> tuple[int, int]:
        """Return how many scores travel in an exchange in a message of their own, of 16 bits, and behind the values."""
        if self.agreement != "global":
            return 0, 0
        told = -(-num_blocks // self.rescore)
        return (0, told) if self.tells_in_turns and not self.is_coded else (told, 0)

    def _check_scores(self) -> None:
        if not self.block or self.ratio == 1:
            return
        scores = self.score_bytes(self.block * self.rescore) / (self.block * self.rescore)  # of a block, in a step
        allowed = 4 * self.ratio * self.block
        if 2 * scores > allowed:
            raise ValueError(
                f"a ratio of {self.ratio:g} leaves {allowed:.3g} bytes for a block of {self.block} elements, but its "
                f"score alone takes {scores:.3g}; make blocks larger, rescore less often, or let a leader choose."
            )

    def __str__(self) -> str:
        blocks = f"blocks of {self.block}" if self.block else "rows"
        whose = {"global": "agreed", "leader": "a leader's", "local": "each rank's own"}[self.agreement]
        power = "p by the optimizer" if self.power is None else f"p={self.power:g}"
        return f"{blocks}, {whose}, ratio {self.ratio:g}, {power}"
