"""Features: which input looks up rows of which table, by place or by name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, cast

import torch

from pliant.spec import Table

__all__ = ["Feature", "features_of", "in_order"]


@dataclass(frozen=True)
class Feature:
    """One input: it looks up rows of its table. Its words name it in errors."""

    table: Table
    name: str

    def __str__(self) -> str:
        whole = f"table {self.table.name!r}"
        return f"feature {self.name!r} of {whole}" if self.table.features else whole


def features_of(tables: Sequence[Table]) -> list[Feature]:
    """Return the features of tables, one table's after another's."""
    return [Feature(table, name) for table in tables for name in table.inputs]


def in_order(features: Sequence[Feature], inputs: Any) -> list[Any]:
    """Return what was given for each feature: ids, with offsets and weights if there are some. See `bags.Inputs`.

    Raises:
        ValueError: Inputs are too many or too few, or have other names, or a KeyedJaggedTensor is not whole.

    """
    if isinstance(inputs, Mapping):
        by_name = cast(Mapping[str, Any], inputs)
        _require_names(features, list(by_name))
        return [by_name[feature.name] for feature in features]
    if callable(getattr(inputs, "keys", None)):
        keys = list(inputs.keys())
        _require_names(features, keys)
        by_key = dict(zip(keys, _of_keys(inputs, len(keys)), strict=True))
        return [by_key[feature.name] for feature in features]
    given = list(inputs)
    if len(given) != len(features):
        what = "features" if any(feature.table.features for feature in features) else "tables"
        raise ValueError(f"there are {len(features)} {what}, but inputs for {len(given)}; give one for each, in order.")
    return given


def _require_names(features: Sequence[Feature], keys: Sequence[str]) -> None:
    names = [feature.name for feature in features]
    if len(set(keys)) != len(keys) or set(keys) != set(names):
        raise ValueError(f"the inputs have keys {keys}, but the features are {names}; name each once, in any order.")


def _of_keys(inputs: Any, num_keys: int) -> list[tuple[Any, Any, Any]]:
    """Return ids, offsets and weights for each key of a KeyedJaggedTensor, whose keys may have unlike bags."""
    if getattr(inputs, "inverse_indices_or_none", lambda: None)() is not None:
        raise ValueError("the inputs have inverse indices, which nobody applies here; give one bag for each sample.")
    values, lengths, weights = inputs.values(), inputs.lengths().reshape(-1), inputs.weights_or_none()
    if hasattr(inputs, "stride_per_key"):
        num_bags = list(inputs.stride_per_key())
    else:
        num_bags = [len(lengths) // max(num_keys, 1)] * num_keys
    id_ends = torch.cat([lengths.new_zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    if sum(num_bags) != len(lengths) or int(id_ends[-1]) != len(values):
        raise ValueError(
            f"the inputs have {len(lengths)} lengths for {num_keys} keys with {num_bags} bags, and {len(values)} "
            f"values where lengths add up to {int(id_ends[-1])}; these must be the same."
        )
    bags = list(pairwise(accumulate(num_bags, initial=0)))
    ids = pairwise(id_ends[[0, *(end for _, end in bags)]].tolist())
    return [
        (values[a:b], id_ends[first:end] - a, None if weights is None else weights[a:b])
        for (first, end), (a, b) in zip(bags, ids, strict=True)
    ]
