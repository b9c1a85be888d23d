"""A sharded model and its optimizers in a checkpoint: each rank's part in its own file, to be cut anew if need be."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pliant.engine.relaxed_model import RelaxedModel, list_tensors, name_without_wrappers
from pliant.engine.shard_optimizer import as_local, load_local_state, local_state
from pliant.engine.shard_resize import Mesh, ShardResize

__all__ = ["cut_parts", "load_part", "part_of"]


def part_of(relaxed: RelaxedModel) -> dict[str, Any]:
    """Return this rank's part of the model and of its optimizers; live tensors."""
    model = {name_without_wrappers(n): as_local(value) for n, value in relaxed.module.state_dict().items()}
    return {"model": model, "optimizers": [_optimizer_part(each, relaxed.module) for each in relaxed.optimizers]}


def load_part(relaxed: RelaxedModel, saved: Mapping[str, Any]) -> None:
    """Put this rank's part back.

    Raises:
        ValueError: It does not fit the model or the optimizers, of which some may have been loaded then.

    """
    live = {name_without_wrappers(n): value for n, value in relaxed.module.state_dict().items()}
    model: Mapping[str, Any] = saved["model"]
    if live.keys() != model.keys():
        odd = ", ".join(sorted(live.keys() ^ model.keys())[:5])
        raise ValueError(f"the checkpoint's model has other parameters or buffers ({odd}).")
    if len(saved["optimizers"]) != len(relaxed.optimizers):
        raise ValueError(f"{len(saved['optimizers'])} optimizers were saved, but there are {len(relaxed.optimizers)}.")
    with torch.no_grad():
        for name, value in live.items():
            if not isinstance(value, Tensor):
                continue
            target = as_local(value)
            if target.shape != model[name].shape:
                raise ValueError(
                    f"this rank's part of {name} has shape {tuple(model[name].shape)} in the checkpoint, but "
                    f"{tuple(target.shape)} here; divide the model as it was."
                )
            target.copy_(model[name])
    for optimizer, own in zip(relaxed.optimizers, saved["optimizers"], strict=True):
        load_local_state(optimizer, {key: value for key, value in own.items() if key != "names"})


def cut_parts(cut: ShardResize, parts: Sequence[Mapping[str, Any]], mesh: Mesh) -> dict[str, Any]:
    """Return a new rank's part of the model and its optimizers; what is not divided is the first rank's.

    Args:
        cut: Conversion of the states of the run, which know how parameters were divided.
        parts: Those of all old ranks.
        mesh: Place of the new rank.

    """
    number = {id(own): k for k, own in enumerate(cut.states)}

    def of(own: Mapping[str, Any]) -> Mapping[str, Any]:
        return parts[number[id(own)]]

    model = {name: cut.like_weights(name, lambda own, n=name: of(own)["model"][n], mesh) for name in parts[0]["model"]}
    optimizers: list[dict[str, Any]] = []
    for k, first in enumerate(parts[0]["optimizers"]):
        state = {
            index: {
                key: cut.like_weights(
                    first["names"][index],
                    lambda own, k=k, i=index, key=key: of(own)["optimizers"][k]["state"][i][key],
                    mesh,
                )
                for key in held
            }
            for index, held in first["state"].items()
        }
        optimizers.append({**first, "state": state})
    return {"model": model, "optimizers": optimizers}


def _optimizer_part(optimizer: Optimizer, module: nn.Module) -> dict[str, Any]:
    names = {id(p): name for name, p in list_tensors(module)}
    held = [p for group in optimizer.param_groups for p in group["params"]]
    return {**local_state(optimizer), "names": {k: names.get(id(p), "") for k, p in enumerate(held)}}
