"""Thread that does something twice a second, such as giving heartbeats."""

import queue
import threading
from collections.abc import Callable

__all__ = ["BEAT_S", "HeartbeatThread"]

BEAT_S = 0.5


class HeartbeatThread:
    """Calls something every `BEAT_S` until it is stopped, or raises RuntimeError: without a store there is no news.

    Args:
        beat: What is called; whoever needs the store next finds what it has raised.
        name: Of the thread.

    """

    def __init__(self, beat: Callable[[], None], name: str) -> None:
        self._beat = beat
        self._stop: queue.SimpleQueue[None] = queue.SimpleQueue()  # a finalizer may put; an Event's lock may be held
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread. Takes no lock and waits for nobody."""
        self._stop.put(None)

    def join(self, timeout_s: float) -> None:
        """Wait for the thread to end; one that the store holds up is left behind."""
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            try:
                return self._stop.get(timeout=BEAT_S)
            except queue.Empty:
                pass
            try:
                self._beat()
            except RuntimeError:
                return None
