"""Ranges of parameters that one rank owns, as views of weights, gradients and optimizer states."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from pliant.accelerator import finish_copies
from pliant.buckets import as_real, real_shape
from pliant.engine.algorithm_state import AlgorithmState
from pliant.layouts.parts import Range, joint_numel, place_parts
from pliant.spec import Placement
from pliant.spec.owners import ELEMENTWISE_OPTIMIZERS, placement_of

__all__ = ["OwnedRanges", "in_memory_order", "is_elementwise", "pack", "place_owners", "unpack", "whole_state"]


@dataclass(frozen=True, kw_only=True, eq=False)
class OwnedRanges:
    """All that one rank owns of one parameter.

    Ranges count elements as they lie in memory, which is how they lie in DDP's buckets.
    """

    name: str
    parameter: Tensor
    ranges: tuple[Range, ...]
    """Half-open, in order; a complex parameter has one range, of its pairs of real numbers."""

    @property
    def numel(self) -> int:
        """Elements that the rank owns."""
        return sum(stop - start for start, stop in self.ranges)

    @property
    def is_whole(self) -> bool:
        """Whether the rank owns all of the parameter, which is then never looked at in parts."""
        return self.numel == math.prod(real_shape(self.parameter))

    def views(self, x: Tensor) -> list[Tensor]:
        """Return views of what is owned of x, a tensor of the parameter's shape; of a copy if it lies otherwise."""
        if self.is_whole:
            return [as_real(x)]
        flat = in_memory_order(x, self.parameter)
        return [flat[start:stop] for start, stop in self.ranges]

    def empty(self) -> Tensor:
        """Return a parameter of its own for what is owned, not filled: a vector, or of the shape of a whole one."""
        like = self.parameter
        if self.is_whole:
            return torch.empty_like(like, memory_format=torch.contiguous_format).requires_grad_()
        return torch.empty(self.numel, dtype=like.dtype, device=like.device, requires_grad=True)

    def cut(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return the owned part of an optimizer's state: one vector of each tensor of the parameter's shape.

        Vectors of all elements, as they lie in memory, are cut as well; a state that is cut already stays as it is.
        """
        shaped = {key: self._shaped(x) for key, x in state.items()}
        if self.is_whole:
            return shaped
        return {key: torch.cat(self.views(x)) if self._is_like(x) else x for key, x in shaped.items()}

    def is_cut(self, state: Mapping[str, Any]) -> bool:
        """Say whether all vectors of a state are of what is owned alone."""
        return all(tuple(x.shape) == (self.numel,) for x in state.values() if isinstance(x, Tensor) and x.dim())

    def is_of_all(self, state: Mapping[str, Any]) -> bool:
        """Say whether all tensors of a state, but for counters, have the parameter's shape."""
        return all(self._is_like(x) for x in state.values() if isinstance(x, Tensor) and x.dim())

    def _shaped(self, x: Any) -> Any:
        """Return a vector of all elements in the parameter's shape; all else as it is."""
        like = self.parameter
        if like.dim() < 2 or not isinstance(x, Tensor) or tuple(x.shape) != (like.numel(),):
            return x
        found = torch.empty_like(like, dtype=x.dtype, device=x.device)
        found.as_strided((x.numel(),), (1,)).copy_(x)
        return found

    def _is_like(self, x: Any) -> bool:
        return isinstance(x, Tensor) and x.dim() > 0 and x.shape == self.parameter.shape


def in_memory_order(x: Tensor, like: Tensor) -> Tensor:
    """Return the elements of x, (numel,), as those of a tensor of its shape lie in memory: a view, or of a copy."""
    if x.stride() != like.stride():
        x = torch.empty_like(like, dtype=x.dtype, device=x.device).copy_(x)
    return x.detach().as_strided((x.numel(),), (1,))


def whole_state(owned: Sequence[tuple[OwnedRanges, Mapping[str, Any]]]) -> dict[str, Any]:
    """Return the optimizer's state of one parameter from the parts of all its owners."""
    first, state = owned[0]
    if first.is_whole:
        return dict(state)
    found: dict[str, Any] = {}
    for key, value in state.items():
        if not isinstance(value, Tensor) or tuple(value.shape) != (first.numel,):
            found[key] = value
            continue
        found[key] = torch.empty_like(first.parameter, dtype=value.dtype, device=value.device)
        for ranges, part in owned:
            unpack(part[key], ranges.views(found[key]))
    return found


def is_elementwise(optimizer: Optimizer) -> bool:
    """Say whether an optimizer's step of an element depends on that element's own gradients alone.

    Those of torch in `ELEMENTWISE_OPTIMIZERS`, and each whose class says so itself, by ``is_elementwise = True``.
    """
    kind = type(optimizer)
    of_torch = getattr(torch.optim, kind.__name__, None) is kind and kind.__name__ in ELEMENTWISE_OPTIMIZERS
    return of_torch or bool(getattr(kind, "is_elementwise", False))


def place_owners(store: AlgorithmState, size: int, optimizers: Mapping[int, Optimizer]) -> None:
    """Cut the parameters of a store that are to have owners into parts, each of one of `size` ranks, alike on all.

    Args:
        store: Nodes of all parameters.
        size: Number of ranks.
        optimizers: Parameter's id -> the optimizer that steps it.

    Raises:
        ValueError: A placement is for another number of ranks, or cuts where the optimizer needs whole parameters.

    """
    for node in dict.fromkeys(each for each in store.nodes.values() if each.has_owners):
        placement = placement_of(node)
        held = {name: store.parameters[name] for name, own in store.nodes.items() if own == node}
        numels = [math.prod(real_shape(p)) for p in held.values()]
        together = [_together(name, p, placement, optimizers.get(id(p))) for name, p in held.items()]
        itemsizes = [p.dtype.to_real().itemsize for p in held.values()]
        parts = place_parts(numels, together, itemsizes, placement, size)
        store.parts.update({name: own.by_owner() for name, own in zip(held, parts, strict=True)})


def _together(name: str, parameter: Tensor, placement: Placement, optimizer: Optimizer | None) -> int:
    """Return how many elements of a parameter stay together."""
    shape, cut = real_shape(parameter), placement.cut
    whole = max(1, math.prod(shape))
    if cut != "whole" and optimizer is not None and not is_elementwise(optimizer):
        if cut != "auto":
            raise ValueError(
                f"the plan cuts {name} (cut={cut!r}), but {type(optimizer).__name__} is not known to step each element "
                "by itself; set cut='whole', or, if it does, is_elementwise = True in its class."
            )
        return whole
    if parameter.is_complex() or not _is_dense(parameter):
        return whole
    if cut == "rows" and shape and parameter.stride(0) * parameter.shape[0] != whole:
        return whole  # its rows do not lie one behind the other
    return joint_numel(shape, cut)


def _is_dense(x: Tensor) -> bool:
    """Say whether the elements of a tensor lie one behind the other in memory, in whichever order."""
    expected = 1
    for stride, extent in sorted(zip(x.stride(), x.shape, strict=True)):
        if extent != 1 and stride != expected:
            return False
        expected *= extent
    return True


def pack(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    """Copy tensors, one after another, to flat, (sum of their elements,); complex ones as pairs of real numbers."""
    reals = [as_real(tensor) for tensor in tensors]
    for part, tensor in zip(flat.split([t.numel() for t in reals]), reals, strict=True):
        part.view(tensor.shape).copy_(tensor, non_blocking=True)
    if reals and flat.device != reals[0].device:
        finish_copies(reals[0].device)


@torch.no_grad()
def unpack(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    """Copy flat, (sum of their elements,), to tensors; pairs of it to those that are complex.

    What is in host memory is not to be overwritten before the next `pack` on the same stream, which waits for copies.
    """
    reals = [as_real(tensor) for tensor in tensors]
    for part, tensor in zip(flat.split([t.numel() for t in reals]), reals, strict=True):
        tensor.copy_(part.view(tensor.shape), non_blocking=True)
