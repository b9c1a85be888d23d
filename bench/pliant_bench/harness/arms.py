"""The arms of a comparison: torch's DDP with its hooks, and every algorithm of Pliant, behind one face."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import GradBucket  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Adam, AdamW, Optimizer

import pliant
from pliant.accelerator import synchronize
from pliant.algorithms.by_name import plan_of_text
from pliant.engine.plan_resolution import resolve_plan
from pliant.profiling import OwnTraining
from pliant.spec import DecoupledMomentum, Exchange, MomentumDifferences
from pliant_bench.harness.exchange_period import period_of
from pliant_bench.harness.names import AUTO, TORCH_ARMS, bare_name, settings_of, text_of, warmup_steps_of

__all__ = ["POST_LOCAL_PERIOD", "POWERSGD_RANK", "Arm", "mean_states", "plan_of_arm", "prepare"]

POWERSGD_RANK = 1
"""Of torch's hook."""
POST_LOCAL_PERIOD = 8
"""Of torch's post-local SGD: that of `local_sgd`."""
_ONE_BUCKET_MB = 10_000
ADAM_LR = 2e-3
SIGNED_LR = 2e-3
"""Where every element moves by the learning rate in every step."""


@dataclass(kw_only=True)
class Arm:
    """A model that trains one way."""

    name: str
    model: nn.Module
    optimizer: Optimizer
    run: "pliant.Run | None"
    steps_made: int = 0
    own: OwnTraining | None = None
    """Training that a user brought, of which this is the model and the optimizer."""

    def sent_bytes(self) -> float | None:
        """Return bytes that this rank's run has sent, if Pliant counts them."""
        return None if self.run is None else self.run.stats()["sent_bytes"]

    def exposed_s(self) -> float | None:
        """Return the time that this rank's run has waited for communication after backward."""
        return None if self.run is None else self.run.stats()["exposed_s"]

    @property
    def period(self) -> int:
        """Steps after which this arm has done everything that it ever does."""
        return POST_LOCAL_PERIOD if self.name == "ddp-postlocal" else period_of(self._nodes).period

    @property
    def spacing(self) -> int:
        """Steps from one exchange to the next, of whatever part of the model."""
        return self.period if self.name == "ddp-postlocal" else period_of(self._nodes).spacing

    @property
    def delay_steps(self) -> int:
        """Steps that are made before the result of an exchange is waited for."""
        return period_of(self._nodes).delay_steps

    @property
    def free(self) -> bool:
        """Whether each rank goes at its own pace, as far ahead of the others as the plan lets it."""
        return any(node.timing.pace == "free" for node in self._nodes)

    @property
    def unbounded(self) -> bool:
        """Whether a fast rank may be any number of steps ahead of a slow one."""
        return self.free and all(node.staleness_bound is None for node in self._nodes)

    @property
    def apart(self) -> bool:
        """Whether the ranks' models differ."""
        return self.name == "ddp-postlocal" or (self.run is not None and self.run.plan.exchanges_weights)

    @property
    def _nodes(self) -> list[Exchange]:
        return [] if self.run is None else [rule.exchange for rule in self.run.plan.rules]

    @property
    def module(self) -> nn.Module:
        """The model without DDP around it."""
        return self.model.module if isinstance(self.model, DistributedDataParallel) else self.model

    def copied_state(self) -> dict[str, Tensor]:
        """Return a copy of this rank's weights and buffers, as they are while exchanges are on their way."""
        return {name: value.detach().clone() for name, value in self.module.state_dict().items()}

    def evaluated(self, state: dict[str, Tensor] | None = None) -> nn.Module:
        """Return the model to evaluate: where ranks differ, a copy with what they come to together. Collective.

        Args:
            state: Weights and buffers of all ranks, see `mean_states`, that count in the place of what they are now.

        """
        if not self.apart and not state:
            return self.module
        if not state:
            state = mean_states([self.copied_state()])[0] if self.run is None else self.run.consolidate()
        together = copy.deepcopy(self.module)
        together.load_state_dict(state)
        return together

    def synchronize(self) -> None:
        """Wait until its device has done all that was launched."""
        synchronize(next(self.module.parameters()).device)

    def settle(self) -> None:
        """Wait until nothing of this arm is on its way, so that the next has the network for itself. Collective."""
        if self.run is not None:
            self.run.state_dict()

    def close(self) -> None:
        """Remove the hooks of its run."""
        if self.run is not None:
            self.run.close()


def _auto(name: str, total_steps: int) -> pliant.Auto:
    settings: dict[str, Any] = {"num_steps": total_steps, "experience": None, **settings_of(name)}
    try:
        return pliant.Auto(**settings)
    except TypeError as error:
        raise ValueError(f"auto does not take the settings of {name!r}: {error}") from error


def mean_states(states: Sequence[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
    """Return states with the means over ranks of all that is floating-point, in one message. Collective.

    Args:
        states: Of this rank, for example at each point of its curve; as many on all ranks.

    """
    values = [value for state in states for value in state.values() if value.is_floating_point()]
    together = torch.cat([value.flatten() for value in values])
    dist.all_reduce(together)
    means = iter(together.div_(dist.get_world_size()).split([value.numel() for value in values]))
    return [
        {name: next(means).view_as(v) if v.is_floating_point() else v for name, v in state.items()} for state in states
    ]


def _bf16_hook(state: object, bucket: GradBucket) -> Future[Tensor]:
    """Divide, cast, sum in bfloat16, cast back: torch's own hook refuses Gloo by its name."""
    del state
    buffer = bucket.buffer()
    wire = buffer.div_(dist.get_world_size()).to(torch.bfloat16)
    work = dist.all_reduce(wire, async_op=True)
    if work is None:
        raise RuntimeError("this rank is not in the default group, so it cannot all-reduce.")

    def cast_back(_: Future[list[Tensor]]) -> Tensor:
        return buffer.copy_(wire)

    return work.get_future().then(cast_back)


def prepare(
    name: str,
    module: nn.Module,
    lr: float,
    total_steps: int,
    bucket_mb: float,
    *,
    adam: bool = False,
    timeout_s: float = 300.0,
    elastic: "pliant.Elastic | None" = None,
    optimizer: Optimizer | None = None,
) -> Arm:
    """Wrap a module for one arm, with SGD or AdamW, or the one given. Collective: all ranks make the same arms."""
    optimizer = _optimizer(name, module, lr, total_steps, adam=adam) if optimizer is None else optimizer
    if name == "compute":
        return Arm(name=name, model=module, optimizer=optimizer, run=None)
    if name.startswith("ddp"):
        ddp = _torch_ddp(name, module, bucket_mb, total_steps)
        if name == "ddp-postlocal":
            # Here, since importing it compiles a dozen optimizers and warns that the compiler is deprecated.
            from torch.distributed.optim import PostLocalSGDOptimizer  # pyright: ignore[reportPrivateImportUsage]

            averager = PeriodicModelAverager(POST_LOCAL_PERIOD, warmup_steps_of(total_steps))
            optimizer = PostLocalSGDOptimizer(optimizer, averager)
        return Arm(name=name, model=ddp, optimizer=optimizer, run=None)
    model = module
    if elastic is None:
        model = DistributedDataParallel(module, bucket_cap_mb=bucket_mb, gradient_as_bucket_view=True)
    what = _auto(name, total_steps) if bare_name(name) == AUTO else plan_of_arm(name, total_steps, optimizer)
    run = pliant.relax(model, optimizer, what, timeout_s=timeout_s, elastic=elastic)
    return Arm(name=name, model=model, optimizer=optimizer, run=run)


def _optimizer(name: str, module: nn.Module, lr: float, total_steps: int, *, adam: bool) -> Optimizer:
    if name == "onebit_adam":
        adam_lr = lr if adam else ADAM_LR
        return pliant.OneBitAdam(module.parameters(), lr=adam_lr, warmup_steps=warmup_steps_of(total_steps))
    if name == "mt_dao":
        return pliant.SlowAdamW(module.parameters(), lr=lr if adam else ADAM_LR)
    if name == "ddp-adam" and not adam:
        return Adam(module.parameters(), lr=ADAM_LR)
    foreign = name in TORCH_ARMS or bare_name(name) == AUTO
    core = None if foreign else plan_of_arm(name, total_steps).rules[-1].exchange.core
    if isinstance(core, DecoupledMomentum):
        return _plain_sgd(name, module, lr, signed=core.signed, adam=adam)
    if adam:
        return AdamW(module.parameters(), lr=lr)
    if isinstance(core, MomentumDifferences):
        return _plain_sgd(name, module, lr, signed=False, adam=False)
    return SGD(module.parameters(), lr=lr, momentum=0.0 if getattr(core, "momentum", 0.0) else 0.9)


def _plain_sgd(name: str, module: nn.Module, lr: float, *, signed: bool, adam: bool) -> Optimizer:
    """Return SGD without momentum, for an arm that keeps one: at Adam's rate if what arrives are signs."""
    if signed:
        return SGD(module.parameters(), lr=lr if adam else SIGNED_LR)
    if adam:
        raise ValueError(
            f"{name!r} steps by a mean as SGD does, but this model trains at Adam's rate; leave it signed."
        )
    # Each gradient counts once, where a momentum of 0.9 counts it ten times.
    return SGD(module.parameters(), lr=10 * lr)


def plan_of_arm(name: str, total_steps: int = 100, optimizer: Optimizer | None = None) -> pliant.SyncPlan:
    """Return the plan of an arm of Pliant's, or of a baseline, for a training of so many steps.

    Raises:
        ValueError: There is no such algorithm, or it does not take the settings.

    """
    text = text_of(name, total_steps)
    plan = plan_of_text(text) if optimizer is None else resolve_plan(text, optimizer)
    return replace(plan, name=name)


def _torch_ddp(name: str, module: nn.Module, bucket_mb: float, total_steps: int) -> DistributedDataParallel:
    if name == "ddp-powersgd":
        # On Gloo the hook aborts with more than one bucket; a size that is asked for is that of the first as well.
        ddp = DistributedDataParallel(module, bucket_cap_mb=_ONE_BUCKET_MB, gradient_as_bucket_view=True)
        state = PowerSGDState(None, matrix_approximation_rank=POWERSGD_RANK, start_powerSGD_iter=2)
        ddp.register_comm_hook(state, powerSGD_hook)
        return ddp
    ddp = DistributedDataParallel(module, bucket_cap_mb=bucket_mb, gradient_as_bucket_view=True)
    if name == "ddp-bf16":
        ddp.register_comm_hook(None, _bf16_hook)
    if name == "ddp-postlocal":
        # Without an all-reduce in a subgroup: a host is one rank. Buffers are each rank's own, as in Pliant's arms.
        ddp.broadcast_buffers = False
        state = PostLocalSGDState(None, None, warmup_steps_of(total_steps), post_local_gradient_allreduce=False)
        ddp.register_comm_hook(state, post_localSGD_hook)
    return ddp
