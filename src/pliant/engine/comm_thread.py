"""Communication thread: runs exchange tasks in the order of submission, the same on every rank."""

import os
import queue
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import torch

from pliant.engine.tracer import Tracer

__all__ = ["CommThread", "TaskHandle"]

Task = Callable[[], None]


class TaskHandle:
    """A task in a comm thread."""

    def __init__(self, comm_thread: "CommThread") -> None:
        self._comm_thread = comm_thread
        self._done = threading.Event()
        self._recorded: Any = None

    @property
    def done(self) -> bool:
        """Whether the task has ended, was dropped or failed; on CUDA, whether the device has got there."""
        return self._done.is_set() and (self._recorded is None or self._recorded.query())

    def wait(self) -> None:
        """Wait until the task is done (on CUDA: let the current stream wait), and raise an error the comm thread has
        met.
        """
        self._done.wait()
        if self._recorded is not None:
            torch.cuda.current_stream().wait_event(self._recorded)
        self._comm_thread.raise_error()

    def mark_done(self, recorded: Any) -> None:
        """Note that the task is done, and the event of its stream on CUDA. Called by the comm thread."""
        self._recorded = recorded
        self._done.set()


class CommThread:
    """Runs tasks in the order of submission, beside the caller.

    On CPU a thread of its own does it: waiting for Gloo releases the GIL, so the backward pass goes on. On CUDA
    tasks only launch kernels, so they run at once, on a stream of their own that waits for the caller's.

    After a task fails, later ones are dropped, so that nothing waits for a peer that will not answer; whoever waits
    next raises the first error.

    Args:
        device: Where the tensors are.
        name: Of the thread.
        tracer: Where tasks that have a name are noted.

    """

    def __init__(self, device: torch.device, name: str, tracer: Tracer) -> None:
        self._tracer = tracer
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._tasks: queue.SimpleQueue[tuple[Task, Task, TaskHandle, str, int] | None] = queue.SimpleQueue()
        self._last: TaskHandle | None = None
        self._error: BaseException | None = None
        self.busy_s = 0.0
        """Time spent in tasks."""
        self._stopped, self._pid = False, os.getpid()
        self._thread: threading.Thread | None = None
        if self._stream is None:
            self._thread = threading.Thread(target=self._work, name=name, daemon=True)
            self._thread.start()
            tracer.shutdown.add(self)

    def submit(self, task: Task, done: Task = lambda: None, *, name: str = "", step: int = 0) -> TaskHandle:
        """Queue a task; `done` follows it in any case, also when the task failed or was dropped.

        Args:
            task: What to do.
            done: What to do then.
            name: Of the bucket that it exchanges, if it does: for timelines.
            step: In which that bucket was ready.

        Raises:
            RuntimeError: The run has ended, or this process was forked from the one that trains.

        """
        if self._stopped or self._pid != os.getpid():
            raise RuntimeError(
                "this run has ended, so nothing can be exchanged; call relax() again."
                if self._stopped
                else "this process was forked from one that trains, and cannot take part in its exchanges; let the "
                "process that called relax() train, or start processes that train with 'spawn'."
            )
        handle = self._last = TaskHandle(self)
        if self._stream is not None:
            with self._on_stream(self._stream):
                self._run(task, done, name, step)
                handle.mark_done(self._stream.record_event())
        else:
            self._tasks.put((task, done, handle, name, step))
        return handle

    def submit_all(self, tasks: list[tuple[str, Task]], *, step: int) -> TaskHandle:
        """Queue all tasks, each under its bucket's name, that are in the list when those before have ended."""

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
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
        finally:
            del error  # else it would hold this frame, which holds it, and with both every connection on its way

    def stop(self) -> None:
        """Drop what has not begun, and end the thread. Takes no lock and waits for nobody."""
        self._stopped = True
        self._tasks.put(None)

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for the thread to end."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def close(self) -> None:
        """Finish what is queued and end the thread."""
        if self._thread is not None and self._pid == os.getpid():
            self._tasks.put(None)
            self._thread.join()
            self._thread = None
        self._stopped = True

    def _work(self) -> None:
        while (item := self._tasks.get()) is not None:
            self._take(*item)
            del item  # a thread that waits must not hold what it has done, or the run is never let go of

    def _take(self, task: Task, done: Task, handle: TaskHandle, name: str, step: int) -> None:
        self._run(task, done, name, step)
        handle.mark_done(None)

    def _run(self, task: Task, done: Task, name: str, step: int) -> None:
        start_s = time.perf_counter()
        try:
            if self._error is None and not self._stopped:
                with self._tracer.task(name, step):
                    task()
        except BaseException as error:  # noqa: BLE001  whatever it is, who waits raises it where the user can see it
            self._error = error
        finally:
            self.busy_s += time.perf_counter() - start_s
            done()

    @contextmanager
    def _on_stream(self, stream: "torch.cuda.Stream") -> Generator[None]:
        stream.wait_stream(torch.cuda.current_stream(stream.device))
        with torch.cuda.stream(stream):
            yield
