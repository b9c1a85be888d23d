"""The program that measures a link from inside an emulated host: a ping-pong, then bulk while all others send.

``python linkprobe.py OWN_ADDRESS NEXT_ADDRESS SKIP_BYTES WINDOW_S`` prints one figure a line, and waits for a line of
its input after each: 0 when it listens, the round trip to the next host in s, what it receives in bytes/s. Standard
library only, since it runs without our package.
"""

import contextlib
import json
import math
import queue
import socket
import sys
import threading
import time
from pathlib import Path

__all__ = ["main"]

_PORT = 5999
_DEVICE = "eth0"
_CHUNK = bytes(1 << 16)
_SLOW_START_S = 0.2
_PATIENCE_S = 30.0


def main(own: str, following: str, skip_bytes: int, window_s: float) -> None:
    """Measure on one host, in step with the probes on all others."""
    listener = socket.create_server((own, _PORT))
    found: queue.SimpleQueue[float] = queue.SimpleQueue()
    threading.Thread(target=_serve, args=(listener, skip_bytes, window_s, found), daemon=True).start()
    _tell(0.0)
    _tell(_round_trip_s(following))
    threading.Thread(target=_send, args=(following,), daemon=True).start()
    _tell(found.get(timeout=_PATIENCE_S + window_s))


def _tell(figure: float) -> None:
    print(json.dumps(figure), flush=True)
    sys.stdin.readline()


def _round_trip_s(address: str) -> float:
    """Return the shortest of five round trips: the others had to wait for a core."""
    trips_s: list[float] = []
    with socket.create_connection((address, _PORT), timeout=_PATIENCE_S) as echo:
        echo.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        echo.sendall(b"e")
        for _ in range(5):
            start_s = time.perf_counter()
            echo.sendall(b".")
            echo.recv(1)
            trips_s.append(time.perf_counter() - start_s)
    return min(trips_s)


def _send(address: str) -> None:
    """Send until the receiver has seen enough and closes."""
    with contextlib.suppress(OSError), socket.create_connection((address, _PORT), timeout=_PATIENCE_S) as bulk:
        bulk.sendall(b"b")
        while True:
            bulk.sendall(_CHUNK)


def _serve(listener: socket.socket, skip_bytes: int, window_s: float, found: "queue.SimpleQueue[float]") -> None:
    while True:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if connection.recv(1) == b"b":
                found.put(_rate(connection, skip_bytes, window_s))
            else:
                while data := connection.recv(1):
                    connection.sendall(data)


def _rate(connection: socket.socket, skip_bytes: int, window_s: float) -> float:
    """Return bytes per second that come in, once slow start is over and the shapers' buckets are empty.

    Counted at the interface. Behind a faster link slow start makes a slow one's queue run over, and then the link is
    busy, but the connection says nothing until all that was lost has come again: a second and more at 8 Mbit/s.
    """
    start_s = time.perf_counter()
    skipped, first = 0, (math.inf, 0)
    while data := connection.recv(1 << 20):
        now_s = time.perf_counter()
        if skipped <= skip_bytes or now_s - start_s < _SLOW_START_S:
            skipped += len(data)
        elif first[0] == math.inf:
            first = now_s, _received_bytes()
        elif now_s - first[0] >= window_s:
            return (_received_bytes() - first[1]) / (time.perf_counter() - first[0])
    return 0.0  # it ended before it had begun


def _received_bytes() -> int:
    """Return what has come in by the interface of this host, headers and all."""
    lines = Path("/proc/net/dev").read_text().splitlines()
    return next(int(line.split(":")[1].split()[0]) for line in lines if line.strip().startswith(f"{_DEVICE}:"))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
