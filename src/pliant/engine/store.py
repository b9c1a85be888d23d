"""The state of algorithms, kept per parameter: it survives another bucketing, a switch of plan, and a restart."""

from collections.abc import Mapping

import torch
from torch import Tensor

from pliant.algorithms.base import Algorithm, State
from pliant.algorithms.build import build
from pliant.buckets import Bucket
from pliant.spec import Choice

__all__ = ["Store"]

OWED = ("residual", "pending")
"""Slots that hold gradients which the optimizer has not seen yet."""


class Store:
    """Parameter -> slot -> tensor.

    Slots with one element per element of the parameter are views into flat tensors, one per bucket, so that saving
    needs no copy and algorithms work on whole buckets.
    """

    def __init__(self, parameters: Mapping[str, Tensor], choices: Mapping[str, Choice]) -> None:
        self.algorithms: dict[Choice, Algorithm] = {choice: build(choice) for choice in set(choices.values())}
        self.choices = dict(choices)
        self.tensors: dict[str, dict[str, Tensor]] = {}
        for name, parameter in parameters.items():
            slots = self.algorithms[choices[name]].slots(tuple(parameter.shape))
            self.tensors[name] = {
                slot: torch.zeros(parameter.shape if shape is None else shape, device=parameter.device)
                for slot, shape in slots.items()
            }

    def state_of(self, bucket: Bucket, algorithm: Algorithm) -> State:
        """Gather the state of a bucket's parameters; slots per element become views of one new flat tensor."""
        kept = {span.name: algorithm.slots(span.shape) for span in bucket.spans}
        slots = {slot: shape for own in kept.values() for slot, shape in own.items()}
        flat = {slot: self._flatten(bucket, slot) for slot, shape in slots.items() if shape is None}
        own = {
            slot: {name: self.tensors[name][slot] for name, its in kept.items() if slot in its}
            for slot, shape in slots.items()
            if shape is not None
        }
        return State(flat=flat, of=own)

    def _flatten(self, bucket: Bucket, slot: str) -> Tensor:
        flat = torch.empty(bucket.numel, device=bucket.flat.device)
        for span in bucket.spans:
            view = flat[span.offset : span.offset + span.numel].view(span.shape)
            view.copy_(self.tensors[span.name][slot])
            self.tensors[span.name][slot] = view
        return flat

    def adopt(self, old: "Store") -> dict[str, Tensor]:
        """Take over what an earlier plan kept; return per parameter what this plan has no slot for.

        Equal choices keep all slots. Otherwise gradients that the old algorithm still owed go into the new residual;
        where there is none, they are returned, to be added to the next gradient. Momenta are not gradients: what an
        exchange of momentum owes ends with it.
        """
        unplaced: dict[str, Tensor] = {}
        for name, slots in old.tensors.items():
            if old.choices[name] == self.choices[name]:
                for slot, tensor in slots.items():
                    self.tensors[name][slot].copy_(tensor)
                continue
            if old.choices[name].what != "gradient":
                continue
            owed = [tensor for slot, tensor in slots.items() if slot.rpartition("/")[2] in OWED]
            if not owed:
                continue
            total = torch.stack(owed).sum(0)
            if self.choices[name].what == "gradient" and "residual" in self.tensors[name]:
                self.tensors[name]["residual"].copy_(total)
            elif bool(total.any()):
                unplaced[name] = total
        return unplaced

    def norm(self, slot: str) -> float:
        """Return the Euclidean norm of a slot over all parameters of this rank."""
        squares = [float(t.square().sum()) for slots in self.tensors.values() for s, t in slots.items() if s == slot]
        return sum(squares) ** 0.5
