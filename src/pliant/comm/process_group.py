"""Comm over a torch process group."""

import time
import weakref
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.distributed import ProcessGroup  # pyright: ignore[reportPrivateImportUsage]

from pliant.accelerator import is_accelerator, synchronize
from pliant.comm import calls
from pliant.comm.base import CommError, Limit, PeerTensors, ReduceOp, Work, require_contiguous, require_numel
from pliant.comm.expecting import ExpectsMessages
from pliant.comm.gloo_private import more_connections
from pliant.comm.liveness import HeartbeatMonitor
from pliant.comm.pending import PendingWorks
from pliant.comm.progress import Progress
from pliant.comm.small_gather import gather_small
from pliant.comm.striping import Striping
from pliant.comm.torch_private import GroupMaker, backend_of, destroy, hang_up, is_destroyed, set_timeout

__all__ = ["ProcessGroupComm"]

_Call = Callable[[], calls.Works]
_CPU = torch.device("cpu")


class ProcessGroupComm(ExpectsMessages):
    """Comm over a torch process group, usually one that nothing else uses (`new_comm`).

    Args:
        group: The group; rank and size are read from it and never from the default world.
        limit: Longest wait for one communication.
        make_group: Makes smaller groups, for `split`.
        owns_group: Whether close() destroys the group.
        liveness: Heartbeats, by which a lost rank is named.
        owns_liveness: Whether close() ends it.
        progress: How far this rank has come in it; None for a group of all ranks.
        device: Device of the tensors.

    """

    def __init__(
        self,
        group: ProcessGroup,
        *,
        limit: Limit,
        make_group: GroupMaker,
        owns_group: bool = False,
        liveness: HeartbeatMonitor | None = None,
        owns_liveness: bool = True,
        progress: Progress | None = None,
        device: torch.device = _CPU,
    ) -> None:
        self.group, self._device = group, device
        self._limit, self._make_group, self._owns_group = limit, make_group, owns_group
        self._liveness, self._owns_liveness, self._hung_up = liveness, owns_liveness, False
        self.rank, self.size = group.rank(), group.size()
        self._striping, self._more = Striping(self.size, 1), list[ProcessGroup]()
        self.progress = progress or Progress(tuple(range(self.size)), self.size)
        self._parts: weakref.WeakSet[ProcessGroupComm] = weakref.WeakSet()
        if liveness is not None:
            liveness.follow(group.group_name, self.progress)

    @property
    def timeout_s(self) -> float:
        return self._limit.timeout_s

    @property
    def connections(self) -> int:
        """Connections between each two ranks."""
        return self._striping.connections

    def reconnect(self, connections: int) -> None:
        """Have so many connections between each two ranks from now on. Collective, with nothing in flight.

        What was split from this comm before keeps its own; what is split later has as many.
        """
        self._connect(connections)
        self.barrier()  # see `split`

    def _connect(self, connections: int) -> None:
        self._striping, start_s = Striping(self.size, connections), time.monotonic()
        try:
            self._more = more_connections(self.group, connections - 1, self.timeout_s)
        except RuntimeError as error:
            raise self.given_up("connect", error, "", time.monotonic() - start_s) from error

    def with_timeout(self, timeout_s: float) -> None:
        """Wait no longer than this for one communication from now on, also in what was split from this comm."""
        self._limit.timeout_s = timeout_s
        for group in () if self._open_group is None else self._groups:  # whose own limit ends what is under way in it
            set_timeout(group, timeout_s)
        for part in list(self._parts):
            part.with_timeout(timeout_s)

    def all_reduce(self, x: Tensor, op: ReduceOp = "sum") -> Work:
        require_contiguous(x)
        return self._start("all_reduce", x, lambda: calls.all_reduce(self._groups, x, op, self._striping))

    def all_gather(self, out: Tensor, x: Tensor) -> Work:
        require_contiguous(out, x)
        require_numel("all_gather", out, x.numel() * self.size)
        return self._start("all_gather", x, lambda: calls.all_gather(self._groups, out, x, self._striping))

    def reduce_scatter(self, out: Tensor, x: Tensor, op: ReduceOp = "sum") -> Work:
        require_contiguous(out, x)
        require_numel("reduce_scatter", x, out.numel() * self.size)
        return self._start("reduce_scatter", x, lambda: calls.reduce_scatter(self.group, out, x, op))

    def all_to_all(self, out: Tensor, x: Tensor) -> Work:
        require_contiguous(out, x)
        require_numel("all_to_all", out, x.numel())
        return self._start("all_to_all", x, lambda: calls.all_to_all(self._groups, out, x, self._striping))

    def exchange(
        self, sends: PeerTensors, receives: PeerTensors, *, turn: int = 0, tag: int = 0, patience_s: float | None = None
    ) -> Work:
        tensors = [x for _, x in (*sends, *receives)]
        require_contiguous(*tensors)
        for peer, _ in sends:
            self.progress.sends(peer)
        for peer, _ in receives:
            self.progress.awaits(peer)

        def call() -> calls.Works:
            return calls.exchange(self._groups, sends, receives, self._striping, turn, tag)

        return self._begin("exchange", call, tensors, sum(x.nbytes for _, x in sends), patience_s)

    def broadcast(self, x: Tensor, root: int) -> Work:
        require_contiguous(x)
        return self._start("broadcast", x, lambda: calls.broadcast(self._groups, x, root, self._striping))

    def reduce(self, x: Tensor, root: int) -> Work:
        require_contiguous(x)
        return self._start("reduce", x, lambda: calls.reduce(self.group, x, root))

    def barrier(self) -> None:
        gather_small(self, torch.zeros(1, device=self._device))  # Gloo's own barrier takes no timeout of ours
        synchronize(self._device)

    def split(self, groups: Sequence[Sequence[int]], connections: int = 0) -> "ProcessGroupComm | None":
        mine: ProcessGroupComm | None = None
        for ranks in groups:
            if self.rank in ranks:
                start_s = time.monotonic()
                try:
                    group = self._make_group(list(ranks))
                except RuntimeError as error:
                    raise self.given_up("split", error, "", time.monotonic() - start_s) from error
                mine = ProcessGroupComm(
                    group,
                    limit=self._limit,
                    make_group=lambda inner, outer=list(ranks): self._make_group(
                        outer if inner is None else [outer[i] for i in inner]
                    ),
                    owns_group=True,
                    liveness=self._liveness,
                    owns_liveness=False,
                    progress=Progress(tuple(self.progress.members[k] for k in ranks), self.progress.total),
                    device=self._device,
                )
                self._parts.add(mine)
                mine._connect(connections or self.connections)
        # Gloo connects all pairs of a group, and a rank is done when its own are. One that closed its connections now,
        # as a run that fails at its first step does, would break those of ranks that still connect.
        self.barrier()
        return mine

    def beside(self, factory: Callable[[Limit], GroupMaker], device: torch.device) -> "ProcessGroupComm":
        """Return a comm over another group of the same ranks, with the timeout and the heartbeats of this one."""
        make_group = factory(self._limit)
        other = ProcessGroupComm(
            make_group(None),
            limit=self._limit,
            make_group=make_group,
            owns_group=True,
            liveness=self._liveness,
            owns_liveness=False,
            device=device,
        )
        self._parts.add(other)
        return other

    @property
    def is_in_order(self) -> bool:
        group = self._open_group
        return is_accelerator(self._device) and group is not None and backend_of(group, self._device) != "gloo"

    prefers_collectives = is_in_order

    @property
    def is_destroyed(self) -> bool:
        return (group := self._open_group) is not None and is_destroyed(group)

    @property
    def _open_group(self) -> ProcessGroup | None:
        return getattr(self, "group", None)  # another thread may close this comm meanwhile

    @property
    def _groups(self) -> Sequence[ProcessGroup]:
        """The group, and those of more connections. Raises AttributeError once it is closed."""
        return [self.group, *self._more]

    def hang_up(self) -> None:
        self._hung_up = True
        for part in list(self._parts):
            part.hang_up()
        self.give_up()

    def give_up(self) -> None:
        """Close this group's connections after a failure, so that late ranks do not continue with only some others."""
        if (group := self._open_group) is not None and self._owns_group:
            for each in (group, *self._more):
                hang_up(each)

    def close(self) -> None:
        if not self._owns_group:
            return
        self._owns_group = False
        for part in list(self._parts):
            part.close()
        if self._liveness is not None and self._owns_liveness:
            self._liveness.close()
        self.expect_no_more()
        destroy(self.group)
        self._more = []
        del self.group  # a group of Gloo closes its connections with its last reference

    def given_up(self, op: str, error: BaseException, size: str, waited_s: float) -> CommError:
        """Make the report of a failed communication, and close the connections."""
        failure = self.failure(op, error, size, waited_s)
        self.give_up()
        return failure

    def failure(self, op: str, error: BaseException, size: str = "", waited_s: float | None = None) -> CommError:
        """Make the report of a failed communication: the rank that noticed, the operation, and lost ranks."""
        me, group, verdict = self.progress.members[self.rank], self._open_group, None
        if group is None or self._hung_up:
            who = "this rank has hung up meanwhile"
        elif self.is_destroyed:
            who = "destroy_process_group() was called while the run was open; call close() first"
        elif self._liveness is None:
            who = "which rank is lost is not known"
        else:
            verdict = self._liveness.blame(group.group_name, waited_s or 0.0, self.timeout_s)
            who = verdict.sentence(me, self.timeout_s)
        after = "" if waited_s is None else f" after {waited_s:.1f}s (timeout {self.timeout_s:g}s)"
        return CommError(
            f"rank {me} of {self.progress.total}: {op}{size} failed{after}: {who}. Cause: {str(error).splitlines()[0]}",
            rank=me,
            op=op,
            lost=() if verdict is None else tuple(rank for rank in verdict.gone if rank != me),
        )

    def _start(self, op: str, x: Tensor, call: _Call) -> Work:
        self.progress.collective()
        return self._begin(op, call, [x], x.nbytes)

    def _begin(
        self, op: str, call: _Call, moved: Sequence[Tensor], num_bytes: int, patience_s: float | None = None
    ) -> Work:
        try:
            works = [work for work in call() if work is not None]
        except (RuntimeError, ValueError, AttributeError) as error:
            if not isinstance(error, RuntimeError) and hasattr(self, "group") and not self.is_destroyed:
                raise  # not one of a group that was destroyed, or closed by another thread
            raise self.given_up(op, error, f" of {num_bytes} bytes", 0.0) from error
        on_host = not any(is_accelerator(x.device) for x in moved)
        return PendingWorks(self, op, works, num_bytes, patience_s, on_host=on_host)
