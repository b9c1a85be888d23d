"""One model of all ranks, where weights are exchanged and ranks differ."""

import contextlib
from collections.abc import Generator

import torch
from torch import Tensor, nn

from pliant.comm.recorded import RecordedComm
from pliant.engine.averaging import consolidated_state
from pliant.engine.bucket_dispatcher import BucketDispatcher
from pliant.engine.comm_thread import CommThread
from pliant.engine.plan_executor import PlanExecutor
from pliant.engine.relaxed_model import RelaxedModel
from pliant.engine.skipping import CountsSkips
from pliant.engine.sources import GradientSource

__all__ = ["Consolidates"]


class Consolidates(CountsSkips):
    """Base of a run that gives the mean of its ranks' models."""

    _comm: RecordedComm
    _comm_thread: CommThread
    _dispatcher: BucketDispatcher
    _executor: PlanExecutor
    _module: nn.Module
    _relaxed: RelaxedModel
    _source: GradientSource
    _shows_mean = False
    """Whether the model holds the mean over ranks now, and not this rank's weights."""

    @property
    def ranks_differ(self) -> bool:
        """Whether each rank has weights of its own under the plan in force, and takes means of them now and then."""
        return self._executor.ranks_differ

    def consolidate(self, *, whole: bool = True) -> dict[str, Tensor]:
        """Return the model to evaluate or export, with the names of the module's state_dict. Collective.

        Parameters and floating-point buffers are means over ranks where they differ, else rank 0's. The run does not
        change.

        Args:
            whole: Of a sharded model, whether every rank gets whole tensors; else its part of them, as DTensors.

        """
        self.catch_up()
        self._comm_thread.drain()
        for served in self._executor.served:
            served.settle(self._dispatcher.step)
        replicas = self._relaxed.replicas(self._comm)
        return consolidated_state(self._module, self._comm, replicas, differ=self.ranks_differ, whole=whole)

    @contextlib.contextmanager
    def consolidated(self) -> Generator[None]:
        """Let the model hold the mean over ranks within a block, to evaluate or export it. Collective when it begins.

        At the end of the block each rank has its own weights and buffers back, to the bit. Where ranks do not differ,
        as with all plans that exchange gradients, nothing happens. A step or a checkpoint within the block is refused.

        >>> import torch
        >>> from pliant import relax, run_world
        >>> def train(context):
        ...     model = torch.nn.Linear(1, 1, bias=False)
        ...     optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        ...     with relax(model, optimizer, "diloco(8)", group=context.process_group) as run:
        ...         run.model(torch.full((1, 1), float(context.rank))).sum().backward()
        ...         optimizer.step()
        ...         with run.consolidated():
        ...             return model.weight.item()
        >>> first, second = run_world(2, train)
        >>> first == second
        True

        """
        if self._shows_mean or not self.ranks_differ:
            yield
            return
        mean = self.consolidate(whole=False)
        live = {name: value for name, value in self._module.state_dict().items() if name in mean}
        own = {name: value.detach().clone() for name, value in live.items()}
        self._put(mean, live)
        self._shows_mean = True
        try:
            yield
        finally:
            self._shows_mean = False
            self._put(own, live)

    @torch.no_grad()
    def _put(self, values: dict[str, Tensor], into: dict[str, Tensor]) -> None:
        for name, value in values.items():
            into[name].copy_(value)
        self._source.weights_changed()

    def require_own_weights(self, what: str) -> None:
        """Raise RuntimeError while the model holds the mean over ranks, if something needs this rank's weights."""
        if self._shows_mean:
            raise RuntimeError(
                f"{what} needs this rank's own weights, but within `with run.consolidated():` the model holds the mean "
                "over ranks, which only evaluation may use; end the block first."
            )
