"""Optimizers of the laboratory by name, each made of a model, a learning rate and a mean over ranks."""

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.optim import SGD, AdamW, Muon, Optimizer

import pliant
from pliant_bench.lab.second_moment import Mean, SharedMomentAdamW

__all__ = ["OPTIMIZERS", "hidden_matrices", "make_optimizers", "muon_and_adamw", "require_optimizer"]

_WEIGHT_DECAY = 0.01
"""AdamW's default, for Muon as well: its own is ten times as much."""
_DENSE_STEPS = 50
_RANK = 16
"""Rank of Dion's steps; matrices of the smallest decoder have 64 rows."""


def hidden_matrices(model: nn.Module) -> list[nn.Parameter]:
    """Return a model's matrices but for embeddings and the head: those that Muon is for."""
    return [
        parameter
        for name, module in model.named_modules()
        if not isinstance(module, nn.Embedding) and name != "head"
        for parameter in module.parameters(recurse=False)
        if parameter.dim() == 2
    ]


def muon_and_adamw(model: nn.Module, lr: float) -> list[Optimizer]:
    """Return Muon for hidden matrices, with updates as large as AdamW's, and AdamW for all others, at one rate."""
    return _beside_adamw(model, lr, Muon)


def _beside_adamw(model: nn.Module, lr: float, make: Callable[..., Optimizer], **settings: Any) -> list[Optimizer]:
    """Return an optimizer of hidden matrices, with updates as large as AdamW's, and AdamW for all others."""
    hidden = hidden_matrices(model)
    theirs = {id(parameter) for parameter in hidden}
    others = [parameter for parameter in model.parameters() if id(parameter) not in theirs]
    matrices = make(hidden, lr=lr, weight_decay=_WEIGHT_DECAY, adjust_lr_fn="match_rms_adamw", **settings)
    return [matrices, AdamW(others, lr=lr, weight_decay=_WEIGHT_DECAY)]


def _shared(**settings: Any) -> Callable[[nn.Module, float, Mean], list[Optimizer]]:
    return lambda model, lr, mean: [SharedMomentAdamW(list(model.parameters()), mean, lr=lr, **settings)]


OPTIMIZERS: dict[str, Callable[[nn.Module, float, Mean], list[Optimizer]]] = {
    "SGD": lambda model, lr, mean: [SGD(model.parameters(), lr=lr, momentum=0.9)],
    "AdamW": lambda model, lr, mean: [AdamW(model.parameters(), lr=lr)],
    "Muon": lambda model, lr, mean: muon_and_adamw(model, lr),
    "Muon(momentum=0)": lambda model, lr, mean: _beside_adamw(model, lr, Muon, momentum=0.0),
    "Dion(momentum=0)": lambda model, lr, mean: _beside_adamw(model, lr, pliant.Dion, rank=_RANK, momentum=0.0),
    "AdamW+common_v": _shared(of="gradient"),
    "AdamW+common_v(8)": _shared(of="gradient", period=8, dense_steps=_DENSE_STEPS),
    "AdamW+mean_v": _shared(of="moment"),
}
"""Name of an optimizer -> what makes it; a rank steps with all in their order. Others are looked for in `pliant`."""


def require_optimizer(name: str) -> None:
    """Raise ValueError if there is no optimizer of a name."""
    if name not in OPTIMIZERS and not isinstance(getattr(pliant, name, None), type(Optimizer)):
        raise ValueError(
            f"there is no optimizer {name!r} in the laboratory or in pliant; there are {', '.join(OPTIMIZERS)}."
        )


def make_optimizers(name: str, model: nn.Module, lr: float, mean: Mean) -> list[Optimizer]:
    """Return the optimizers of a rank's model. Raises ValueError if there are none of that name."""
    require_optimizer(name)
    if name in OPTIMIZERS:
        return OPTIMIZERS[name](model, lr, mean)
    return [getattr(pliant, name)(model.parameters(), lr=lr)]
