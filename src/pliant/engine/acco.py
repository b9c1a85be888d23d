"""Steps of owners beside the next backward pass, by way of weights estimated from half of the gradients (ACCO)."""

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from pliant.algorithms.executors.owner_ways import owner_ways
from pliant.buckets import as_real, real_shape, spans_of
from pliant.codecs import codec_from
from pliant.collectives.owner import ReduceToOwners
from pliant.engine.algorithm_state import AlgorithmState
from pliant.engine.comm_thread import CommThread, TaskHandle
from pliant.engine.comms import Comms
from pliant.engine.gradient_exchange import NonFiniteGradientError
from pliant.engine.optimizer_copy import unscale
from pliant.engine.owned_ranges import in_memory_order
from pliant.engine.owned_shard import OwnedShard
from pliant.engine.owner_step import OwnerStep
from pliant.engine.parts import Part
from pliant.engine.same_structure import require_same_structure
from pliant.engine.tracer import Tracer
from pliant.engine.weight_parts import first_bad
from pliant.engine.weight_spread import WeightSpread
from pliant.spec import Exchange

__all__ = ["AccoStep"]


class _Group:
    """Parameters of one node and one optimizer: gradients gathered here, and weights stepped by their owners.

    Args:
        names: The parameters.
        node: Their node.
        store: Nodes and parts of all parameters.
        owned: Owners of the optimizer's parameters.
        comms: Comms for these exchanges alone.
        optimizer: The optimizer.

    """

    def __init__(
        self,
        names: Sequence[str],
        node: Exchange,
        store: AlgorithmState,
        owned: OwnerStep,
        comms: Comms,
        optimizer: Optimizer,
    ) -> None:
        self.parameters = {name: store.parameters[name] for name in names}
        self._cut = {name for name in names if len(store.parts[name]) > 1}
        self._spans = spans_of(names, [real_shape(p) for p in self.parameters.values()])
        numel, like = sum(s.numel for s in self._spans), store.parameters[names[0]]
        self.pending = torch.zeros(numel, dtype=torch.float32, device=like.device)
        """Gradients of this rank, (numel,): of the first step, or of both."""
        self.pending_of = dict(zip(names, self.pending.split([s.numel for s in self._spans]), strict=True))
        """Parameter -> its part of them, a view."""
        self._unused = set(names)  # parameters without a gradient of this rank in what is pending
        comm, coded = comms.of(node), node.core.payload_codec
        codec, ways = None if coded is None else codec_from(coded), owner_ways(node, comm)
        self._reduce = ReduceToOwners(store.parts_in(self._spans), comm, like=self.pending, codec=codec, ways=ways)
        mine = [own for own in owned.owned_here if own.name in self.parameters]
        self.shard = OwnedShard(mine, optimizer, self._reduce.own)
        self.spreads = owned.spreads_of(names, store, comms)
        self._num_ranks, self._seed = comm.size, zlib.crc32(names[0].encode())

    @torch.no_grad()
    def gather(self, optimizer: Optimizer) -> str:
        """Add the optimizer's gradients to what is pending, and drop them; return which is not finite, or ""."""
        unscale(optimizer, self.parameters.values())
        for name, parameter in self.parameters.items():
            if (gradient := parameter.grad) is not None:
                flat = in_memory_order(gradient, parameter) if name in self._cut else as_real(gradient).flatten()
                self.pending_of[name].add_(flat)
                self._unused.discard(name)
                parameter.grad = None
        if (bad := first_bad(self.pending)) >= 0:
            self.pending.zero_()  # with the first step's, if it is the second: else no later step could be made
            self._unused = set(self.parameters)
        return "" if bad < 0 else next(span.name for span in reversed(self._spans) if span.offset <= bad)

    def load(self, pending: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
        """Go on from saved gradients and weights, by parameter; from the model's weights where there are none."""
        for name, x in self.pending_of.items():
            x.copy_(pending[name])
        self._unused = {name for name, x in self.pending_of.items() if not bool(x.any())}
        self.shard.begin(weights)

    def exchange(self, step: int, *, trial: bool) -> None:
        """Send gradients to owners, step, and send weights to all, for good or on trial. Collective."""
        self._reduce.sum(self.pending, step << 32 | self._seed)
        if trial:
            self.shard.step_on_trial(1 / self._num_ranks, self._unused)
        else:
            self.shard.step(0.5 / self._num_ranks, self._unused)
            self.pending.zero_()
            self._unused = set(self.parameters)
        for spread in self.spreads:
            spread.pack(self.shard.weights)
        if trial:
            self.shard.undo()
        for spread in self.spreads:
            spread.send(step)


class AccoStep(Part):
    """Exchanges of two kinds in turn, each beside the next step of a rank (Nabli et al., ACCO, arXiv:2406.02613).

    After the first step of a pair, owners step on trial with the mean of its gradients, and all ranks get what comes of
    it, th, after the second step, which has computed at theta. Then owners step for good with the mean of both, and
    all ranks get the new theta after the next step, which has computed at th:

        g1 at th_t;      beside it, theta_t comes
        g2 at theta_t;   beside it, th_{t+1} <- optimizer on trial(theta_t, mean g1)
        g1 at th_{t+1};  beside it, theta_{t+1} <- optimizer(theta_t, mean (g1 + g2) / 2)

    So no gradient is of older weights than one step, or of an estimate of them. The optimizer makes one step for two of
    the training loop. All ranks have equal weights after every step.

    Args:
        store: Nodes and parts of all parameters.
        owned: Owners of each optimizer's parameters.
        comms: Comms for these exchanges alone.
        tracer: Tracer of the run.

    """

    key = "gathered"
    checks_structure = True
    makes_up_for_skips = True
    keeps_from_joining = "this plan lets one rank step each parameter, and it would have to go on"

    def __init__(
        self, store: AlgorithmState, owned: Mapping[Optimizer, OwnerStep], comms: Comms, tracer: Tracer
    ) -> None:
        self._groups: dict[Optimizer, list[_Group]] = {}
        for optimizer, each in owned.items():
            of_node: dict[Exchange, list[str]] = {}
            for name in (n for n in each.parameters if store.nodes[n].steps_beside):
                of_node.setdefault(store.nodes[name], []).append(name)
            self._groups[optimizer] = [
                _Group(names, node, store, each, comms, optimizer) for node, names in of_node.items()
            ]
        self._comms, self._tracer = comms, tracer
        self._hooks = [each.register_state_dict_pre_hook(self._finish_step) for each in owned]
        self._hooks += [each.register_load_state_dict_pre_hook(self._finish_step) for each in owned]
        self._comm_thread = CommThread(next(iter(store.parameters.values())).device, "pliant-acco", tracer)
        self._half = False
        """Whether one step of a pair is made."""
        self._coming: TaskHandle | None = None
        """Exchange whose weights the model has not taken."""

    @property
    def _all(self) -> list[_Group]:
        return [group for groups in self._groups.values() for group in groups]

    def before_step(self, optimizer: Optimizer, step: int) -> None:
        """Take an optimizer's gradients, so that it steps nothing itself."""
        self._wait()
        for group in self._groups.get(optimizer, ()):
            if bad := group.gather(optimizer):
                raise NonFiniteGradientError(
                    f"in step {step} rank {self._comms.all.rank} has a NaN or Inf in the gradient of {bad}, and has "
                    "not sent it. Lower the learning rate or clip."
                )

    def after_step(self, step: int) -> None:
        """Take the weights that have come, and send what was gathered: for good after the second of two steps."""
        self._take()
        self._start(step, trial=not self._half)
        self._half = not self._half

    def settle(self, step: int) -> None:
        """Bring the exchange in flight to its end; the model takes its weights in the next step all the same."""
        self._comm_thread.drain()

    def hand_back(self, step: int) -> None:
        """Step for good with what was gathered, and give all ranks the weights. Collective."""
        self._take()
        if self._half:
            for group in self._all:
                group.pending.mul_(2)  # it is all that there is of the pair
            self._start(step, trial=False)
            self._half = False
            self._take()
        self._comm_thread.drain()

    def abandon(self) -> None:
        """Drop the exchange in flight, which may fail since other ranks may be lost."""
        self._coming = None

    def close(self) -> None:
        """End the communication thread, and close the comm."""
        for hook in self._hooks:
            hook.remove()
        self._comm_thread.close()
        self._comms.all.close()

    def stats(self) -> dict[str, float]:
        """Return the time of the exchanges."""
        return {"exchange_s": self._comm_thread.busy_s}

    def explain(self) -> str:
        """Say what is kept, and when the optimizer steps."""
        numel = sum(group.pending.numel() for group in self._all)
        return (
            f"Acco: the optimizer makes one step for two of yours, with the mean of their gradients; {8 * numel} bytes "
            f"of gradients and {4 * numel} of weights are kept beside the model."
        )

    @property
    def state(self) -> dict[str, Any]:
        """Gradients gathered and weights that are coming, by parameter, and which step of a pair it is."""
        names = {name: p for group in self._all for name, p in group.parameters.items()}
        coming = {name: p.detach().clone() for name, p in names.items()}
        if self._coming is not None:
            for spread in self._spreads:
                spread.read(coming)
        pending = {name: x for group in self._all for name, x in group.pending_of.items()}
        flags = torch.tensor([self._half, self._coming is not None], dtype=torch.int64)
        return {"pending": pending, "coming": coming, "counters": flags}

    @state.setter
    def state(self, saved: Any) -> None:
        half, in_flight = saved["counters"].tolist()
        for group in self._all:
            group.load(saved["pending"], {} if half else saved["coming"])  # the first step's is an estimate
        for spread in self._spreads:
            spread.fill(saved["coming"])
        self._half = bool(half)
        self._coming = self._comm_thread.submit(lambda: None) if in_flight else None

    def check_state(self, saved: Any, step: int) -> None:
        """Raise ValueError for a state of other parameters, or one that no run can have come to."""
        require_same_structure(saved, self.state, self.key)
        if not set(saved["counters"].tolist()) <= {0, 1}:
            raise ValueError(f"the state is damaged: pairs of steps are counted {saved['counters'].tolist()}.")

    @property
    def _spreads(self) -> list[WeightSpread]:
        return [spread for group in self._all for spread in group.spreads]

    def _start(self, step: int, *, trial: bool) -> None:
        groups = self._all
        for group in groups:
            group.shard.follow_schedule()

        def exchange() -> None:
            for group in groups:
                group.exchange(step, trial=trial)

        self._coming = self._comm_thread.submit(exchange, name="gradients to owners", step=step - 1)

    def _finish_step(self, *_: object) -> None:
        """Let no state be read or loaded while owners step."""
        self._comm_thread.drain()

    def _wait(self) -> None:
        """Wait for the exchange in flight, which uses what is pending."""
        if self._coming is not None:
            with self._tracer.record_wait():
                self._coming.wait()

    def _take(self) -> None:
        """Wait for the exchange in flight, and write its weights to the model."""
        self._wait()
        if self._coming is not None:
            self._coming = None
            for spread in self._spreads:
                spread.unpack(own=True)
