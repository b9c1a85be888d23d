"""The arms of a comparison: torch's DDP with its hooks, and every algorithm of Pliant, behind one face."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast, get_args, get_type_hints

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
from pliant.algorithms import ALGORITHMS, recommended
from pliant.cli.bench.peers import peer_plan
from pliant.cli.bench.rhythm import rhythm_of
from pliant.cli.bench.setup import AUTO, PEER_ARMS, PLIANT_ARMS, settings_of
from pliant.engine.choose import plan_from
from pliant.spec import CodecSpec, Exchange, Graph

__all__ = ["POST_LOCAL_PERIOD", "POWERSGD_RANK", "Arm", "plan_named", "prepare", "warmup_steps_of"]

POWERSGD_RANK = 1
"""Of torch's hook."""
POST_LOCAL_PERIOD = 8
"""Of torch's post-local SGD: that of `local_sgd`."""
_ONE_BUCKET_MB = 10_000
R = TypeVar("R")
_OWN_MOMENTUM = ("topk_dgc", "dgc")
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

    def sent_bytes(self) -> float | None:
        """Return bytes that this rank's run has sent, if Pliant counts them."""
        return None if self.run is None else self.run.stats()["sent_bytes"]

    def exposed_s(self) -> float | None:
        """Return the time that this rank's run has waited for communication after backward."""
        return None if self.run is None else self.run.stats()["exposed_s"]

    @property
    def period(self) -> int:
        """Steps after which this arm has done everything that it ever does."""
        return POST_LOCAL_PERIOD if self.name == "ddp-postlocal" else rhythm_of(self._nodes).period

    @property
    def spacing(self) -> int:
        """Steps from one exchange to the next, of whatever part of the model."""
        return self.period if self.name == "ddp-postlocal" else rhythm_of(self._nodes).spacing

    @property
    def delay_steps(self) -> int:
        """Steps that are made before the result of an exchange is waited for."""
        return rhythm_of(self._nodes).delay_steps

    @property
    def free(self) -> bool:
        """Whether each rank goes at its own pace."""
        return any(node.timing.pace == "free" for node in self._nodes)

    @property
    def apart(self) -> bool:
        """Whether the ranks' models differ."""
        return self.name == "ddp-postlocal" or any(node.exchanges_weights for node in self._nodes)

    @property
    def _nodes(self) -> list[Exchange]:
        return [] if self.run is None else [rule.exchange for rule in self.run.plan.rules]

    @property
    def module(self) -> nn.Module:
        """The model without DDP around it."""
        return self.model.module if isinstance(self.model, DistributedDataParallel) else self.model

    def judged(self) -> nn.Module:
        """Return the model to evaluate: where ranks differ, a copy with what they come to together. Collective."""
        if not self.apart:
            return self.module
        together = copy.deepcopy(self.module)
        together.load_state_dict(_mean_state(self.module) if self.run is None else self.run.consolidate())
        return together

    def settle(self) -> None:
        """Wait until nothing of this arm is on its way, so that the next has the network for itself. Collective."""
        if self.run is not None:
            self.run.state_dict()

    def close(self) -> None:
        """Remove hooks."""
        if self.run is not None:
            self.run.close()


def _mean_state(module: nn.Module) -> dict[str, Any]:
    """Return a module's state with the mean over ranks of all that is floating-point. Collective."""
    state = {name: value.detach().clone() for name, value in module.state_dict().items()}
    for value in state.values():
        if value.is_floating_point():
            dist.all_reduce(value)
            value.div_(dist.get_world_size())
    return state


def warmup_steps_of(total_steps: int) -> int:
    """Return how long arms that have to warm up do so: a fifth of the training."""
    return max(total_steps // 5, 1)


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
) -> Arm:
    """Wrap a module for one arm, with SGD or AdamW. Collective: every rank makes the same arms in the same order."""
    optimizer = _optimizer(name, module, lr, total_steps, adam=adam)
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
    bare, settings = settings_of(name)
    what = _called(name, pliant.Auto, settings) if bare == AUTO else _what(name, total_steps)
    run = pliant.relax(model, optimizer, what, timeout_s=timeout_s, elastic=elastic)
    return Arm(name=name, model=model, optimizer=optimizer, run=run)


def _optimizer(name: str, module: nn.Module, lr: float, total_steps: int, *, adam: bool) -> Optimizer:
    if name == "onebit_adam":
        adam_lr = lr if adam else ADAM_LR
        return pliant.OneBitAdam(module.parameters(), lr=adam_lr, warmup_steps=warmup_steps_of(total_steps))
    if settings_of(name)[0] == "demo":
        return _plain_sgd(name, module, lr, adam=adam)
    if adam:
        return AdamW(module.parameters(), lr=lr)
    if name == "ddp-adam":
        return Adam(module.parameters(), lr=ADAM_LR)
    own, settings = settings_of(name)
    keeps_momentum = own in _OWN_MOMENTUM or bool(settings.get("momentum"))
    return SGD(module.parameters(), lr=lr, momentum=0.0 if keeps_momentum else 0.9)


def _plain_sgd(name: str, module: nn.Module, lr: float, *, adam: bool) -> Optimizer:
    """Return SGD without momentum, for an arm that keeps one: at Adam's rate if what arrives are signs."""
    if settings_of(name)[1].get("signed", 1):
        return SGD(module.parameters(), lr=lr if adam else SIGNED_LR)
    if adam:
        raise ValueError(
            f"{name!r} steps by a mean as SGD does, but this model trains at Adam's rate; leave it signed."
        )
    # Each gradient counts once, where a momentum of 0.9 counts it ten times.
    return SGD(module.parameters(), lr=10 * lr)


def plan_named(name: str) -> "pliant.SyncPlan":
    """Return the plan of an arm with settings, as in 'diloco(period=64)', for those who train nothing.

    Raises:
        ValueError: There is no such algorithm, or it does not take the settings.

    """
    bare = settings_of(name)[0]
    if bare not in PLIANT_ARMS:
        raise ValueError(f"there is no algorithm {bare!r}; there are {', '.join(PLIANT_ARMS)}, or the path of a plan.")
    optimizer = _optimizer(bare, nn.Linear(1, 1), ADAM_LR, 100, adam=True)
    return plan_from(_what(name, 100), optimizer)


def _what(name: str, total_steps: int) -> "str | pliant.SyncPlan":
    """Return what to relax with; settings change the algorithm alone, small parameters are spared as by bare name."""
    bare, settings = settings_of(name)
    if bare in PEER_ARMS:
        return peer_plan(bare, cast(dict[str, float], settings), name)
    warmup_steps = int(settings.pop("warmup_steps", 0))
    if not settings and not warmup_steps and bare in ALGORITHMS and ALGORITHMS[bare].bare:
        return name
    if bare == "qsgd4":
        algorithm: Exchange = pliant.qsgd(bits=4)
    elif bare == "topk_dgc":
        algorithm = pliant.topk(momentum=0.9, ramp_steps=total_steps // 5)
    elif bare == "post_local_sgd":
        algorithm = pliant.post_local_sgd(warmup_steps_of(total_steps))
    else:
        if bare == "late":
            settings.setdefault("algorithm", "allreduce")
        algorithm = _called(name, getattr(pliant, bare), {key: _setting(key, value) for key, value in settings.items()})
    if warmup_steps:
        algorithm = pliant.after(warmup_steps, pliant.bf16(), then=algorithm)
    return recommended(algorithm, name)


def _called(name: str, make: Callable[..., R], settings: Mapping[str, Any]) -> R:
    try:
        return make(**settings)
    except TypeError as error:
        raise ValueError(f"{settings_of(name)[0]} does not take the settings of {name!r}: {error}") from error


def _setting(key: str, value: float | str) -> Any:
    """Return what a setting's word stands for: an algorithm, a codec or a graph with default settings."""
    if not isinstance(value, str) or key in ("agreement", "feedback"):
        return value
    if key == "codec":
        return CodecSpec(name=value)
    if key == "graph":
        return _graph(value)
    if value not in ALGORITHMS or value == "onebit_adam":
        raise ValueError(f"there is no algorithm {value!r} to average with; there are {', '.join(ALGORITHMS)}.")
    return getattr(pliant, value)()


def _graph(kind: str) -> Graph:
    kinds = get_args(get_type_hints(Graph)["kind"])
    if kind not in kinds or kind == "matrix":
        raise ValueError(f"there is no graph {kind!r}; there are {', '.join(k for k in kinds if k != 'matrix')}.")
    return Graph(kind=cast(Any, kind))


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
