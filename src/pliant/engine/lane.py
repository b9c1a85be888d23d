"""The lane: where all communication of a run happens, one task after another, in the same order on every rank."""

import queue
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

import torch

__all__ = ["Lane"]

Task = Callable[[], None]


class Lane:
    """Runs tasks in the order of submission, beside the caller.

    On CPU a thread of its own does it: waiting for Gloo releases the GIL, so the backward pass goes on. On CUDA
    tasks only launch kernels, so they run at once, on a stream of their own that waits for the caller's.

    After a task fails, later ones are dropped, so that nothing waits for a peer that will not answer; `drain`
    raises the first error.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._tasks: queue.SimpleQueue[tuple[Task, Task] | None] = queue.SimpleQueue()
        self._idle = threading.Condition()
        self._num_open = 0
        self._error: BaseException | None = None
        self.busy_s = 0.0
        """Time spent in tasks."""
        self._thread: threading.Thread | None = None
        if self._stream is None:
            self._thread = threading.Thread(target=self._work, name="pliant-lane", daemon=True)
            self._thread.start()

    def submit(self, task: Task, done: Task = lambda: None) -> None:
        """Queue a task; `done` follows it in any case, also when the task failed or was dropped."""
        if self._stream is not None:
            with self._on_stream(self._stream):
                self._run(task, done)
            return
        with self._idle:
            self._num_open += 1
        self._tasks.put((task, done))

    def drain(self) -> None:
        """Wait until every task is done, and raise the first error that one of them met."""
        with self._idle:
            self._idle.wait_for(lambda: self._num_open == 0)
            error, self._error = self._error, None
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)
        if error is not None:
            raise error

    @property
    def failed(self) -> bool:
        """Whether an error waits to be raised."""
        return self._error is not None

    def close(self) -> None:
        """Finish what is queued and end the thread."""
        if self._thread is not None:
            self._tasks.put(None)
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        while (item := self._tasks.get()) is not None:
            self._run(*item)
            with self._idle:
                self._num_open -= 1
                self._idle.notify_all()

    def _run(self, task: Task, done: Task) -> None:
        start_s = time.perf_counter()
        try:
            if self._error is None:
                task()
        except BaseException as error:  # noqa: BLE001  whatever it is, drain raises it where the user can see it
            self._error = error
        finally:
            self.busy_s += time.perf_counter() - start_s
            done()

    @contextmanager
    def _on_stream(self, stream: "torch.cuda.Stream") -> Generator[None]:
        stream.wait_stream(torch.cuda.current_stream(stream.device))
        with torch.cuda.stream(stream):
            yield
