"""Sources of gradients: objects that give the buckets of a backward pass to a run."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Protocol

from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from pliant.comm.ddp_private import is_in_backward
from pliant.engine.ddp_hook import DDPHook, ReadyBucket, install_hook
from pliant.engine.joining import JoinState
from pliant.engine.nonfinite import Findings
from pliant.engine.parts import Part
from pliant.engine.unused_parameters import UnusedParameterCheck
from pliant.spec import Exchange, SyncPlan

__all__ = ["DDPSource", "GradientReceiver", "GradientSource", "NoGradients"]

_NOT_NOW: Any = 0
"""DDP's `broadcast_buffers` while ranks differ: false, and yet told from the False that a user sets meanwhile."""


class GradientReceiver(Protocol):
    """Protocol: receives the buckets of a source, as `BucketDispatcher` does."""

    broken_off: bool
    """Whether a pass has begun that did not come to its end."""
    step: int
    """Optimizer steps made."""
    num_backwards: int
    """Backward passes exchanged."""

    def begin(self) -> None:
        """Note that a pass hands over gradients; `receive` does so by itself."""
        ...

    def complete(self) -> None:
        """Note that a pass has handed over its last gradients, where no bucket says that it is the last."""
        ...

    def pop_error(self) -> Exception | None:
        """Return, once, why gradients that were exchanged must not be used."""
        ...

    def receive(self, ready: ReadyBucket) -> None:
        """Take a bucket whose gradients are complete."""
        ...

    def forget(self) -> None:
        """Forget a pass that was broken off."""
        ...

    def settle(self) -> None:
        """Use DDP's buckets from the next pass on."""
        ...


class GradientSource(Part):
    """Hands over the gradients of a model, bucket by bucket. A moment does nothing unless a source fills it."""

    looks_for_unused = False
    """Whether a pass may leave out parameters."""

    @property
    def num_passes(self) -> int:
        """Backward passes before the first step, where no receiver counts them."""
        return 0

    @property
    def joins(self) -> bool:
        """Whether ranks may be missing in the pass that has begun."""
        return False

    @property
    def is_settled(self) -> bool:
        """Whether buckets stay as they are."""
        return True

    @property
    def layout(self) -> Mapping[int, tuple[str, ...]]:
        """Bucket -> its parameters in the next pass; empty before the first."""
        return {}

    def begin_pass(self, drain: Callable[[], None]) -> None:
        """Prepare a forward pass after one that was broken off; `drain` waits for queued tasks."""

    def require_carried(self, plan: SyncPlan) -> None:
        """Raise ValueError for a plan that needs gradients."""

    def put_in_force(
        self, plan: SyncPlan, nodes: Mapping[str, Exchange], *, differ: bool, parts: Sequence[Part] = ()
    ) -> None:
        """Follow a plan: its size of buckets, and own buffers where ranks differ.

        Args:
            plan: The plan.
            nodes: Parameter -> its node.
            differ: Whether ranks have weights of their own.
            parts: Parts of the executor of the plan.

        """

    def weights_changed(self, *_: object) -> None:
        """Note that weights were written by hand."""

    def rescale(self, factor: float) -> None:
        """Scale gradients that it keeps itself by the change of the loss scale."""

    def meet(self) -> float:
        """Agree on the ranks that train in a pass that begins; return the factor of a mean over all ranks."""
        return 1.0

    def on_complete(self) -> None:
        """Note that a pass has handed over its last bucket."""

    def unused_parameters(self) -> Mapping[str, Tensor]:
        """Return the parameters that no rank has used in the last pass, by name."""
        return {}

    def pop_late_error(self, findings: Findings) -> Exception | None:
        """Return, once, an error of passes before that has become known since, in findings or elsewhere.

        Collective if there is one.
        """
        return findings.pop_late_error()


class NoGradients(GradientSource):
    """A module that hands over no gradients, since nothing around it collects them: weights are what it exchanges.

    Args:
        parameters: Name -> parameter, of those that are trained.
        leaves: Says of a plan whether it leaves all gradients with their rank.

    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor] = MappingProxyType({}),
        leaves: Callable[[SyncPlan], bool] = lambda plan: plan.leaves_gradients,
    ) -> None:
        self._leaves = leaves
        self._passes: Counter[str] = Counter()
        # A GradScaler may skip steps before it is found in the first that it makes.
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(partial(_count, self._passes, name))
            for name, parameter in parameters.items()
        ]

    @property
    def num_passes(self) -> int:
        """Backward passes before the first step."""
        return max(self._passes.values(), default=0)

    def before_step(self, optimizer: Optimizer, step: int) -> None:
        """Count passes no longer."""
        self.close()

    def close(self) -> None:
        """Remove the hooks from parameters."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def require_carried(self, plan: SyncPlan) -> None:
        """Raise ValueError for a plan that exchanges gradients."""
        if not self._leaves(plan):
            raise ValueError(
                "this run began on a plain module with a plan that exchanges weights only, so that nobody hands over "
                "its gradients, but the new plan exchanges gradients; wrap the module in DistributedDataParallel."
            )


def _count(passes: Counter[str], name: str, _: Tensor) -> None:
    passes[name] += 1


class DDPSource(GradientSource):
    """Source of a DDP model, which gives its buckets through DDP's communication hook.

    Args:
        ddp: The model.
        receiver: Receiver of the buckets.
        watch: Check of the parameters that got a gradient.
        joining: State of ranks of which some have no batches left.

    """

    def __init__(
        self,
        ddp: DistributedDataParallel,
        receiver: GradientReceiver,
        watch: UnusedParameterCheck,
        joining: JoinState,
    ) -> None:
        self._ddp, self._receiver, self._watch, self._joining = ddp, receiver, watch, joining
        self._hook: DDPHook = install_hook(ddp)
        self._shares_buffers = bool(ddp.broadcast_buffers)
        self._nodes: Mapping[str, Exchange] = {}
        self.looks_for_unused = bool(ddp.find_unused_parameters and not ddp.static_graph)
        self._hook.receive, self._hook.joining = receiver.receive, joining

    @property
    def joins(self) -> bool:
        """Whether ranks may be missing in the pass that has begun."""
        return self._joining.on

    @property
    def is_settled(self) -> bool:
        """Whether buckets stay as they are; a static graph's do not after its first pass."""
        return self._hook.settled

    @property
    def layout(self) -> Mapping[int, tuple[str, ...]]:
        """Bucket -> its parameters in the next pass; empty before the first."""
        return self._hook.layout

    def begin_pass(self, drain: Callable[[], None]) -> None:
        """Give DDP a new reducer after a pass that was broken off, whose end the old one waits for."""
        if self._receiver.broken_off:
            drain()
            self._receiver.forget()
            self._hook.renew(self._ddp)

    def put_in_force(
        self, plan: SyncPlan, nodes: Mapping[str, Exchange], *, differ: bool, parts: Sequence[Part] = ()
    ) -> None:
        """Set the size of buckets, and broadcast buffers only where ranks must have the same and the user wants it."""
        self._nodes = nodes
        self._heed_user()
        self._ddp.broadcast_buffers = _NOT_NOW if differ else self._shares_buffers
        self._hook.rebucket(self._ddp, plan.bucket_bytes)

    def meet(self) -> float:
        """Agree on the ranks that train in a pass of join(); return the factor of a mean over all ranks."""
        return self._joining.meet(trains=is_in_backward()) if self._joining.on else 1.0

    def on_complete(self) -> None:
        """Note that DDP has handed over the last bucket of a pass."""
        self._watch.complete = True

    def unused_parameters(self) -> Mapping[str, Tensor]:
        """Return the parameters that no rank has used in the last pass: DDP drops their results."""
        return {} if self._watch.all_touched else self._hook.unused_parameters(self._ddp)

    def before_step(self, optimizer: Optimizer, step: int) -> None:
        """Raise IncompleteBackwardError if gradients came but were not all exchanged."""
        self._watch.require_complete(lambda name: not self._nodes[name].leaves_gradients(step))

    def optimizer_stepped(self, optimizer: Optimizer, step: int) -> None:
        """Note that gradients have been used."""
        self._watch.end_step()

    def after_step(self, step: int) -> None:
        """Let DDP rebuild its buckets, if that is due."""
        if not self.joins and self._hook.settle(self._ddp):
            self._receiver.settle()

    def close(self) -> None:
        """Leave an ordinary DDP model."""
        self._heed_user()
        self._hook.receive, self._ddp.broadcast_buffers = None, self._shares_buffers
        if self._receiver.broken_off:
            self._hook.renew(self._ddp)
        self._watch.close()

    def _heed_user(self) -> None:
        """Keep what the user has said of buffers since the plan came in force."""
        if self._ddp.broadcast_buffers is not _NOT_NOW:
            self._shares_buffers = self._ddp.broadcast_buffers
