"""What an algorithm is: a frozen value; its state is explicit tensors; the engine calls it at named moments."""

from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from pliant.buckets import Bucket
from pliant.comm.base import Comm
from pliant.spec import Choice

__all__ = ["Algorithm", "Moment", "State"]


@dataclass
class State:
    """What an algorithm keeps for one bucket on one rank."""

    tensors: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    """What a resume needs, and nothing else. Two layouts, told apart by the key:

    - ``residual``: as many elements as the bucket, in its order; the engine saves it per parameter, so that it
      survives another bucketing;
    - ``q/<parameter>``: any shape, belongs to that parameter and moves with it.
    """
    workspace: Any = None
    """Buffers and live collectives, made once by init and never saved."""


@dataclass(frozen=True, kw_only=True)
class Moment:
    """When something happens."""

    step: int
    """Optimizer steps completed before this one."""
    seed: int
    """63 bits, equal on all ranks, different for each step and bucket; add the rank where ranks must differ."""


class Algorithm(Protocol):
    """A relaxation of synchronous training, as a value."""

    @property
    def choice(self) -> Choice:
        """The point of the plan space that this algorithm is: `build(choice)` gives an equal value back."""
        ...

    def init(self, bucket: Bucket, comm: Comm) -> State:
        """Make the state of one bucket: buffers once, residuals zero."""
        ...

    def on_ready(self, bucket: Bucket, state: State, comm: Comm, moment: Moment) -> None:
        """Replace the complete local gradients in bucket.flat by what the optimizer shall use.

        Runs in the engine's communication thread (on CUDA: on its stream), beside the rest of backward.
        """
        ...


@runtime_checkable
class Handover(Protocol):
    """An algorithm that can turn what it still owes into one tensor per bucket."""

    def settle(self, bucket: Bucket, state: State, comm: Comm) -> None:
        """Fold whatever is tied to this bucketing (such as a chunk owner's residual) into per-parameter tensors.

        Called before buckets are laid out anew, or before a switch. No communication.
        """
        ...
