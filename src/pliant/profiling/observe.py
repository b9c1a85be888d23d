"""Measurement of ordinary training steps, as a workload."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from pliant.buckets import as_real
from pliant.codecs import Codec
from pliant.comm import Comm, broadcast_text
from pliant.comm.small_gather import gather_small
from pliant.comm.transport import comm_alone, comm_by_host
from pliant.engine.nodes import layer_classes
from pliant.engine.rank_checks import raise_together, require_same_names
from pliant.engine.relaxed_model import innermost, list_tensors, module_of, strip_wrappers
from pliant.profiling.gradient_statistics import GradientStatistics, noise_scale
from pliant.profiling.sharded_parameters import ShardedParameters
from pliant.profiling.step_timer import StepTimer
from pliant.spec import TensorSpec, Workload

__all__ = ["Observation", "observe"]


class Observation:
    """Result of `observe`: a context manager around ordinary steps. Its hooks are removed after the last one."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        group: ProcessGroup | None,
        steps: int,
        warmup_steps: int,
        codecs: Sequence[Codec],
        ranks: Sequence[int],
        gradient_steps: int,
        batch_size: int,
        timeout_s: float,
    ) -> None:
        self._module = module_of(model)
        inner = strip_wrappers(model)
        self._group = cast(ProcessGroup, inner.process_group) if isinstance(inner, DistributedDataParallel) else group
        self._sharded = ShardedParameters(self._module)
        self._parameters = {name: p for name, p in list_tensors(self._module) if p.requires_grad}
        if not self._parameters:
            raise ValueError("the model has no parameter that requires a gradient, so there is nothing to observe.")
        self._device = next(iter(self._parameters.values())).device
        self._timed_until, self._warmup_steps = warmup_steps + steps, warmup_steps
        self._gradient_steps, self._batch_size, self._timeout_s = gradient_steps, batch_size, timeout_s
        sizes = {name: as_real(p).numel() for name, p in self._parameters.items()}
        self._shadow = GradientStatistics(sizes, codecs, ranks)
        self._taken, self._watches = 0, False  # steps; whether hooks tell when gradients are complete
        self._times = StepTimer(self._parameters, self._device)
        self._hooks = [
            model.register_forward_pre_hook(lambda *_: self._before_forward()),
            model.register_forward_hook(lambda _, __, output: self._after_forward(output)),
            optimizer.register_step_pre_hook(lambda *_: self._times.before_step()),
            optimizer.register_step_post_hook(lambda *_: self.end_step()),
        ]
        self._sharded.wrap_waits(self._times.waiting)
        if not self._sharded.groups:
            self._watch(self._parameters)

    @property
    def done(self) -> bool:
        """Whether enough steps were seen."""
        return self._taken >= self._timed_until + self._gradient_steps

    @property
    def blind(self) -> bool:
        """Whether this rank could not see when a backward began."""
        return self._times.blind

    @property
    def step_s(self) -> float:
        """Median time on this rank from the end of a step to that of the next, with all that it waits for."""
        return statistics.median(self._times.whole_s)

    def end_step(self) -> None:
        """End the optimizer's step, if one is to end: for hooks of others, whose turn is before the observation's."""
        keep = self._warmup_steps <= self._taken < self._timed_until
        if self.done or not self._times.is_in_step or not self._times.after_step(keep=keep):
            return
        if self._taken >= self._timed_until:
            self._shadow.end_step()
        self._taken += 1

    def close(self) -> None:
        """Remove every hook; a second call does nothing."""
        self._sharded.unwrap_waits()
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def workload(self, name: str = "", comm: Comm | None = None) -> Workload:
        """Return what was seen, the same on all ranks. Collective: the median over ranks of each rank's median.

        Args:
            name: Of the workload; the class of the model if empty.
            comm: Of the same ranks; one is opened for this if None.

        Raises:
            ValueError: Too few steps were made, or ranks have models of different parameters.
            RuntimeError: Where backward begins could not be seen; or another rank has raised one of these.

        """
        error = self._times.blindness
        if not self.done:
            wanted = self._timed_until + self._gradient_steps
            told = "go on until done is True, or ask observe() for fewer"
            error = ValueError(f"the observation needs {wanted} steps, but saw {self._taken}; {told}.")
        with nullcontext(comm) if comm is not None else closing(self._open_comm()) as ours:
            raise_together(error, ours, self._device, kind=RuntimeError)
            return self._share(ours, name or type(self._module).__name__)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def _before_forward(self) -> None:
        if self.done:
            self.close()  # only here: torch walks through the optimizer's hooks while it calls them
        elif torch.is_grad_enabled():
            self._times.before_forward()

    def _watch(self, parameters: Mapping[str, Tensor]) -> None:
        self._hooks += [p.register_post_accumulate_grad_hook(self._on_ready(n)) for n, p in parameters.items()]
        self._watches = True

    def _after_forward(self, output: Any) -> None:
        if not self.done and torch.is_grad_enabled():
            if not self._watches:  # a sharded model's gathered parameters are there only now
                self._watch(self._sharded.gathered({id(p): name for name, p in self._parameters.items()}))
            self._times.after_forward(output)

    def _on_ready(self, name: str) -> Callable[[Tensor], None]:
        def hook(parameter: Tensor) -> None:
            if self.done:
                return
            self._times.on_ready(name)
            if self._taken >= self._timed_until and parameter.grad is not None:
                self._shadow.take(name, parameter.grad)

        return hook

    def _open_comm(self) -> Comm:
        group = self._group
        if group is None and dist.is_available() and dist.is_initialized():
            group = cast(ProcessGroup, dist.group.WORLD)
        if group is None:
            return comm_alone(self._device)
        return comm_by_host(group, self._timeout_s, self._device)

    def _share(self, comm: Comm, name: str) -> Workload:
        names = list(self._parameters)
        require_same_names(names, comm, self._device)
        mine = [statistics.median(column) for column in zip(*self._times.steps, strict=True)]
        mine += [statistics.median(self._times.ready_s[n]) for n in names]
        told = torch.tensor(mine, dtype=torch.float64, device=self._device)
        rows: list[list[float]] = gather_small(comm, told).tolist()
        forward_s, backward_s, step_s, *ready_s = (statistics.median(column) for column in zip(*rows, strict=True))
        computing_s = [sum(row[:3]) for row in rows]
        seen = self._shadow.share(comm, self._device)
        noise = noise_scale(seen.own, seen.together, comm.size, self._batch_size)
        layers, groups = layer_classes(self._module), self._sharded.groups_of(self._parameters)
        tensors = [
            TensorSpec(
                name=n,
                shape=tuple(as_real(self._parameters[n]).shape),
                dtype=str(as_real(self._parameters[n]).dtype).removeprefix("torch."),
                layer=layers[n],
                ready_s=at_s,
                gradient_share=seen.shares.get(n, 0.0),
                gradient_error=seen.errors.get(n, {}),
                group=groups.get(n, ""),
            )
            for n, at_s in zip(names, ready_s, strict=True)
        ]
        return Workload(
            name=name,
            tensors=tuple(sorted(seen.with_rows(tensors), key=lambda t: t.ready_s)),
            forward_s=forward_s,
            backward_s=backward_s,
            step_s=step_s,
            batch_size=self._batch_size,
            noise_scale=noise,
            num_shards=self._sharded.num_shards,
            rank_factors=tuple(s / statistics.median(computing_s) for s in computing_s),
            provenance=broadcast_text(self._provenance(comm, seen.steps), comm, device=self._device),
        )

    def _provenance(self, comm: Comm, num_seen: int) -> str:
        now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        what = f"{len(self._times.steps)} steps timed, gradients of {num_seen} looked at"
        return f"pliant.observe; {now}; torch {torch.__version__}; {comm.size} ranks on {self._device.type}; {what}"


def observe(
    model: nn.Module,
    optimizer: Optimizer,
    *,
    steps: int = 10,
    warmup_steps: int = 2,
    codecs: Sequence[Codec] = (),
    ranks: Sequence[int] = (),
    gradient_steps: int = 5,
    batch_size: int = 1,
    group: ProcessGroup | None = None,
    timeout_s: float = 300.0,
) -> Observation:
    """Measure the next steps of an ordinary training: a context manager around them, with a `workload()`.

    The steps are real ones and do not change: hooks take times and read gradients, on copies, without communication or
    torch's generators. After warmup_steps, `steps` are timed; in gradient_steps more, gradients are measured. Then the
    hooks are removed.

    Times are those of this training, with everything that runs beside backward; under DDP's ``no_sync()``, or on a
    plain module, of computing alone. Of a sharded model they are without the waits for gathers and reduce-scatters.
    Call observe() before relax(), whose work would be in the optimizer's time.

    Args:
        model: A DistributedDataParallel model or a plain module, the one that is called.
        optimizer: Of its parameters.
        steps: Steps to time; medians are kept.
        warmup_steps: Steps before those.
        codecs: Codecs whose error on each tensor's gradient is measured, such as ``pliant.codecs.Qsgd(bits=4)``.
        ranks: Low ranks whose error on each matrix's gradient is measured, as `powersgd` sends them: (4, 1). The error
            is entered as that of 'rank(rank=4)'.
        gradient_steps: Steps whose gradients are measured; 0 for none.
        batch_size: Samples that one rank takes in a step, for the noise scale.
        group: Process group of a plain module's ranks; None for the default group, or for this rank alone without one.
        timeout_s: Longest that one collective of `workload` may take.

    Raises:
        ValueError: A number of steps or the batch is not possible, or the model has nothing to train.

    >>> model = nn.Linear(4, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> with observe(model, optimizer, steps=2, warmup_steps=0, gradient_steps=0) as observation:
    ...     for _ in range(3):
    ...         optimizer.zero_grad()
    ...         model(torch.ones(2, 4)).sum().backward()
    ...         optimizer.step()
    >>> observation.workload().numel
    5

    """
    if steps < 1 or warmup_steps < 0 or gradient_steps < 0 or min((batch_size, *ranks)) < 1:
        raise ValueError(
            f"observe() got {steps} steps, {warmup_steps} warmup_steps, {gradient_steps} gradient_steps, batch_size "
            f"{batch_size} and ranks {tuple(ranks)}; steps, batch_size and ranks must be at least 1, the others at "
            "least 0."
        )
    return Observation(
        model,
        innermost(optimizer),
        group=group,
        steps=steps,
        warmup_steps=warmup_steps,
        codecs=codecs,
        ranks=ranks,
        gradient_steps=gradient_steps,
        batch_size=batch_size,
        timeout_s=timeout_s,
    )
