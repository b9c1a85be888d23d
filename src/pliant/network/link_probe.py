"""The program that measures links from inside an emulated host: ping-pongs, then bulk while all others send.

``python link_probe.py SETTINGS``, JSON: `own` address; `targets`, each an address and a number of connections;
`sources`, address -> connections and bytes that are not counted; `skip_s` and `window_s`. For each of three stages it
prints one line of JSON, address -> figure, and waits for a line of its input. The stages: it listens (no figures),
round trips to the targets in s, what comes from the sources in bytes/s. Standard library only, since it runs without
our package.
"""

import contextlib
import json
import queue
import socket
import struct
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Meter", "main"]

_PORT = 5999
_CHUNK = bytes(1 << 16)
_PATIENCE_S = 60.0
_DATA_SEGMENTS_IN = 152  # offset of tcpi_data_segs_in in struct tcp_info
_HEADERS = 66  # bytes of Ethernet, IP and TCP with timestamps, for each segment


def main(settings: dict[str, Any]) -> None:
    """Measure on one host, in step with the probes on all others."""
    found: queue.SimpleQueue[tuple[str, float]] = queue.SimpleQueue()
    meters = {
        source: Meter(connections=num, skip_bytes=skip, skip_s=settings["skip_s"], window_s=settings["window_s"])
        for source, (num, skip) in settings["sources"].items()
    }
    listener = socket.create_server((settings["own"], _PORT), backlog=1024)
    _thread(_serve, listener, meters)
    _tell({})
    targets = [target for target, _ in settings["targets"]]
    for target in targets:
        _thread(lambda address: found.put((address, _round_trip_s(address))), target)
    _tell(_gather(found, len(targets), _PATIENCE_S))
    for source, meter in meters.items():
        _thread(lambda source, meter: found.put((source, meter.bytes_per_s())), source, meter)
    for target, num in settings["targets"]:
        for _ in range(num):
            _thread(_send, target)
    _tell(_gather(found, len(meters), _PATIENCE_S + settings["skip_s"] + settings["window_s"]))


def _thread(run: Any, *arguments: Any) -> None:
    threading.Thread(target=run, args=arguments, daemon=True).start()


def _gather(found: "queue.SimpleQueue[tuple[str, float]]", num: int, patience_s: float) -> dict[str, float]:
    return dict(found.get(timeout=patience_s) for _ in range(num))


def _tell(figures: dict[str, float]) -> None:
    print(json.dumps(figures), flush=True)
    sys.stdin.readline()


def _round_trip_s(address: str) -> float:
    """Return the shortest of five round trips: the others had to wait for a core, or had more jitter."""
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
    """Send over one connection until the receiver has seen enough and closes."""
    with contextlib.suppress(OSError), socket.create_connection((address, _PORT), timeout=_PATIENCE_S) as bulk:
        bulk.sendall(b"b")
        while True:
            bulk.sendall(_CHUNK)


def _serve(listener: socket.socket, meters: "dict[str, Meter]") -> None:
    while True:
        connection, (source, _) = listener.accept()
        _thread(_answer, connection, meters.get(source))


def _answer(connection: socket.socket, meter: "Meter | None") -> None:
    with connection, contextlib.suppress(OSError):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if connection.recv(1) == b"b" and meter is not None:
            meter.read(connection)
        else:
            while data := connection.recv(1):
                connection.sendall(data)


@dataclass
class Meter:
    """Rate of what comes from one host, once slow start is over and the shapers' buckets are empty.

    Segments are counted as they arrive, whether the connection can hand them on or not. Behind a faster link slow start
    makes a slow one's queue run over, and then the link is busy, but the connection says nothing until all that was
    lost has come again: a second and more at 8 Mbit/s.
    """

    connections: int
    skip_bytes: int
    skip_s: float
    window_s: float
    _open: list[socket.socket] = field(default_factory=list[socket.socket])
    _complete: threading.Event = field(default_factory=threading.Event)

    def read(self, connection: socket.socket) -> None:
        """Take a connection, and throw away what comes by it until it ends."""
        self._open.append(connection)
        if len(self._open) == self.connections:
            self._complete.set()
        room = bytearray(1 << 18)
        while connection.recv_into(room, 0, socket.MSG_TRUNC):
            pass

    def bytes_per_s(self) -> float:
        """Return the rate in a window after the skip, headers and all; 0 where not all connections came."""
        if not self._complete.wait(_PATIENCE_S):
            return 0.0
        time.sleep(self.skip_s)
        give_up_s = time.perf_counter() + _PATIENCE_S / 2
        while self._arrived_bytes() < self.skip_bytes and time.perf_counter() < give_up_s:
            time.sleep(0.01)
        start_s, before = time.perf_counter(), self._arrived_bytes()
        time.sleep(self.window_s)
        return (self._arrived_bytes() - before) / (time.perf_counter() - start_s)

    def _arrived_bytes(self) -> float:
        total = 0
        for connection in self._open:
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
            segments: int = struct.unpack_from("=I", info, _DATA_SEGMENTS_IN)[0]
            total += segments * (connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG) + _HEADERS)
        return total


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
