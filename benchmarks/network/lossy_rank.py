"""One host of a ring that loses packets: datagrams to the next, then a stream, and what came. No torch.

``python lossy_rank.py FOLDER PACKETS``, once per rank; prints a line of JSON. Files in the folder say how far they are.
"""

import json
import os
import socket
import struct
import sys
import threading
import time
from pathlib import Path

PORT = 6000
PAYLOAD = 1400
STREAM_S = 5.0
SILENCE_S = 1.0
DATA_SEGMENTS_OUT, TOTAL_RETRANS = 156, 100  # offsets in struct tcp_info


def address(rank: int) -> str:
    """Return where a rank is reached."""
    return f"10.77.0.{rank + 1}"


def meet(folder: Path, stage: str, rank: int, size: int) -> None:
    """Wait until all ranks are at a stage."""
    (folder / f"{stage}{rank}").touch()
    while not all((folder / f"{stage}{other}").exists() for other in range(size)):
        time.sleep(0.05)


def overrun() -> int:
    """Return the datagrams that came to this host, but found no room since nobody had read."""
    lines = Path("/proc/net/snmp").read_text(encoding="ascii").splitlines()
    names, figures = [line.split() for line in lines if line.startswith("Udp:")]
    return int(figures[names.index("RcvbufErrors")])


def receive(inbox: socket.socket, sent: Path, got: list[int]) -> None:
    """Note the numbers of datagrams until the sender is done and nothing comes."""
    inbox.settimeout(SILENCE_S)
    while True:
        try:
            got.append(int.from_bytes(inbox.recv(PAYLOAD)[:4], "big"))
        except TimeoutError:
            if sent.exists():
                return


def drain(listener: socket.socket) -> None:
    """Read a stream to its end."""
    connection, _ = listener.accept()
    room = bytearray(1 << 18)
    with connection:
        while connection.recv_into(room, 0, socket.MSG_TRUNC):
            pass


def stream(target: str) -> float:
    """Send for a while over one connection; return the share of segments that were sent again."""
    with socket.create_connection((target, PORT)) as connection:
        until_s = time.monotonic() + STREAM_S
        while time.monotonic() < until_s:
            connection.sendall(bytes(1 << 14))
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        (out,), (again,) = (struct.unpack_from("=I", info, at) for at in (DATA_SEGMENTS_OUT, TOTAL_RETRANS))
    return again / out


def main(folder: Path, num: int) -> None:
    """Send and receive as one rank."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    following, before = (rank + 1) % size, (rank - 1) % size
    inbox = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    inbox.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24)
    inbox.bind((address(rank), PORT))
    listener = socket.create_server((address(rank), PORT))
    meet(folder, "bound", rank, size)
    got: list[int] = []
    reader = threading.Thread(target=receive, args=(inbox, folder / f"sent{before}", got))
    reader.start()
    rest = bytes(PAYLOAD - 4)
    for k in range(num):
        inbox.sendto(k.to_bytes(4, "big") + rest, (address(following), PORT))
    (folder / f"sent{rank}").touch()
    reader.join()
    meet(folder, "read", rank, size)
    sink = threading.Thread(target=drain, args=(listener,))
    sink.start()
    again = stream(address(following))
    sink.join()
    figures = {"rank": rank, "sent": num, "came": len(got) + overrun(), "in_order": got == sorted(set(got))}
    print(json.dumps({**figures, "tcp_again": again}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
