"""A run: one model, one optimizer, one plan in force."""

import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypedDict

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from pliant.algorithms.base import ChecksOptimizer, StartsFromOptimizer
from pliant.comm.base import Comm
from pliant.comm.hierarchical import by_hosts
from pliant.comm.recorded import RecordedComm
from pliant.engine.agreement import check_agreement, fingerprints
from pliant.engine.choose import What, agree_on, plan_from
from pliant.engine.exchange import Exchanger, NonFinite
from pliant.engine.front import Arrival, attach
from pliant.engine.lane import Lane
from pliant.engine.resume import LaidOutAsSaved, read_state, write_state
from pliant.engine.start import steps_taken
from pliant.engine.store import Store
from pliant.engine.torchrun import hosts_from_torchrun
from pliant.engine.watch import BackwardWatch
from pliant.spec import SyncPlan

__all__ = ["Run", "Stats"]


class Stats(TypedDict):
    """What a run has cost on this rank so far."""

    steps: int
    """Optimizer steps, those before the run counted in if the optimizer counts."""
    exchanges: int
    """Backward passes that were synchronized."""
    sent_bytes: int
    received_bytes: int
    exposed_s: float
    """Time in which backward was done and the exchange was not."""
    exchange_s: float
    """Time in which the lane was at work: waiting for the network, and codecs."""
    codec_s: float
    """The part of exchange_s that was not spent waiting for the network."""
    residual_norm: float
    """Euclidean norm of what this rank's error feedback still owes."""
    last_agreement_step: int
    """The last step after which replicas were found equal; -1 before the first check."""


class Run:
    """What `relax` returns. Use it as a context manager, or call close()."""

    def __init__(
        self,
        model: DistributedDataParallel,
        optimizer: Optimizer,
        plan: SyncPlan,
        *,
        comm: RecordedComm,
        hosts: Sequence[Sequence[int]] | None,
        agreement_every: int,
        nonfinite: NonFinite,
    ) -> None:
        self.model = model
        self._optimizer = optimizer
        self._comm = comm
        self._comms: dict[bool, Comm] = {False: comm}
        self._hosts = hosts
        self._agreement_every = agreement_every
        self._nonfinite: NonFinite = nonfinite
        self._parameters = {name: p for name, p in model.module.named_parameters() if p.requires_grad}
        self._device = next(iter(self._parameters.values())).device
        self._step = steps_taken(optimizer)
        self._turn = 0
        self._exposed_s = 0.0
        self._last_agreement_step = -1
        self._held: list[Arrival] = []
        self._as_saved: LaidOutAsSaved | None = None
        self.plan, self._exchanger = plan, self._make_exchanger(plan, None)
        self._front = attach(model)
        self._lane = Lane(self._device)
        self._watch = BackwardWatch(model, self._parameters)
        self._front.receive = self._receive
        self._hooks = [
            optimizer.register_step_pre_hook(lambda *_: self._before_step()),
            optimizer.register_step_post_hook(lambda *_: self._after_step()),
        ]
        self._open = True

    # - The moments

    def _receive(self, arrival: Arrival) -> None:
        """A bucket's gradients are complete. Runs in the autograd thread."""
        self._held.append(arrival)
        if arrival.last or (self.plan.rules[0].choice.order == "ready" and self._as_saved is None):
            held, self._held = self._held, []
            if self._as_saved is not None:
                self._submit_as_saved(held, self._as_saved)
                self._as_saved = None
            else:
                for each in held:
                    self._submit(each)
        if arrival.last:
            self._watch.complete = True
            self._turn += 1
            # Runs when the whole backward is done, before DDP hands the buckets over: errors surface in backward().
            torch.autograd.Variable._execution_engine.queue_callback(self._wait_for_exchange)  # pyright: ignore

    def _submit(self, arrival: Arrival) -> None:
        bucket = self._exchanger.laid_out(arrival.index, arrival.names, arrival.shapes, arrival.buffer)
        bad = self._exchanger.inspect(bucket, arrival.buffer)  # here, since the lane may be what everybody waits for
        step, turn = self._step, self._turn

        def task() -> None:
            self._exchanger.run(bucket, arrival.buffer, bad, step=step, turn=turn)

        self._lane.submit(task, done=arrival.finish)

    def _submit_as_saved(self, arrivals: list[Arrival], as_saved: LaidOutAsSaved) -> None:
        step, turn = self._step, self._turn

        def finish() -> None:
            for arrival in arrivals:
                arrival.finish()

        self._lane.submit(lambda: as_saved.run(arrivals, self._exchanger, step=step, turn=turn), done=finish)

    def _wait_for_exchange(self) -> None:
        start_s = time.perf_counter()
        self._lane.drain()
        self._exposed_s += time.perf_counter() - start_s

    def _before_step(self) -> None:
        self._lane.drain()
        self._watch.demand_complete()

    def _after_step(self) -> None:
        self._step += 1
        if self._agreement_every and self._step % self._agreement_every == 0 and self._comm.size > 1:
            mine, step = fingerprints(self._parameters), self._step

            def check() -> None:
                check_agreement(list(self._parameters), mine, self._comm, self._device, step)
                self._last_agreement_step = step

            self._lane.submit(check)

    # - The face

    def stats(self) -> Stats:
        """Return what the run has cost on this rank. No communication."""
        return Stats(
            steps=self._step,
            exchanges=self._turn,
            sent_bytes=self._comm.sent_bytes,
            received_bytes=self._comm.received_bytes,
            exposed_s=self._exposed_s,
            exchange_s=self._lane.busy_s,
            codec_s=max(0.0, self._lane.busy_s - self._comm.wait_s),
            residual_norm=self._exchanger.store.norm("residual"),
            last_agreement_step=self._last_agreement_step,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's state as tensors under ``rank<i>``, so that ranks do not overwrite each other.

        Made for `torch.distributed.checkpoint`; `torch.save` per rank works as well. The tensors are live.
        """
        self._lane.drain()
        return write_state(self._exchanger, self.plan, self._comm, step=self._step, turn=self._turn)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state_dict of the same plan and number of ranks, bit for bit.

        Raises:
            ValueError: The state was made under another plan or number of ranks, or by another rank.

        """
        self._lane.drain()
        resumed = read_state(state, self._exchanger, self.plan, self._comm)
        self._step, self._turn, self._as_saved = resumed.step, resumed.turn, resumed.layout

    def switch(self, what: What) -> None:
        """Put another plan in force, on all ranks between the same two steps.

        Gradients that the old plan still owes pass to the new one: into its residual, or into its next exchange.

        Raises:
            ValueError: Ranks ask for different plans, or the plan does not fit the optimizer. Nothing has changed.

        """
        self._lane.drain()
        plan = plan_from(what, self._optimizer)
        agree_on(plan, self._comm, self._device)
        self._exchanger = self._make_exchanger(plan, self._exchanger.store)
        self.plan = plan
        self._as_saved = None

    def close(self) -> None:
        """Finish what is in flight and remove every hook; the model is then an ordinary DDP model again.

        Raises what went wrong in the last exchange, if nothing has raised it yet. A second call does nothing.
        """
        if not self._open:
            return
        self._open = False
        try:
            self._lane.drain()
        finally:
            self._front.receive = None
            for hook in self._hooks:
                hook.remove()
            self._watch.close()
            self._lane.close()
            self._comm.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            self.close()
        except Exception:  # what ended the block matters more than what then met the last exchange
            if error is None:
                raise

    # - Plans

    def _make_exchanger(self, plan: SyncPlan, old: Store | None) -> Exchanger:
        layers = _owner_classes(self.model.module)
        choices = {n: plan.choice_for(n, layers[n], p.numel()) for n, p in self._parameters.items()}
        if any(choice.hierarchical for choice in choices.values()):
            self._know_hosts()
        store = Store(self._parameters, choices)
        for algorithm in store.algorithms.values():
            inner: Any = getattr(algorithm, "inner", algorithm)
            if isinstance(inner, ChecksOptimizer):
                inner.check_optimizer(self._optimizer)
        owed: dict[str, Tensor] = {} if old is None else store.adopt(old)
        for name, parameter in self._parameters.items():
            algorithm = store.algorithms[choices[name]]
            inner = getattr(algorithm, "inner", algorithm)
            if isinstance(inner, StartsFromOptimizer):
                inner.start_from(self._optimizer, parameter, store.tensors[name])
        return Exchanger(store, self._comms, self._nonfinite, owed)

    def _know_hosts(self) -> None:
        """Make the two-level comm, once. Collective, as making and switching plans is."""
        if True in self._comms:
            return
        hosts = self._hosts if self._hosts is not None else hosts_from_torchrun(self._comm, self._device)
        if hosts is None:
            raise ValueError("this plan is hierarchical, but the hosts are not known; pass hosts= to relax().")
        self._comms[True] = by_hosts(self._comm, hosts)


def _owner_classes(module: nn.Module) -> dict[str, str]:
    """Return, for each parameter's full name, the class name of the layer that owns it."""
    return {
        f"{prefix}.{name}" if prefix else name: type(layer).__name__
        for prefix, layer in module.named_modules(remove_duplicate=False)
        for name, _ in layer.named_parameters(recurse=False, remove_duplicate=False)
    }
