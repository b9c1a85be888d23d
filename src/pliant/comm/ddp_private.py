"""Every private call into DistributedDataParallel that Pliant needs, in one file."""

import dataclasses
import functools
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

__all__ = [
    "BucketCaps",
    "DDPListener",
    "after_backward",
    "forget_forward",
    "has_comm_hook",
    "is_in_backward",
    "is_settled",
    "listen",
    "rebuild_reducer",
    "settle_buckets",
    "unused_parameters",
    "watch_module",
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BucketCaps:
    """Largest sizes of DDP's buckets, in bytes."""

    most: int
    first: int
    """Of the first bucket, which DDP makes smaller unless it is told a size."""
    of_each: tuple[int, ...] = ()
    """Of each bucket, where the user has said so."""

    @classmethod
    def of(cls, ddp: Any) -> "BucketCaps":
        """Return those of a DistributedDataParallel model."""
        if hasattr(ddp, "_bucket_config"):  # torch 2.13 and later keep all caps there
            config = ddp._bucket_config
            most, first = config.bucket_bytes_cap, config.first_bucket_bytes_cap
            return cls(most=most, first=first, of_each=config.per_bucket_bytes_caps)
        most, first = int(ddp.bucket_bytes_cap), dist._DEFAULT_FIRST_BUCKET_BYTES  # pyright: ignore
        return cls(most=most, first=min(first, most) if ddp.bucket_bytes_cap_default else most)


def rebuild_reducer(ddp: Any, caps: BucketCaps) -> None:
    """Give a DistributedDataParallel model a new reducer with other buckets, as unpickling one does.

    Between two steps, and on all ranks. Its communication hook is to be registered again. As with any new reducer,
    buckets are provisional in the first backward pass, and then follow the order in which gradients were ready.
    """
    if hasattr(ddp, "_bucket_config"):
        ddp._bucket_config = dataclasses.replace(
            ddp._bucket_config,
            bucket_bytes_cap=caps.most,
            first_bucket_bytes_cap=caps.first,
            per_bucket_bytes_caps=caps.of_each,
        )
    ddp.bucket_bytes_cap, ddp.bucket_bytes_cap_default = caps.most, caps.first < caps.most
    parameters, sparse = ddp._build_params_for_reducer()
    ddp._ddp_init_helper(parameters, sparse, ddp._build_debug_param_to_name_mapping(parameters), ddp.static_graph)
    ddp._has_rebuilt_buckets = False
    # From here on it is where the compiler cuts graphs, which it does not below DDP's usual first bucket.
    ddp.bucket_bytes_cap = max(caps.most, dist._DEFAULT_FIRST_BUCKET_BYTES)  # pyright: ignore
    if ddp.static_graph:
        ddp.reducer._set_static_graph()
        ddp.logger._set_static_graph()


def has_comm_hook(ddp: Any) -> bool:
    """Say whether a communication hook of Python is registered."""
    return bool(ddp._comm_hooks)


def is_settled(ddp: Any) -> bool:
    """Say whether buckets stay as they are, or will yet be laid out in the order in which gradients were ready."""
    return ddp._has_rebuilt_buckets or (ddp.find_unused_parameters and not ddp.static_graph)


def settle_buckets(ddp: Any) -> list[list[Tensor]] | None:
    """Lay buckets out in the order in which gradients were ready, now and not only before the next pass.

    Between two steps, and on all ranks: the first tells the others that order, over the model's own group.

    Returns:
        The parameters of each bucket, in order; None if buckets stay.

    """
    if is_settled(ddp) or not ddp.reducer._rebuild_buckets():
        return None
    ddp._has_rebuilt_buckets = True
    ddp.logger.set_runtime_stats_and_log()  # nothing else says what lies in which bucket, such as "2 1, 0"
    told: str = ddp._get_ddp_logging_data().get("rebuilt_per_bucket_param_indices", "")
    parameters, _ = ddp._build_params_for_reducer()
    return [[parameters[int(k)] for k in bucket.split()] for bucket in told.split(",")]


def unused_parameters(ddp: Any) -> list[Tensor]:
    """Return the parameters that no rank has used in the last pass, of a model with find_unused_parameters.

    Their gradients stay as they were, whatever was exchanged.
    """
    used: list[int] = ddp.reducer._get_local_used_map().tolist()
    parameters, _ = ddp._build_params_for_reducer()
    return [p for p, ranks in zip(parameters, used, strict=True) if not ranks]


def forget_forward() -> None:
    """Let no model be the one that is in its forward pass.

    torch keeps it for the compiler in one place for all threads, and each puts back what it has found there, which may
    be another's: when all have ended, it may be a model that is long gone.
    """
    DistributedDataParallel._active_ddp_module = None  # pyright: ignore


def is_in_backward() -> bool:
    """Say whether this thread runs a backward pass."""
    return torch._C._current_graph_task_id() != -1  # pyright: ignore


def after_backward(callback: Callable[[], None]) -> None:
    """Call a function at the end of the current backward pass, after those that were registered before.

    An error that it raises comes out of ``backward()``, and later functions are not called.
    """
    torch.autograd.Variable._execution_engine.queue_callback(callback)  # pyright: ignore


class DDPListener(Protocol):
    """Protocol of a listener to a DistributedDataParallel model's next actions."""

    def begin(self, uneven: bool, by_all: bool) -> None:
        """Hear that a forward pass begins, or that a rank without batches stands in for one, in DDP's join().

        Args:
            uneven: Whether join() is on, so that ranks may be missing.
            by_all: Whether means are over all ranks also then.

        """
        ...

    def explain(self, error: RuntimeError) -> RuntimeError | None:
        """Return the error to raise for a failed message of DDP before a forward pass; None for DDP's own."""
        ...

    def check_join(self) -> None:
        """Refuse join() by raising."""
        ...

    def end_join(self, root: int) -> None:
        """Hear that join() has ended, and whose model all ranks have been given."""
        ...


def listen(ddp: nn.Module, listener: DDPListener) -> None:
    """Register a listener to a DistributedDataParallel model for the life of the model."""
    weak: Any = weakref.ref(ddp)  # no cycle: connections close when nobody holds the model any more
    over: list[Any] = [None]  # the settings of the last join that has ended, which DDP keeps

    def begin(itself: Any) -> None:
        uneven = itself._join_config.enable and itself._join_config is not over[0]
        listener.begin(uneven, getattr(itself, "_divide_by_initial_world_size", True))

    def _pre_forward(*inputs: Any, **named: Any) -> Any:
        itself = weak()
        begin(itself)
        try:
            return type(itself)._pre_forward(itself, *inputs, **named)
        except RuntimeError as error:
            explained = listener.explain(error)
            if explained is None:
                raise
            raise explained from error

    def join(
        divide_by_initial_world_size: bool = True, enable: bool = True, throw_on_early_termination: bool = False
    ) -> Any:
        itself = weak()
        if enable:
            listener.check_join()
        return type(itself).join(itself, divide_by_initial_world_size, enable, throw_on_early_termination)

    def _join_hook(**options: Any) -> Any:
        itself = weak()
        hook = type(itself).join_hook(itself, **options)
        main, post = hook.main_hook, hook.post_hook

        def main_hook() -> None:
            begin(itself)
            main()

        def post_hook(is_last_joiner: bool) -> None:
            post(is_last_joiner)
            over[0] = itself._join_config
            listener.end_join(itself._authoritative_rank)

        hook.main_hook, hook.post_hook = main_hook, post_hook
        return hook

    for name, method in (("_pre_forward", _pre_forward), ("join", join), ("join_hook", _join_hook)):
        setattr(ddp, name, _Instead(weak, name, method))


def watch_module(
    ddp: nn.Module, before: Callable[[Any, Any], None], after: Callable[[Any], None]
) -> Callable[[], None]:
    """Call functions with the arguments and the output of the module in a DistributedDataParallel.

    Neither is compiled with the module: a hook of the module's own would be, and guard each step's state.

    Args:
        ddp: The model.
        before: Gets the positional arguments and those by name.
        after: Gets the output.

    Returns:
        A function that ends it; a second call does nothing.

    """
    around = vars(ddp).get("_run_ddp_forward")
    if around is None:
        around = _Around(weakref.ref(ddp))
        vars(ddp)["_run_ddp_forward"] = around
    disable: Any = torch.compiler.disable
    watcher = disable(before), disable(after)
    around.watchers.append(watcher)

    def end() -> None:
        if watcher in around.watchers:
            around.watchers.remove(watcher)

    return end


class _Instead:
    """A method of one model; in a copy or a pickle of the model it is the class's own again."""

    def __init__(self, model: Any, name: str, method: Callable[..., Any]) -> None:
        self._model, self._name, self._method = model, name, method

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        return self._method(*inputs, **named)

    def __reduce__(self) -> tuple[Any, ...]:
        itself = self._model()
        return functools.partial, (getattr(type(itself), self._name), itself)


class _Around(_Instead):
    """Wrapper of the module's call in a DDP, with its observers."""

    def __init__(self, model: Any) -> None:
        self.watchers: list[tuple[Callable[[Any, Any], None], Callable[[Any], None]]] = []
        disable: Any = torch.compiler.disable
        super().__init__(model, "_run_ddp_forward", disable(self._watched, recursive=False))  # the module still is

    def _watched(self, *inputs: Any, **named: Any) -> Any:
        itself, watchers = self._model(), tuple(self.watchers)
        for before, _ in watchers:
            before(inputs, named)
        output = type(itself)._run_ddp_forward(itself, *inputs, **named)
        for _, after in watchers:
            after(output)
        return output
