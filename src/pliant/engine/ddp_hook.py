"""Front end of DDP: buckets come from DDP's communication hook, in DDP's order."""

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed import GradBucket, ProcessGroup  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from pliant.accelerator import is_accelerator
from pliant.buckets import real_shape
from pliant.comm.base import CommError
from pliant.comm.ddp_private import (
    BucketCaps,
    has_comm_hook,
    is_settled,
    listen,
    rebuild_reducer,
    settle_buckets,
    unused_parameters,
)
from pliant.comm.torch_errors import Report, report_nothing
from pliant.engine.joining import JoinState
from pliant.engine.relaxed_model import list_tensors

__all__ = ["DDPHook", "ReadyBucket", "complete_buckets", "has_other_hook", "install_hook"]


@dataclass(kw_only=True)
class ReadyBucket:
    """A bucket whose gradients are complete."""

    index: int
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    """Shapes of its parameters; complex ones as pairs of real numbers, as DDP lays them out."""
    buffer: Tensor
    """Flat tensor of DDP, (numel,); its content when `complete_buckets` is called becomes the gradient."""
    last: bool
    finish: Callable[[], None]
    filled: bool = True
    """Whether gradients are in the buffer already; else an earlier task of the communication thread puts them there."""


def complete_buckets(buckets: Sequence[ReadyBucket]) -> None:
    """Hand buckets back to DDP."""
    for ready in buckets:
        ready.finish()


class DDPHook:
    """Communication hook of a DDP model. DDP accepts one for life, so it outlives a run, and then all-reduces."""

    def __init__(self, ddp: DistributedDataParallel) -> None:
        self._group = cast(ProcessGroup, ddp.process_group)
        self._given = self._caps = BucketCaps.of(ddp)
        self._names = {id(p): n for n, p in list_tensors(ddp.module)}
        self.layout: dict[int, tuple[str, ...]] = {}
        """Bucket -> its parameters in the next pass; empty before the first."""
        self.settled = True
        """Whether the layout is final; that of a static graph is not before the end of its first pass."""
        self._complete = False
        """Whether a pass has come to its end since buckets were last looked at."""
        self._receive: weakref.WeakMethod[Callable[[ReadyBucket], None]] | None = None
        self._joining: weakref.ref[JoinState] | None = None
        self.report: Report = report_nothing
        """Function that names the lost rank when DDP's own messages before a forward pass fail."""

    @property
    def receive(self) -> Callable[[ReadyBucket], None] | None:
        """The method that takes the buckets, or None between runs.

        It is held weakly: DDP holds this object where Python's garbage collector cannot see it.
        """
        return None if self._receive is None else self._receive()

    @receive.setter
    def receive(self, method: Callable[[ReadyBucket], None] | None) -> None:
        self._receive = None if method is None else weakref.WeakMethod(method)

    @property
    def joining(self) -> JoinState | None:
        """Listener that is told of DDP's join(); held weakly as well."""
        return None if self._joining is None else self._joining()

    @joining.setter
    def joining(self, joining: JoinState | None) -> None:
        self._joining = None if joining is None else weakref.ref(joining)

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        """Leave nothing in a copy or a pickle of the model, which has a reducer of its own without a hook."""
        return type(None), ()

    def hook(self, bucket: GradBucket) -> Future[Tensor]:
        """Take a bucket from DDP's reducer; runs in the autograd thread."""
        index, parameters, receive = bucket.index(), bucket.parameters(), self.receive
        names = tuple(self._names[id(p)] for p in parameters)
        self.layout = {**self.layout, index: names} if index else {0: names}
        self._complete = bucket.is_last()
        if receive is None:
            return allreduce_hook(self._group, bucket)
        buffer = bucket.buffer()
        # A future of a device records the stream that is current in `complete_buckets`, which is the comm thread's.
        future: Future[Any] = Future(devices=[buffer.device] if is_accelerator(buffer.device) else None)
        receive(
            ReadyBucket(
                index=index,
                names=names,
                shapes=tuple(real_shape(p) for p in parameters),
                buffer=buffer,
                last=self._complete,
                finish=lambda: future.set_result(buffer),
            )
        )
        return future

    def rebucket(self, ddp: DistributedDataParallel, bucket_bytes: int) -> None:
        """Set the largest size of all buckets in bytes; 0 for the sizes that the model came with."""
        wanted = BucketCaps(most=bucket_bytes, first=bucket_bytes) if bucket_bytes else self._given
        if wanted != self._caps:
            rebuild_reducer(ddp, wanted)
            ddp.register_comm_hook(self, _hook)
            self._caps, self.layout, self.settled = wanted, {}, True

    def renew(self, ddp: DistributedDataParallel) -> None:
        """Give DDP a new reducer after a pass that was broken off, whose end the old one waits for."""
        rebuild_reducer(ddp, self._caps)
        ddp.register_comm_hook(self, _hook)
        self.layout, self.settled = {}, True

    def settle(self, ddp: DistributedDataParallel) -> bool:
        """Let DDP rebuild its buckets, if that is due; say whether they are final.

        A saved state then holds the layout of the next pass. Collective, in DDP's group, between two steps.
        """
        if not self._complete:
            return False
        self._complete = False
        try:
            buckets = settle_buckets(ddp)
        except RuntimeError as error:
            explained = self.explain(error)
            if explained is None:
                raise
            raise explained from error
        if buckets is not None:
            self.layout = {k: tuple(self._names[id(p)] for p in held) for k, held in enumerate(buckets)}
        self.settled = is_settled(ddp)
        return self.settled

    def unused_parameters(self, ddp: DistributedDataParallel) -> dict[str, Tensor]:
        """Return the parameters that no rank has used in the last pass, by name: DDP drops their results."""
        return {self._names[id(p)]: p for p in unused_parameters(ddp)}

    def begin(self, uneven: bool, by_all: bool) -> None:
        """Tell the run that a pass begins, and whether ranks may be missing in it."""
        if self.receive is not None and self.joining is not None:
            self.joining.begin(uneven=uneven, by_all=by_all)

    def check_join(self) -> None:
        """Let the run refuse join()."""
        if self.receive is not None and self.joining is not None:
            self.joining.check()

    def end_join(self, root: int) -> None:
        """Tell the run that join() has ended, with this rank's model everywhere."""
        if self.receive is not None and self.joining is not None:
            self.joining.end(root)

    def explain(self, error: RuntimeError) -> CommError | None:
        """Return the report of a lost rank; None if all are alive and the error has another cause."""
        return None if self.receive is None else self.report(error, "DDP's broadcast before a forward pass", None)


_hooks: "weakref.WeakKeyDictionary[nn.Module, DDPHook]" = weakref.WeakKeyDictionary()


def _hook(state: DDPHook, bucket: GradBucket) -> Future[torch.Tensor]:
    return state.hook(bucket)


def has_other_hook(ddp: DistributedDataParallel) -> bool:
    """Say whether somebody else has registered a communication hook, of which DDP accepts one."""
    return ddp not in _hooks and has_comm_hook(ddp)


def install_hook(ddp: DistributedDataParallel) -> DDPHook:
    """Return the model's hook, registered with DDP the first time.

    Raises:
        RuntimeError: Another communication hook is registered, or another run is still open on this model.

    """
    front = _hooks.get(ddp)
    if front is None:
        front = DDPHook(ddp)
        try:
            ddp.register_comm_hook(front, _hook)
        except RuntimeError as error:
            raise RuntimeError(
                "this DDP model already has a communication hook, and Pliant needs that place; "
                f"wrap the module in a new DistributedDataParallel without one ({error})."
            ) from error
        listen(ddp, front)
        _hooks[ddp] = front
    if front.receive is not None:
        raise RuntimeError("this model already has an open run; close() it first, or switch() its plan.")
    return front
