"""All parts of a run that carry out one plan."""

from dataclasses import dataclass
from typing import TypeVar

from pliant.engine.gradient_exchange import GradientExchange
from pliant.engine.owners import Owners
from pliant.engine.parts import Part
from pliant.spec import Delayed

__all__ = ["PlanExecutor"]

P = TypeVar("P", bound=Part)


@dataclass(frozen=True, kw_only=True)
class PlanExecutor:
    """All parts that carry out a plan."""

    gradients: GradientExchange
    """Exchange of gradients and momenta."""
    owners: Owners
    """Owners of parameters."""
    checks: tuple[Part, ...] = ()
    """Checks of a step, before any other part sends something in it."""
    served: tuple[Part, ...] = ()
    """Owners that step beside what a rank computes: server threads, or exchanges of ACCO."""
    beside: tuple[Part, ...] = ()
    """Other parts that the plan needs: exchanges of weights, ratio controllers, curvature monitors."""

    @property
    def parts(self) -> tuple[Part, ...]:
        """All parts, in the order in which their moments are called."""
        return (*self.checks, *self.served, self.owners, *self.beside)

    def of(self, kind: type[P]) -> list[P]:
        """Return the parts of a type."""
        return [part for part in self.parts if isinstance(part, kind)]

    @property
    def ranks_differ(self) -> bool:
        """Whether ranks have weights and buffers of their own, and must not wait for each other in DDP."""
        return any(part.lets_ranks_differ for part in self.parts)

    @property
    def keeps_from_joining(self) -> str:
        """Reason why a rank that makes no steps cannot stand in for one that does, or ""."""
        inside = (inner for node in self.gradients.store.nodes.values() for inner in node.walk())
        if any(isinstance(node, Delayed) and node.compensation for node in inside):
            return "this plan corrects gradients by what weights have done, and its own would stand still"
        return next((part.keeps_from_joining for part in self.parts if part.keeps_from_joining), "")

    def settle(self, step: int) -> None:
        """Bring exchanges in flight to a state that can be saved; at a free pace this is collective."""
        for part in self.parts:
            part.settle(step)

    def hand_back(self, step: int) -> None:
        """Finish exchanges in flight, and give all ranks the state that owners held. Collective."""
        for part in self.parts:
            part.hand_back(step)

    def hand_back_owned(self, step: int) -> None:
        """Give all ranks the state that owners held, and leave exchanges of weights, which have failed. Collective."""
        for part in (*self.served, self.owners):
            part.hand_back(step)

    def close(self) -> None:
        """Drop exchanges in flight, and end all parts."""
        for part in self.parts:
            part.abandon()
            part.close()
