"""Saved states of a run, converted for another number of ranks."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pliant.engine.shard_resize import ShardResize

__all__ = ["converter", "resize", "state_of_rank"]

_ANEW = ("counters", "slots", "random", "shards", "optimizer", "owned", "gathered")
"""Keys that are made for the new ranks; all others are those of the first rank."""

_OF_WEIGHTS = ("weights", "averages", "pairs")
"""Words with which the keys of exchanges of weights begin."""


def resize(states: Sequence[Mapping[str, Any]], size: int, *, num_shards: int | None = None) -> list[dict[str, Any]]:
    """Return the states with which `size` ranks continue where others have stopped, in the order of ranks.

    For plans that exchange gradients. Every new rank gets the mean over the old ones of each tensor that algorithms
    keep, and whole the optimizer's states that owners had in parts: a run cuts them anew when it loads them. A
    rank's residual counts 1/n among n ranks, so the mean of residuals is conserved; what ranks have alike stays as
    it is. Buffers are rank 0's, as DDP would have it, and random generators are left out: those of the new ranks
    stay as the script has seeded them. What ranks of a sharded model keep is cut anew, to the new ranges of shards.

    Args:
        states: Results of ``run.state_dict()`` on each rank, in the order of ranks.
        size: Ranks of the run that loads them: rank k loads the k-th.
        num_shards: Of a sharded model the ranks that divide it; the others are replicas. None for all, or, on a mesh of
            two dimensions, for as many as before.

    Raises:
        ValueError: The states are not those of all ranks of one run at one step, or belong to ranks: of weights that
            differ, or of slices between hosts.

    >>> import torch
    >>> from pliant import relax, run_world
    >>> def train(context):
    ...     model = torch.nn.Linear(4, 1)
    ...     optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ...     with relax(model, optimizer, "topk", group=context.process_group) as run:
    ...         run.model(torch.ones(2, 4)).sum().backward()
    ...         optimizer.step()
    ...         return run.state_dict()
    >>> len(resize(run_world(2, train), 3))
    3

    """
    convert = converter(states, size, num_shards=num_shards)
    return [convert(rank) for rank in range(size)]


def converter(
    states: Sequence[Mapping[str, Any]], size: int, *, num_shards: int | None = None
) -> Callable[[int], dict[str, Any]]:
    """Return a function that makes a new rank's state; arguments and errors are those of `resize`."""
    if size < 1:
        raise ValueError(f"a run of {size} ranks cannot be; resize to 1 or more.")
    own = [state_of_rank(state, rank) for rank, state in enumerate(states)]
    if not own:
        raise ValueError("there is no state to resize; give those of all ranks.")
    counters: list[list[int]] = [each["counters"].tolist() for each in own]
    if any(row != counters[0] for row in counters) or counters[0][2] != len(own):
        raise ValueError(
            f"a run of {counters[0][2]} ranks was saved, but {len(own)} states are given, or they are of different "
            "steps or plans; give those of all ranks, saved after the same step."
        )
    if any(_is_of_ranks(each) for each in own):
        raise ValueError(
            "the states hold weights, or parts of the optimizer, of single ranks, since their plan exchanges weights; "
            "switch() to a plan that exchanges gradients before the state is saved."
        )
    if any("owed" in each for each in own):
        raise ValueError("a switch of plans has left gradients that are still to be paid; make one step before saving.")
    slots: list[Mapping[str, Mapping[str, Tensor]]] = [each["slots"] for each in own]
    if any({n: set(s) for n, s in each.items()} != {n: set(s) for n, s in slots[0].items()} for each in slots):
        raise ValueError(
            "ranks hold different tensors, since each exchanges another slice with other hosts, or none; switch() to a "
            "plan that is not hierarchical before the state is saved."
        )
    slots_of, shards_of = _conversion(own, size, num_shards)
    optimizer = _whole_optimizer(own)
    step, turn, _, *rest = counters[0]

    def convert(rank: int) -> dict[str, Any]:
        return {
            f"rank{rank}": {
                **{key: value for key, value in own[0].items() if key not in _ANEW},
                "counters": torch.tensor([step, turn, size, *rest], dtype=torch.int64),
                "random": {},
                "optimizer": optimizer,
                **({"owned": {}} if "owned" in own[0] else {}),
                **({"gathered": _mean_of([each["gathered"] for each in own])} if "gathered" in own[0] else {}),
                "slots": slots_of(rank),
                **shards_of(rank),
            }
        }

    return convert


Convert = Callable[[int], dict[str, Any]]
"""New rank -> a part of its state."""


def _conversion(own: Sequence[Mapping[str, Any]], size: int, num_shards: int | None) -> tuple[Convert, Convert]:
    """Return what makes a new rank's slots, and what it holds of shards."""
    slots: list[Mapping[str, Mapping[str, Tensor]]] = [each["slots"] for each in own]
    if "shards" not in own[0]:
        means = {
            name: {slot: _mean([each[name][slot] for each in slots]) for slot in of_parameter}
            for name, of_parameter in slots[0].items()
        }
        return (lambda _: {n: {s: x.clone() for s, x in kept.items()} for n, kept in means.items()}), (lambda _: {})
    cut = ShardResize(own)
    meshes = [cut.mesh(rank, size, num_shards) for rank in range(size)]
    odd = [(n, s) for n, kept in slots[0].items() for s, x in kept.items() if not cut.is_part(n, x, 0)]
    if odd:
        raise ValueError(
            f"the states hold {odd[0][1]!r} for {odd[0][0]}, which is not one number for each element and depends on "
            "how parameters were divided; switch() to another plan for replicas before the state is saved."
        )

    def slot(name: str, key: str) -> Callable[[Mapping[str, Any]], Tensor]:
        return lambda each: each["slots"][name][key]

    def slots_of(rank: int) -> dict[str, Any]:
        return {n: {s: cut.mean(n, slot(n, s), meshes[rank]) for s in kept} for n, kept in slots[0].items()}

    return slots_of, lambda rank: {"shards": cut.shards(meshes[rank])}


def state_of_rank(state: Mapping[str, Any], rank: int) -> Mapping[str, Any]:
    """Return a rank's part of what it has saved. Raises ValueError if that is another's, or lacks something."""
    own = state.get(f"rank{rank}")
    if own is None:
        raise ValueError(f"the state in place {rank} holds {', '.join(state)}, but not rank{rank}; give them in order.")
    if missing := [key for key in ("counters", "slots", "optimizer", "random") if key not in own]:
        raise ValueError(f"the state in place {rank} lacks {', '.join(missing)}; give what run.state_dict() returns.")
    return own


def _is_of_ranks(own: Mapping[str, Any]) -> bool:
    between_steps = any(key.split(" ")[0] in _OF_WEIGHTS for key in own)
    return between_steps or (bool(own["optimizer"]["state"]) and "owned" not in own)


def _whole_optimizer(own: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the optimizer's states of whole parameters, from those of parts: vectors of all elements, where cut."""
    held = torch.stack([each["optimizer"]["held"] for each in own]).amax(0)
    found: dict[str, dict[str, Any]] = {}
    for name, table in own[0].get("owned", {}).items():
        parts: list[tuple[int, int, int]] = [tuple(row) for row in table.tolist()]
        states = {rank: own[rank]["optimizer"]["state"].get(name, {}) for rank in dict.fromkeys(p[0] for p in parts)}
        first = next(iter(states.values()))
        found[name] = dict(first) if len(states) == 1 else {key: _join(states, key, parts) for key in first}
    return {"held": held, "state": {name: state for name, state in found.items() if state}}


def _join(states: Mapping[int, Mapping[str, Any]], key: str, parts: Sequence[tuple[int, int, int]]) -> Any:
    """Return one value of a state for all elements of a parameter; what is no vector is alike in all its parts."""
    first = next(iter(states.values()))[key]
    if not isinstance(first, Tensor) or not first.dim():
        return first
    whole, taken = first.new_empty(parts[-1][2]), dict.fromkeys(states, 0)
    for owner, start, stop in parts:
        at = taken[owner]
        whole[start:stop] = states[owner][key][at : at + stop - start]
        taken[owner] = at + stop - start
    return whole


def _mean(tensors: Sequence[Tensor]) -> Tensor:
    """Return the mean, formed in float64, so that of equal tensors it is equal to them."""
    return torch.stack([t.double() for t in tensors]).mean(0).to(tensors[0].dtype)


def _mean_of(states: Sequence[Any]) -> Any:
    """Return the mean of nested tensors of the same structure."""
    first = states[0]
    if isinstance(first, Tensor):
        return _mean(states)
    return {key: _mean_of([each[key] for each in states]) for key in first}
