"""Communication threads: run exchange tasks in the order of submission, which is the same on every rank."""

import os
import queue
import threading
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from pliant.accelerator import current_stream, new_stream
from pliant.engine.tracer import TaskRecord, Tracer

__all__ = ["CommThread", "TaskHandle"]

Task = Callable[[], None]


class TaskHandle:
    """Handle of a task in a communication thread."""

    def __init__(self, comm_thread: "CommThread") -> None:
        self._comm_thread = comm_thread
        self._done = threading.Event()
        self._recorded: Any = None
        self.failed = False
        """Whether the task has failed or was dropped, once it is done, whoever has heard of the error."""

    @property
    def done(self) -> bool:
        """Whether the task has ended, was dropped or failed; on an accelerator, whether the device has got there."""
        return self._done.is_set() and (self._recorded is None or self._recorded.query())

    def wait(self) -> None:
        """Wait until the task is done (or let the device's stream wait), and raise an error that the comm thread has
        met.
        """
        self.follow()
        self._comm_thread.raise_error()

    def follow(self) -> None:
        """Wait until the task is done, or let the device's stream wait; whatever has become of it."""
        self._done.wait()
        if self._recorded is not None:
            current_stream(self._comm_thread.device).wait_event(self._recorded)

    def mark_done(self, recorded: Any, *, failed: bool) -> None:
        """Note that the task is done, and the event of its stream on an accelerator. Called by the comm thread."""
        self._recorded, self.failed = recorded, failed
        self._done.set()


@dataclass(eq=False, kw_only=True)
class _Queued:
    """A task on its way through the threads."""

    stages: Generator[None]
    alone: bool
    """Whether it begins when all before it have ended, and runs as a whole."""
    done: Task
    handle: TaskHandle
    record: TaskRecord | None
    ready: Any
    """Event of the stream that it comes from, on an accelerator."""
    dropped: bool = False


class CommThread:
    """Runs tasks in the order of submission, beside the caller.

    A thread of its own does it: waiting for Gloo releases the GIL, so the backward pass goes on, and so it does where a
    task waits for an accelerator. There each task has a stream that waits for the caller's at the time of `submit`, and
    goes before it.

    With several stages there is a thread, and a stream, for each. The exchange of a bucket may come in stages
    (`submit_stages`): while one is in its second, the next may be in its first, so that the wire need not wait for
    copies and kernels. What `submit` takes runs in the first thread, when all before it has gone through the last.

    Note [one order of collectives]: the ranks of a group must make the same calls in the same order. So each group
    belongs to one communication thread; with stages, the thread of the second one has messages with a tag of their own
    there, and that of the first all else. Gradients have threads of their own, whose tasks are submitted in
    DDP's order of buckets, which is the same on all ranks, and go through all stages in this order; weights have
    another, with a group of its own (`another`). The training thread uses a group itself only between two steps, after
    `drain`. Nothing is communicated in a future's callback. What needs an order of its own has groups of its own:
    server threads, exchanges at a free pace and the tuner.

    After a task fails, later ones are dropped, so that nothing waits for a peer that will not answer; the next call
    that waits raises the first error.

    Args:
        device: Device of the tensors.
        name: Name of the thread.
        tracer: Tracer that records named tasks.
        num_stages: Threads, one for each stage of an exchange.

    """

    def __init__(self, device: torch.device, name: str, tracer: Tracer, num_stages: int = 1) -> None:
        self._tracer = tracer
        self.device = device
        self._streams = [new_stream(device) for _ in range(num_stages)]
        self._queues: list[queue.SimpleQueue[_Queued | None]] = [queue.SimpleQueue() for _ in range(num_stages)]
        self._last: TaskHandle | None = None
        self._passed_on: TaskHandle | None = None
        self._error: BaseException | None = None
        self._lock, self._num_busy, self._busy_from_s = threading.Lock(), 0, 0.0
        self.busy_s = 0.0
        """Time spent in tasks, by one thread or several."""
        self._stopped, self._pid = False, os.getpid()
        names = [name if k == 0 else f"{name}-{k + 1}" for k in range(num_stages)]
        self._threads = [
            threading.Thread(target=self._work, args=(k,), name=each, daemon=True) for k, each in enumerate(names)
        ]
        for thread in self._threads:
            thread.start()
        tracer.shutdown.add(self)

    def submit(self, task: Task, done: Task = lambda: None, *, name: str = "", step: int = 0) -> TaskHandle:
        """Queue a task; `done` follows it in any case, also when the task failed or was dropped.

        Args:
            task: Function to run in the thread.
            done: Function to run after it.
            name: Bucket that it exchanges, for timelines; "" for other tasks.
            step: Step in which that bucket was ready.

        Raises:
            RuntimeError: The run has ended, or this process was forked from the one that trains.

        """
        return self._submit((task() for _ in range(1)), done, name, step, alone=True)

    def submit_stages(self, stages: Generator[None], done: Task, *, name: str, step: int) -> TaskHandle:
        """Queue the exchange of a bucket, which yields where its next stage begins; the rest as for `submit`."""
        return self._submit(stages, done, name, step, alone=False)

    def submit_all(self, tasks: Iterable[tuple[str, Task]], *, step: int) -> TaskHandle:
        """Queue the tasks that are there when the tasks before have ended, each under its bucket's name."""

        def run() -> None:
            for name, task in tasks:
                with self._tracer.task(name, step):
                    task()

        return self.submit(run)

    def drain(self) -> None:
        """Wait until every task is done, and raise the first error that one of them met."""
        if self._last is not None:
            self._last.wait()
        self.raise_error()

    def raise_error(self) -> None:
        """Raise the first error that a task met, once."""
        if self._error is None:
            return
        error, self._error = self._error, None
        try:
            raise error
        finally:
            del error  # else it would hold this frame, which holds it, and with both every connection on its way

    def stop(self) -> None:
        """Drop queued tasks, and end the threads. Takes no lock and waits for nobody."""
        self._stopped = True
        self._queues[0].put(None)

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for the threads to end, for each no longer than this."""
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(timeout_s)

    def close(self) -> None:
        """Finish what is queued and end the threads."""
        if self._threads and self._pid == os.getpid():
            self._queues[0].put(None)
            for thread in self._threads:
                thread.join()
            self._threads = []
        self._stopped = True

    def _submit(self, stages: Generator[None], done: Task, name: str, step: int, *, alone: bool) -> TaskHandle:
        if self._stopped or self._pid != os.getpid():
            raise RuntimeError(
                "this run has ended, so nothing can be exchanged; call relax() again."
                if self._stopped
                else "this process was forked from one that trains, and cannot take part in its exchanges; let the "
                "process that called relax() train, or start processes that train with 'spawn'."
            )
        handle = self._last = TaskHandle(self)
        ready = None if self._streams[0] is None else current_stream(self.device).record_event()
        record = self._tracer.new_task(name, step)
        self._queues[0].put(_Queued(stages=stages, alone=alone, done=done, handle=handle, record=record, ready=ready))
        return handle

    def _work(self, k: int) -> None:
        while (queued := self._queues[k].get()) is not None:
            self._take(k, queued)
            del queued  # a thread that waits must not hold what it has done, or the run is never let go of
        for later in self._queues[k + 1 : k + 2]:
            later.put(None)

    def _take(self, k: int, queued: _Queued) -> None:
        stream, ends = self._streams[k], queued.alone or k + 1 == len(self._queues)
        with self._keep_error(queued), stream or nullcontext():
            with self._keep_error(queued):
                if stream is not None:
                    stream.wait_event(queued.ready)
                if queued.alone and self._passed_on is not None:
                    self._passed_on.follow()
                    self._passed_on = None
                self._run(queued, ends)
            if ends:
                queued.done()
            queued.ready = None if stream is None else stream.record_event()
        if ends:
            queued.handle.mark_done(queued.ready, failed=queued.dropped)
            return
        if k == 0:
            self._passed_on = queued.handle
        self._queues[k + 1].put(queued)

    def _run(self, queued: _Queued, ends: bool) -> None:
        self._count_busy(1)
        try:
            queued.dropped |= self._error is not None or self._stopped
            if not queued.dropped:
                with self._tracer.part_of(queued.record, ends):
                    next(queued.stages, None)
                    for _ in queued.stages if ends else ():
                        pass
        finally:
            self._count_busy(-1)

    @contextmanager
    def _keep_error(self, queued: _Queued) -> Generator[None]:
        """Keep an error of the block for who waits: the thread lives on, since nobody would see how it has ended."""
        try:
            yield
        except BaseException as error:  # noqa: BLE001  whatever it is, who waits raises it where the user can see it
            self._error = self._error or error
            queued.dropped = True

    def _count_busy(self, change: int) -> None:
        with self._lock:
            now_s = time.perf_counter()
            self.busy_s += now_s - self._busy_from_s if self._num_busy else 0.0
            self._num_busy, self._busy_from_s = self._num_busy + change, now_s
