"""The program that measures a link from inside an emulated host: a ping-pong, then bulk while all others send.

``python -m pliant.network.linkprobe OWN_ADDRESS NEXT_ADDRESS SECONDS`` prints one line of JSON.
"""

import json
import socket
import sys
import threading
import time

__all__ = ["main"]

_PORT = 5999
_CHUNK = bytes(1 << 16)


def main(own: str, following: str, seconds: float) -> dict[str, float]:
    """Measure on one host: bytes per second that come in while all send, and the round trip to the next host."""
    listener = socket.create_server((own, _PORT))
    served = threading.Event()
    threading.Thread(target=_serve, args=(listener, served), daemon=True).start()
    echo = _connect(following)
    echo.sendall(b"e")
    trips: list[float] = []
    for _ in range(5):
        start_s = time.perf_counter()
        echo.sendall(b".")
        echo.recv(1)
        trips.append(time.perf_counter() - start_s)
    bulk = _connect(following)
    bulk.sendall(b"b")
    stop_s = time.perf_counter() + seconds
    while time.perf_counter() < stop_s:
        bulk.sendall(_CHUNK)
    bulk.shutdown(socket.SHUT_WR)
    rate = float(bulk.recv(64).decode())
    served.wait(timeout=10)  # the host before this one may still be sending
    return {"bytes_per_s": rate, "round_trip_s": min(trips)}


def _connect(address: str) -> socket.socket:
    deadline_s = time.monotonic() + 10
    while True:
        try:
            return socket.create_connection((address, _PORT), timeout=10)
        except OSError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.02)


def _serve(listener: socket.socket, served: threading.Event) -> None:
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_answer, args=(connection, served), daemon=True).start()


def _answer(connection: socket.socket, served: threading.Event) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if connection.recv(1) == b"e":
        while data := connection.recv(1):
            connection.sendall(data)
        return
    start_s = first_s = time.perf_counter()
    counted = 0
    while data := connection.recv(1 << 20):
        now_s = time.perf_counter()
        if now_s - start_s < 0.2:  # slow start, and the shaper's full bucket
            first_s = now_s
        else:
            counted += len(data)
    connection.sendall(f"{counted / max(time.perf_counter() - first_s, 1e-9)}".encode())
    served.set()


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], float(sys.argv[3]))))
