"""Figures of what a relaxation does to a training, from few of its steps, without waiting or communication."""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, isfinite

import torch
from torch import Tensor

from pliant.autotune.tunable_run import TunableRun
from pliant.buckets import as_real
from pliant.codecs import Codec, codec_from
from pliant.engine.nodes import layer_classes
from pliant.engine.relaxed_model import list_tensors, module_of
from pliant.engine.shard_optimizer import as_local
from pliant.profiling.sharded_parameters import ShardedParameters
from pliant.spec import Exchange

__all__ = ["QualityMetrics", "QualityProbe"]

_SAMPLE = 16384
"""Elements of a parameter's gradient on which its codec is tried: a multiple of every codec's block."""


@dataclass(frozen=True, kw_only=True)
class QualityMetrics:
    """Figures of a window of steps; inf stands for whatever is not finite."""

    gradient: float
    """Norm of a rank's own gradient, root of the mean square over steps."""
    residual: float
    """||residual|| / ||gradient||; 0 without error feedback."""
    error: float
    """Squared error of codecs without feedback over the gradient's squared norm (vNMSE), on a sample; 0 without."""
    distance: float
    """Norm of what the last exchange has changed in the weights over theirs; 0 where no weights are exchanged."""


class QualityProbe:
    """Measures quality metrics of the plan in force on this rank.

    A measurement costs one read of the gradient, beside backward, and codecs on at most 16384 elements of each
    parameter. Each window adds one read of the residual, or of the weights. No communication.

    Args:
        run: The run; after another switch of plan a new probe is needed.

    """

    def __init__(self, run: TunableRun) -> None:
        self._run = run
        module = module_of(run.model)
        self._sharded = ShardedParameters(module)  # first: it gives the parameters their names back
        self._parameters = {name: p for name, p in list_tensors(module) if p.requires_grad}
        layers = layer_classes(module)
        self._codecs: dict[str, Codec] = {}
        for name, parameter in self._parameters.items():
            node = run.plan.exchange_for(name, layers[name], parameter.numel())
            if node.payload_codec is not None and _loses(node):
                self._codecs[name] = codec_from(node.payload_codec)
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []
        self._step: dict[str, Tensor] = {}
        self._looks: list[tuple[float, float, float]] = []
        """Squared norm of the gradient, and of the sample and of the error on it, step by step."""

    def begin(self) -> None:
        """Look at the next step's gradients: whole ones of this rank, also where parameters are divided."""
        own = self._parameters
        if self._sharded.groups:
            own = self._sharded.gathered({id(p): name for name, p in own.items()})
        self._hooks = [p.register_post_accumulate_grad_hook(self._hook(name)) for name, p in own.items()]

    def end(self) -> None:
        """Count what was seen since `begin`; a step without gradients counts for nothing."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        if self._step:
            square, sampled, error = torch.stack(list(self._step.values())).sum(0).tolist()
            self._looks.append((square, sampled, error))
        self._step = {}

    def figures(self) -> QualityMetrics:
        """Return what was seen since the last call; steps whose gradient was not finite are left out if others were."""
        looks, self._looks = self._looks, []
        sound = [look for look in looks if isfinite(look[0])]
        gradient = (sum(square for square, _, _ in sound) / len(sound)) ** 0.5 if sound else inf if looks else 0.0
        sampled, error = sum(look[1] for look in sound), sum(look[2] for look in sound)
        stats, apart = self._run.stats(), self._run.plan.leaves_gradients
        owed = stats["residual_norm"]
        return QualityMetrics(
            gradient=gradient,
            residual=_ratio(owed, gradient) if isfinite(gradient) else 0.0,
            error=_ratio(error, sampled),
            distance=_ratio(stats["consensus_distance"], self._weight_norm()) if apart else 0.0,
        )

    def close(self) -> None:
        """Stop estimating, and remove hooks."""
        for hook in self._hooks:
            hook.remove()

    def _weight_norm(self) -> float:
        own = [as_real(as_local(p.detach())) for p in self._parameters.values()]
        return float(torch.stack([_square(each) for each in own]).sum().sqrt())

    def _hook(self, name: str) -> Callable[[Tensor], None]:
        codec = self._codecs.get(name)

        def look(parameter: Tensor) -> None:
            """Replace what an earlier micro-batch of the step has left."""
            if parameter.grad is None:
                return
            gradient = parameter.grad.detach()
            gradient = as_real(gradient.coalesce().values() if gradient.is_sparse else gradient)
            row = torch.zeros(3, dtype=torch.float64, device=gradient.device)
            row[0] = _square(gradient)
            if codec is not None:
                x = gradient.reshape(-1)[:_SAMPLE].float()  # (numel,)
                row[1], row[2] = _square(x), _error(codec, x)
            self._step[name] = row

        return look


def _loses(node: Exchange) -> bool:
    """Say whether what a codec does not carry of a gradient is gone; with feedback it is in the residual."""
    return node.kind == "gradients" and node.error_feedback == "none" and not node.keeps_gradients


def _error(codec: Codec, x: Tensor) -> Tensor:
    """Return the squared error of a codec on x, float32 (numel,)."""
    payload = torch.empty(codec.nbytes(x.numel()), dtype=torch.uint8, device=x.device)
    decoded = torch.empty_like(x)
    codec.encode(x, payload, 1)
    codec.decode(payload, decoded)
    return _square(decoded.sub_(x))


def _square(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dtype=torch.float32).double().square()  # 16 bits overflow early


def _ratio(above: float, below: float) -> float:
    """Return a ratio of norms, 0 where there is nothing to compare with, and inf where one is not finite."""
    if not isfinite(above) or not isfinite(below):
        return inf
    return above / below if below else 0.0
