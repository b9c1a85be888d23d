"""Training that a user brings as `module:function`: model, optimizer and batches, and what makes a loss of them."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

__all__ = ["FIELDS", "SHAPE", "OwnTraining", "described"]

SHAPE = (
    "end the function with `return model, optimizer, batches, loss_fn`; leave loss_fn out where the model returns its "
    "loss, and append a metric(model) to be judged by one"
)
"""Cure of a wrong shape."""
FIELDS = ("model", "optimizer", "batches", "loss_fn", "metric")
"""Names of what the function returns, in their order."""


@dataclasses.dataclass(kw_only=True)
class OwnTraining:
    """Model, optimizer and batches of a user's function, and its steps.

    A batch is a pair (inputs, target) where there is a loss_fn(output, target), which gets what the model makes of the
    inputs. Without one, the model is called with the whole batch and returns its loss: as a scalar, as the attribute or
    key `loss`, or first in a tuple. Dicts are given to a model by name, tuples and lists by place.
    """

    name: str
    """Place of the function, as in ``my:make``."""
    model: nn.Module
    optimizer: Optimizer
    batches: Iterable[Any] | Callable[[int], Any]
    """What can be iterated again and again, or a function of the number of the step, from 0."""
    loss_fn: Callable[[Any, Any], Tensor] | None = None
    metric: Callable[[nn.Module], float] | None = None
    """Figure of a trained model, of which less is better, such as the loss on held-out data."""
    _iterator: Iterator[Any] | None = dataclasses.field(default=None, init=False)

    @property
    def device(self) -> torch.device:
        """Device of the model's first parameter."""
        return next(self.model.parameters()).device

    def batch(self, step: int) -> Any:
        """Return the next batch, on the model's device.

        Raises:
            ValueError: There is none: what is iterated is empty, or has ended and cannot begin again.

        """
        if not isinstance(self.batches, Iterable):
            return _moved(self.batches(step), self.device)
        for _ in range(2):
            if self._iterator is None:
                self._iterator = iter(cast(Iterable[Any], self.batches))
            for batch in self._iterator:
                return _moved(batch, self.device)
            self._iterator = None
        raise ValueError(
            f"the batches of {self.name} ended at step {step}, and cannot be iterated again; return what can, such as "
            "a DataLoader or a list, or a function of the step."
        )

    def loss(self, model: nn.Module, step: int) -> Tensor:
        """Return the loss of the next batch, by the model itself or a wrapper of it.

        Raises:
            ValueError: The batch is no pair, or what comes out is no loss.

        """
        batch = self.batch(step)
        if self.loss_fn is None:
            loss = _loss_in(_call(model, batch))
        else:
            if not isinstance(batch, tuple | list) or len(cast(list[Any], batch)) != 2:
                raise ValueError(
                    f"{self.name} has a loss_fn(output, target), but a batch is {described(batch)}, not a pair "
                    "(inputs, target); yield pairs, or let the model return its loss and leave loss_fn out."
                )
            inputs, target = cast(list[Any], batch)
            loss = self.loss_fn(_call(model, inputs), target)
        if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
            who = "the model, which has no loss_fn beside it," if self.loss_fn is None else "loss_fn(output, target)"
            raise ValueError(
                f"the loss of {self.name} is {described(loss)}, but {who} must return a scalar tensor with a "
                f"gradient; {SHAPE}."
            )
        return loss


def described(value: Any) -> str:
    """Return what a value is, in the words of a sentence."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if fields := getattr(value, "_fields", None):
        return f"a {type(value).__name__} with {', '.join(fields)}"
    if isinstance(value, tuple | list):
        held = ", ".join(type(each).__name__ for each in cast(list[Any], value)) or "nothing"
        return f"a {type(value).__name__} of {held}"
    return "None" if value is None else f"a {type(value).__name__}"


def _call(model: nn.Module, inputs: Any) -> Any:
    if isinstance(inputs, Mapping):
        return model(**cast(Mapping[str, Any], inputs))
    return model(*inputs) if isinstance(inputs, tuple | list) else model(inputs)


def _loss_in(output: Any) -> Any:
    """Return the loss that a model has returned, alone or among other things."""
    if isinstance(output, Mapping) and "loss" in output:
        return cast(Mapping[str, Any], output)["loss"]
    if (loss := getattr(output, "loss", None)) is not None:
        return loss
    return cast(tuple[Any, ...], output)[0] if isinstance(output, tuple) and output else output


def _moved(batch: Any, device: torch.device) -> Any:
    """Return a batch with its tensors on a device."""
    if isinstance(batch, Tensor):
        return batch.to(device)
    if isinstance(batch, Mapping):
        return {key: _moved(value, device) for key, value in cast(Mapping[str, Any], batch).items()}
    if isinstance(batch, tuple | list):
        return [_moved(each, device) for each in cast(list[Any], batch)]
    return batch
