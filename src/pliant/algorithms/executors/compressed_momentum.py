"""Optimizer of 1-bit Adam and the exchange of its momentum."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from pliant.accelerator import is_accelerator
from pliant.algorithms.base import State, StateSpec, StepContext
from pliant.algorithms.executors.coded_average import coded_average
from pliant.algorithms.own_optimizer import OwnOptimizer
from pliant.buckets import Bucket, as_real
from pliant.codecs import all_finite, codec_from, finite_flag, keep_unless
from pliant.comm.base import Comm
from pliant.schedules.scheduled_comm import scheduled
from pliant.spec import CompressedMomentum

__all__ = ["CompressedMomentumExecutor", "OneBitAdam"]


class OneBitAdam(OwnOptimizer):
    """Adam whose momentum is exchanged in one bit once its variance has settled.

    Tang et al., 1-bit Adam (arXiv:2102.02888), Algorithm 1. Before `warmup_steps` the gradients are averaged exactly
    and the step is Adam's. From then on the variance v is frozen, the momentum m is what ranks exchange (with error
    feedback on both sides), and what arrives in ``p.grad`` *is* the averaged momentum:

        p <- p - lr clamp((m / (1 - beta_1^t)) / (sqrt(v_w / (1 - beta_2^w)) + eps), -1, 1),   w = warmup_steps

    The bias correction of the frozen variance is frozen with it. In the second stage an element moves by at most lr. A
    coded momentum gives every element of a block the same magnitude, which an element with hardly any variance (a dead
    unit, a rare embedding row) would divide by almost nothing; users of the paper's method mask such by hand. Weight
    decay is decoupled, as in AdamW, so that it acts in both stages. Clipping ``p.grad`` after the warm-up clips a
    momentum: clip before, or not at all.

    Args:
        params: Parameters or groups, as for every torch optimizer.
        lr: Learning rate.
        betas: Decay of momentum and variance; beta_1 must be the same in all groups.
        eps: Added to the denominator.
        weight_decay: Decoupled weight decay.
        warmup_steps: Steps of plain Adam; the paper and its users found 15 to 25 % of all steps to be right.

    >>> optimizer = OneBitAdam([torch.nn.Parameter(torch.zeros(2))], lr=0.01, warmup_steps=50)
    >>> str(optimizer.algorithm)
    'CompressedMomentum(beta=0.9, warmup_steps=50)'

    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        warmup_steps: int,
    ) -> None:
        if warmup_steps < 1:
            raise ValueError(
                f"warmup_steps is {warmup_steps}, but the variance must be estimated first; use 1 or more."
            )
        if lr < 0 or eps < 0 or weight_decay < 0 or not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"lr {lr}, eps {eps}, weight_decay {weight_decay} must be >= 0, betas {betas} in [0, 1).")
        self.warmup_steps, self._has_turned = warmup_steps, False
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "warmup_steps": self.warmup_steps}  # else torch's copies and pickles lose it

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, with settings of its own or the defaults.

        Raises:
            ValueError: Its beta_1 is not that of the other groups; nothing has changed.

        """
        super().add_param_group(param_group)
        if len(found := {group["betas"][0] for group in self.param_groups}) > 1:
            self.param_groups.pop()
            raise ValueError(
                f"the groups have different beta_1, {' and '.join(map(str, sorted(found)))}, but one momentum is "
                "exchanged; give all the same."
            )

    @property
    def algorithm(self) -> CompressedMomentum:
        """The exchange that belongs to this optimizer: what `relax(..., "onebit_adam")` uses."""
        return CompressedMomentum(beta=self.param_groups[0]["betas"][0], warmup_steps=self.warmup_steps)

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Take one step of all groups, in the stage of those that have made most: the exchange counts as they do."""
        self._has_turned = any(state["step"] >= self.warmup_steps for state in self.state.values() if state)
        return super().step(closure)

    def _step_group(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        for p in parameters:
            self._step_one(p, group)

    def _step_one(self, p: Tensor, group: dict[str, Any]) -> None:
        if p.grad is None:
            return
        beta1, beta2 = group["betas"]
        state: dict[str, Any] = self.state[p]
        if not state:
            state["step"] = torch.tensor(0.0, dtype=torch.float32)
            state["exp_avg"] = torch.zeros_like(p)
            state["exp_avg_sq"] = torch.zeros_like(p)
        before, frozen = float(state["step"]), self._has_turned
        if frozen and before < self.warmup_steps:  # without a gradient in some steps: what comes is a momentum even so
            state["exp_avg_sq"].mul_((1 - beta2**self.warmup_steps) / (1 - beta2**before) if before else 1.0)
            state["step"].fill_(self.warmup_steps)
        state["step"] += 1
        t = float(state["step"])
        # Complex numbers count as pairs of real ones, as in torch's Adam.
        p, m, v, g = (as_real(x) for x in (p, state["exp_avg"], state["exp_avg_sq"], p.grad))
        if frozen:
            m.copy_(g)
        else:
            m.lerp_(g, 1 - beta1)
            v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
        p.mul_(1 - group["lr"] * group["weight_decay"])
        variance_steps = min(t, self.warmup_steps)
        denominator = (v.sqrt() / (1 - beta2**variance_steps) ** 0.5).add_(group["eps"])
        if frozen:
            p.add_((m / denominator).div_(1 - beta1**t).clamp_(-1, 1), alpha=-group["lr"])
        else:
            p.addcdiv_(m, denominator, value=-group["lr"] / (1 - beta1**t))


@dataclass(frozen=True)
class CompressedMomentumExecutor:
    """Exchange of the momentum of 1-bit Adam.

    Warm-up: g <- mean g, exactly, and m <- beta m + (1-beta) g is followed. Then, per bucket: m_i <- beta m + (1-beta)
    g_i; average m_i by scatter - reduce - gather with C and feedback on both sides; the result replaces the gradient,
    and m. Bytes: those of `ScatterGatherExecutor` with the same codec.
    """

    node: CompressedMomentum

    def slots(self, shape: tuple[int, ...], comm: Comm) -> StateSpec:
        """The momentum and the residual."""
        return {"momentum": None, "residual": None}

    def prepare(self, bucket: Bucket, comm: Comm) -> Any:
        """Make the payload buffers of the exchange."""
        return coded_average(
            codec_from(self.node.averaging.codec),
            bucket.numel,
            scheduled(comm, self.node.averaging.schedule),
            chunk_bytes=self.node.averaging.chunk_bytes,
            owner_feedback=True,
            device=bucket.flat.device,
        )

    def on_ready(self, bucket: Bucket, state: State, comm: Comm, context: StepContext) -> None:
        """Average the gradient (warm-up) or the momentum."""
        g, m = bucket.flat, state.flat["momentum"]
        if context.step < self.node.warmup_steps:
            g.mul_(1 / comm.size)
            comm.all_reduce(g).wait()
            self._follow(m, g, 1 - self.node.beta)
            return
        g.mul_(1 - self.node.beta).add_(m, alpha=self.node.beta)
        state.workspace(g, context.seed, state.flat["residual"])
        self._follow(m, g, 1.0)

    def _follow(self, m: Tensor, g: Tensor, share: float) -> None:
        """Move the momentum to g by a share of the way, unless g is not finite."""
        if is_accelerator(g.device):
            keep_unless(finite_flag(g), m, torch.lerp(m, g, share) if share < 1 else g)
        elif all_finite(g):
            m.lerp_(g, share) if share < 1 else m.copy_(g)

    def check_optimizer(self, optimizer: Optimizer) -> None:
        """Raise ValueError unless it is a OneBitAdam with the same warm-up, which expects a momentum in ``p.grad``."""
        if not isinstance(optimizer, OneBitAdam):
            raise ValueError(
                f"the optimizer is {type(optimizer).__name__}, but onebit_adam hands over momentum in p.grad, which "
                "only pliant.OneBitAdam understands; use it, or another algorithm."
            )
        theirs, ours = optimizer.algorithm, self.node
        if (theirs.beta, theirs.warmup_steps) != (ours.beta, ours.warmup_steps):
            raise ValueError(
                f"the optimizer has beta_1 {theirs.beta} and warmup_steps {theirs.warmup_steps}, the plan has "
                f"{ours.beta} and {ours.warmup_steps}; both must turn at the same step with the same momentum."
            )

    def start_from(self, optimizer: Optimizer, parameter: Tensor, slots: Mapping[str, Tensor]) -> None:
        """Continue the momentum that the optimizer has."""
        if "exp_avg" in optimizer.state.get(parameter, {}):
            slots["momentum"].copy_(as_real(optimizer.state[parameter]["exp_avg"]))
