"""Checks that every gradient was exchanged: a parameter left out would let ranks diverge unnoticed."""

import weakref
from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from pliant.engine.hooks import Hook

__all__ = ["FrozenParameters", "IncompleteBackwardError", "UnusedParameterCheck", "begin_anew"]


class IncompleteBackwardError(RuntimeError):
    """A step was asked for, but gradients came that were not exchanged; the message names why, and what to call."""


class UnusedParameterCheck:
    """Records which parameters got a gradient since the last synchronized forward pass, or the last step.

    DDP itself notices an unused parameter only in the next forward pass, after a step with gradients that differ
    between ranks. It never notices a model that is not called, such as the module inside it.

    Args:
        ddp: The model that hands over buckets.
        parameters: Name -> parameter, of those that are trained.
        begins: A method, held weakly, that is called before each forward pass that is followed by a backward pass.
        wrapped_here: Whether relax() has made the DDP, so that a training loop may still call the module.

    """

    def __init__(
        self,
        ddp: DistributedDataParallel,
        parameters: Mapping[str, Tensor],
        begins: Callable[[], None],
        *,
        wrapped_here: bool,
    ) -> None:
        self._ddp, self._begins = ddp, weakref.WeakMethod(begins)
        self._parameters = parameters
        self._wrapped_here = wrapped_here
        self._synchronizes: bool | None = None
        """Whether exchanges follow the last forward pass, which `no_sync` forbids; None if there was none."""
        self._touched: set[str] = set()
        self.complete = False
        """Whether DDP has handed over the last bucket of this backward pass."""
        self._hooks = [ddp.register_forward_pre_hook(Hook(self._begin))]
        # DDP holds parameters where the garbage collector cannot see it, so that they must not hold the run.
        note = weakref.WeakMethod(self._note)
        self._hooks += [p.register_post_accumulate_grad_hook(partial(_call, note, n)) for n, p in parameters.items()]

    def require_complete(self, needed: Callable[[str], bool]) -> None:
        """Raise IncompleteBackwardError if gradients came but were not all exchanged.

        Args:
            needed: Says of a parameter whether its gradient has to be exchanged in this step.

        """
        if self.complete or self._synchronizes is False:
            return
        touched = {name for name in self._touched if self._parameters[name].grad is not None}
        missing = [name for name in self._parameters if name not in self._touched]
        if not touched:
            return
        if self._synchronizes and (frozen := [n for n in missing if not self._parameters[n].requires_grad]):
            raise IncompleteBackwardError(
                f"{len(frozen)} parameters were frozen after relax() ({_list_names(frozen)}), but DDP waits for their "
                "gradients, so their buckets were not exchanged, and a step now would let the ranks drift apart. To "
                f"train without them, {begin_anew(wrapped=True, wrapped_here=self._wrapped_here)}. No weight was "
                "changed."
            )
        if self._synchronizes and missing:
            raise IncompleteBackwardError(
                f"{len(missing)} parameters got no gradient in this backward pass ({_list_names(missing)}), so their "
                "buckets were not exchanged, and a step now would let the ranks drift apart. Wrap the model with "
                "DistributedDataParallel(..., find_unused_parameters=True), or take these parameters out of the "
                "model. No weight was changed."
            )
        if any(needed(name) for name in touched):
            raise IncompleteBackwardError(
                f"{len(touched)} parameters got a gradient ({_list_names(sorted(touched))}), but DDP exchanged none "
                f"of it, and a step now would let the ranks drift apart: {self._cause}. No weight was changed."
            )

    @property
    def _cause(self) -> str:
        """Return why no bucket came, and the cure."""
        if self._synchronizes:
            return (
                "with static_graph=True DDP leaves out the first pass of a model whose forward() returns its tensors "
                "in an object, such as a dataclass; return them in a tuple, a list or a dict, or leave static_graph out"
            )
        if self._wrapped_here:
            return (
                "the relaxed model was not called; relax() has wrapped the module in DistributedDataParallel, so call "
                "run.model instead of the module"
            )
        return (
            "the relaxed model was not called; call the DistributedDataParallel that relax() was given (run.model), "
            "not the module in it, or give relax() the one that the training loop calls"
        )

    @property
    def all_touched(self) -> bool:
        """Whether all parameters got a gradient in this pass on this rank."""
        return len(self._touched) == len(self._parameters)

    def end_step(self) -> None:
        """Begin a new record, since the gradients so far were used."""
        self._synchronizes, self.complete = None, False
        self._touched.clear()

    def close(self) -> None:
        """Remove every hook that it has."""
        for hook in self._hooks:
            hook.remove()

    def _begin(self, *_: object) -> None:
        if torch.is_grad_enabled():
            if (begins := self._begins()) is not None:
                begins()
            self._synchronizes, self.complete = bool(self._ddp.require_backward_grad_sync), False
            self._touched.clear()

    def _note(self, name: str, _: Tensor) -> None:
        if self._ddp.require_backward_grad_sync if self._synchronizes is None else self._synchronizes:
            self._touched.add(name)


class FrozenParameters:
    """Parameters that were not trained when a run began, so that nothing exchanges them.

    Args:
        module: The model.
        cure: What to do to train them; see `begin_anew`.

    """

    def __init__(self, module: nn.Module, cure: str) -> None:
        self._frozen, self._cure = {name: p for name, p in module.named_parameters() if not p.requires_grad}, cure

    def require_frozen(self, optimizer: Optimizer) -> None:
        """Raise IncompleteBackwardError if an optimizer would step some of them."""
        trained = {id(p): name for name, p in self._frozen.items() if p.requires_grad and p.grad is not None}
        stepped = [id(p) for group in optimizer.param_groups for p in group["params"]] if trained else []
        if names := [trained[key] for key in stepped if key in trained]:
            raise IncompleteBackwardError(
                f"{len(names)} parameters have a gradient ({_list_names(names)}) that nothing exchanges, since they "
                "were frozen when relax() was called, and a step now would let the ranks drift apart. To train them, "
                f"{self._cure}; or freeze them again. No weight was changed."
            )


def begin_anew(*, wrapped: bool, wrapped_here: bool) -> str:
    """Return what to do where other parameters are to be trained than when a run began.

    A DDP cannot be left: as long as it lives, its hooks meet the gradients of one that wraps the module anew.

    Args:
        wrapped: Whether the model is in a DDP, which exchanges those that were trained when it was made.
        wrapped_here: Whether relax() has made it.

    """
    if not wrapped:
        return "close() the run and call relax() again"
    first = "relax() is called" if wrapped_here else "DistributedDataParallel wraps the module"
    return f"choose what is trained before {first}, in a new process that goes on from a checkpoint"


def _call(method: "weakref.WeakMethod[Callable[[str, Tensor], None]]", name: str, gradient: Tensor) -> None:
    if (note := method()) is not None:
        note(name, gradient)


def _list_names(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
