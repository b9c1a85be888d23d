"""Was every gradient exchanged? A parameter that got none would leave the ranks to drift apart unseen."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

__all__ = ["BackwardWatch", "IncompleteBackwardError"]


class IncompleteBackwardError(RuntimeError):
    """A step was asked for, but not every bucket was exchanged; the message names the parameters without gradient."""


class BackwardWatch:
    """Notes which parameters got a gradient since the last synchronized forward pass.

    DDP itself notices an unused parameter only in the next forward pass, after the optimizer has taken a step with
    gradients that differ between ranks.
    """

    def __init__(self, ddp: DistributedDataParallel, parameters: Mapping[str, Tensor]) -> None:
        self._ddp = ddp
        self._parameters = parameters
        self._expected = False
        self._touched: set[str] = set()
        self.complete = False
        """Whether DDP has handed over the last bucket of this backward pass."""
        self._hooks = [ddp.register_forward_pre_hook(lambda *_: self._begin())]
        self._hooks += [p.register_post_accumulate_grad_hook(self._note(n)) for n, p in parameters.items()]

    def demand_complete(self) -> None:
        """Raise IncompleteBackwardError if gradients came but were not all exchanged."""
        if not (self._expected and self._touched) or self.complete:
            return
        missing = [name for name in self._parameters if name not in self._touched]
        shown = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        raise IncompleteBackwardError(
            f"{len(missing)} parameters got no gradient in this backward pass ({shown}), so their buckets were not "
            "exchanged, and a step now would let the ranks drift apart. Wrap the model with "
            "DistributedDataParallel(..., find_unused_parameters=True), or take these parameters out of the model. "
            "No weight was changed."
        )

    def close(self) -> None:
        """Remove every hook."""
        for hook in self._hooks:
            hook.remove()

    def _begin(self) -> None:
        if torch.is_grad_enabled() and self._ddp.training:
            self._expected = self._ddp.require_backward_grad_sync
            self._touched.clear()
            self.complete = False

    def _note(self, name: str):  # noqa: ANN202  a hook for one parameter
        def hook(_: Tensor) -> None:
            self._touched.add(name)

        return hook
