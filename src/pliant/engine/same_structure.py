"""Whether nested tensors that were saved have the places that a run has for them."""

from collections.abc import Mapping
from typing import Any, cast

from torch import Tensor

__all__ = ["require_same_structure"]


def require_same_structure(saved: Any, wanted: Any, where: str) -> None:
    """Raise ValueError unless nested tensors have the same keys, shapes and types."""
    if isinstance(wanted, Tensor):
        if not isinstance(saved, Tensor):
            raise ValueError(f"the state's {where} must be a tensor, but is a {type(saved).__name__}.")
        if (saved.shape, saved.dtype) != (wanted.shape, wanted.dtype):
            raise ValueError(
                f"the state's {where} is {saved.dtype} of shape {tuple(saved.shape)}, but this run's is {wanted.dtype} "
                f"of shape {tuple(wanted.shape)}; load it into the model that it was saved from."
            )
        return
    if not isinstance(saved, Mapping) or saved.keys() != wanted.keys():
        held = cast("Mapping[str, Any]", saved) if isinstance(saved, Mapping) else cast("Mapping[str, Any]", {})
        odd = sorted(str(key) for key in held.keys() ^ wanted.keys())
        raise ValueError(
            f"the state's {where or 'parts'} are not this run's ({', '.join(odd[:5])} on one side only): its "
            "parameters are not the model's, or it is damaged; load it into the model that it was saved from."
        )
    for key, value in wanted.items():
        require_same_structure(cast("Mapping[str, Any]", saved)[key], value, f"{where} {key}".strip())
