"""Function of a user's module that makes a training: found, called, and held to its shape."""

import dataclasses
import importlib
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from pliant.profiling.own_training import FIELDS, SHAPE, OwnTraining, described

__all__ = ["load_own_training", "read_own_training"]


def load_own_training(where: str) -> OwnTraining:
    """Call a function of a user's module, which is looked for in the current folder first.

    Args:
        where: Module and function, as in ``my:make``.

    Raises:
        ValueError: There is no such module or function, or it returns something else.
        RuntimeError: It fails; the error that it raised is the cause.

    """
    module_name, _, function_name = where.partition(":")
    if not module_name or not function_name or module_name.endswith(".py"):
        raise ValueError(
            f"--model is {where!r}, but it takes a module and a function in it: --model my:make for make() in my.py."
        )
    module = _import(module_name, where)
    make = getattr(module, function_name, None)
    if not callable(make):
        raise ValueError(f"{module.__file__} has no function {function_name}(), which --model {where} asks for.")
    try:
        made = make()
    except Exception as error:
        raise RuntimeError(_failure(f"{where} failed", error)) from error
    return read_own_training(where, made)


def read_own_training(name: str, made: Any) -> OwnTraining:
    """Return what a function has returned as a record: a tuple, or an object with the names of the fields.

    Raises:
        ValueError: It has another shape; the sentence shows the right one.

    """
    found = _by_name(made)
    if found is None and isinstance(made, tuple | list) and 3 <= len(cast(list[Any], made)) <= len(FIELDS):
        found = dict(zip(FIELDS, cast(list[Any], made), strict=False))
    if found is None:
        raise ValueError(f"{name} returned {described(made)}; {SHAPE}.")
    model, optimizer, batches = found["model"], found["optimizer"], found["batches"]
    faults = {
        "the model is {}, not a torch.nn.Module": (model, isinstance(model, nn.Module)),
        "the model is {}, but each method wraps it anew: return the module inside": (
            model,
            not isinstance(model, DistributedDataParallel),
        ),
        "the optimizer is {}, not a torch.optim.Optimizer": (optimizer, isinstance(optimizer, Optimizer)),
        "the batches are {}, not an iterable or a function of the step": (
            batches,
            isinstance(batches, Iterable) or callable(batches),
        ),
    } | {f"{key} is {{}}, not a function": (found.get(key), _maybe_callable(found.get(key))) for key in FIELDS[3:]}
    for sentence, (value, right) in faults.items():
        if not right:
            raise ValueError(f"{name} returned a wrong shape: {sentence.format(described(value))}; {SHAPE}.")
    trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if not trained & {id(p) for p in model.parameters()}:
        raise ValueError(f"the optimizer of {name} holds no parameter of its model; make it with model.parameters().")
    return OwnTraining(name=name, **found)


def _import(name: str, where: str) -> Any:
    folder = str(Path.cwd())
    if sys.path[:1] != [folder]:
        sys.path.insert(0, folder)  # as `python -m` does; it stays, since the function may import more
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise ValueError(
                f"there is no module {name}, which --model {where} names: it was looked for as "
                f"{Path(folder, *name.split('.'))}.py and among installed packages; start in the folder that has it, "
                "or set PYTHONPATH."
            ) from error
        raise RuntimeError(_failure(f"{name} cannot be imported", error)) from error
    except Exception as error:
        raise RuntimeError(_failure(f"{name} cannot be imported", error)) from error


def _failure(what: str, error: Exception) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{what}: {type(error).__name__}: {error} ({last.filename}, line {last.lineno})"


def _by_name(made: Any) -> dict[str, Any] | None:
    """Return the fields of an object that has them by name, or None where it has not."""
    if not all(hasattr(made, key) for key in FIELDS[:3]) or isinstance(made, nn.Module):
        return None
    told = getattr(made, "_fields", None) or (
        [field.name for field in dataclasses.fields(made)] if dataclasses.is_dataclass(made) else ()
    )
    if set(told) - set(FIELDS):
        return None
    return {key: getattr(made, key) for key in FIELDS if hasattr(made, key)}


def _maybe_callable(value: object) -> bool:
    return value is None or callable(value)
