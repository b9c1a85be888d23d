"""Resuming from a checkpoint in one call."""

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from torch import nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from pliant.comm.base import Comm
from pliant.comm.private_comm import default_group
from pliant.comm.transport import Transport, comm_by_host
from pliant.engine.checkpoint import Manifest, read_manifest, read_part
from pliant.engine.connecting import Connections
from pliant.engine.gradient_exchange import NonFinite
from pliant.engine.rank_checks import gather_numbers, raise_together
from pliant.engine.relaxed_model import unwrap
from pliant.engine.remote_files import on_disk
from pliant.engine.resize import converter, state_of_rank
from pliant.engine.run import Run
from pliant.engine.run_start import start_run
from pliant.engine.shard_resize import Mesh, ShardResize
from pliant.engine.sharded_saving import cut_parts

__all__ = ["load_run"]


def load_run(
    path: str | Path,
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    scheduler: Any = None,
    *,
    scaler: Any = None,
    resize: bool = False,
    group: ProcessGroup | None = None,
    hosts: Sequence[Sequence[int]] | None = None,
    rack: str = "",
    timeout_s: float = 300.0,
    agreement_every: int = 100,
    nonfinite: NonFinite = "raise",
    transport: Transport = "auto",
    connections: Connections | None = None,
) -> Run:
    """Relax a model by the plan in a checkpoint of `Run.save`, and go on from there, to the bit. Collective.

    Model, optimizer, scheduler and scaler are made as for a new training. Loaded are their states, what algorithms
    keep, the step, and each rank's random generators. Nothing in the files is run.

    Args:
        path: The folder.
        model: As for `relax`.
        optimizer: As for `relax`.
        scheduler: Of the learning rate, if the run was saved with one.
        scaler: A GradScaler, if the run was saved with one.
        resize: Whether another number of ranks may go on with it, as `pliant.resize` has it: not to the bit, and not
            where weights are exchanged. Of a sharded model also another mesh.
        group: As for `relax`.
        hosts: As for `relax`.
        rack: As for `relax`.
        timeout_s: As for `relax`.
        agreement_every: As for `relax`.
        nonfinite: As for `relax`.
        transport: As for `relax`.
        connections: As for `relax`.

    Raises:
        ValueError: On all ranks, if a part of the checkpoint is missing or damaged, or belongs to another model,
            optimizer or number of ranks; or a scheduler or a scaler was saved and none is given, or the other way
            round. What `relax` raises.

    >>> import tempfile, torch
    >>> from pliant import relax, run_world
    >>> def train(context):
    ...     model = torch.nn.Linear(4, 1)
    ...     optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ...     with relax(model, optimizer, "topk", group=context.process_group) as run:
    ...         run.model(torch.ones(2, 4)).sum().backward()
    ...         optimizer.step()
    ...         run.save(folder)
    ...     with load_run(folder, model, optimizer, group=context.process_group) as run:
    ...         return run.steps
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run_world(2, train)
    [1, 1]

    """
    held = unwrap(model, optimizer)
    own = held.ddp.process_group if held.ddp is not None else group or default_group()
    device = next(iter(held.parameters.values())).device
    comm = comm_by_host(cast(ProcessGroup, own), timeout_s, device)
    try:
        mesh = None if held.sharded is None else Mesh.of(held.sharded.place)
        manifest, state, shared = _read(path, comm, device, mesh, resize=resize, given=(scheduler, scaler))
    finally:
        comm.close()
    run = start_run(
        unwrap(model, optimizer),
        manifest.plan,
        group=group,
        hosts=hosts,
        rack=rack,
        timeout_s=timeout_s,
        agreement_every=agreement_every,
        nonfinite=nonfinite,
        transport=transport,
        connections=connections,
    )
    try:
        run.load_all(state, shared, scaler)
        for each, name in ((scheduler, "scheduler"), (scaler, "scaler")):
            if each is not None:
                each.load_state_dict(shared[name])
        if manifest.on_trial:
            run.switch("allreduce")  # the plan had not been found to pay, or to train as well
    except BaseException as error:
        run.__exit__(type(error), error, None)
        raise
    return run


def _read(
    path: str | Path, comm: Comm, device: Any, mesh: Mesh | None, *, resize: bool, given: tuple[Any, Any]
) -> tuple[Manifest, dict[str, Any], dict[str, Any]]:
    """Read this rank's part and that for all, on all ranks or on none.

    Every error is told together: a rank that left at once would close connections that others are still making.
    """
    error, found = None, None
    try:
        folder = on_disk(path)
        manifest = read_manifest(folder)
        if manifest.size != comm.size and not resize:
            raise ValueError(
                f"{path} was saved by {manifest.size} ranks, but {comm.size} load it; start as many, or pass "
                "resize=True, which goes on with others where gradients are exchanged."
            )
        shared = read_part(manifest, None)
        _require_given(folder, shared, given)
        state = read_part(manifest, comm.rank) if manifest.size == comm.size else None
        if state is None or (resize and mesh is not None and _is_of_other_mesh(state, comm.rank, mesh)):
            state = _resized(manifest, comm, mesh)
        found = manifest, state, shared
    except (OSError, ValueError) as raised:
        error = ValueError(str(raised))
    raise_together(error, comm, device, kind=ValueError)
    manifest, state, shared = cast("tuple[Manifest, dict[str, Any], dict[str, Any]]", found)
    rows = gather_numbers([manifest.step, zlib.crc32(manifest.folder.name.encode())], comm, device)
    if any(row != rows[0] for row in rows):
        raise ValueError(
            f"ranks find different checkpoints at {path}, of steps {', '.join(str(step) for step, _ in rows)} in the "
            "order of ranks; name a folder that all ranks share."
        )
    return manifest, state, shared


def _is_of_other_mesh(state: dict[str, Any], rank: int, mesh: Mesh) -> bool:
    shards = state_of_rank(state, rank).get("shards")
    return shards is not None and Mesh.of(shards["mesh"].tolist()) != mesh


def _resized(manifest: Manifest, comm: Comm, mesh: Mesh | None) -> dict[str, Any]:
    """Return what was saved by other ranks, converted for this one."""
    states = [read_part(manifest, k, mapped=True) for k in range(manifest.size)]
    num_shards = None if mesh is None else mesh.num_shards
    state = converter(states, comm.size, num_shards=num_shards)(comm.rank)
    if mesh is None or any("part" not in each for each in states):
        return state
    cut = ShardResize([state_of_rank(each, k) for k, each in enumerate(states)])
    return {**state, "part": cut_parts(cut, [each["part"] for each in states], mesh)}


def _require_given(path: Path, shared: dict[str, Any], given: tuple[Any, Any]) -> None:
    for name, each in zip(("scheduler", "scaler"), given, strict=True):
        if (shared[name] is None) != (each is None):
            raise ValueError(
                f"{path} was saved {'with' if each is None else 'without'} a {name}, but load_run() was given "
                f"{'none' if each is None else 'one'}; give both save() and load_run() the {name}, or neither."
            )
