"""Samples of a batch, in whatever nesting of tensors a model takes it."""

from collections.abc import Mapping
from typing import Any, cast

from torch import Tensor

__all__ = ["batch_size", "first_samples"]


def batch_size(inputs: Any) -> int:
    """Return the number of samples: the length of the first tensor that is found, 0 if there is none."""
    if isinstance(inputs, Tensor):
        return inputs.shape[0] if inputs.dim() else 0
    if isinstance(inputs, Mapping):
        inputs = tuple(cast(Mapping[Any, Any], inputs).values())
    if isinstance(inputs, (tuple, list)):
        return next((num for each in cast(tuple[Any, ...], inputs) if (num := batch_size(each))), 0)
    return 0


def first_samples(inputs: Any, num: int, few: int) -> Any:
    """Return nested inputs with the first few of `num` samples, without their graph; tensors are views."""
    if isinstance(inputs, Tensor):
        return (inputs[:few] if inputs.dim() and inputs.shape[0] == num else inputs).detach()
    if type(inputs) is dict:
        return {key: first_samples(value, num, few) for key, value in cast(dict[Any, Any], inputs).items()}
    if type(inputs) in (tuple, list):
        kept = [first_samples(value, num, few) for value in inputs]
        return tuple(kept) if type(inputs) is tuple else kept
    return inputs
