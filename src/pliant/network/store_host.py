"""Store of an elastic run's ranks, hosted by a process of its own and by none of them."""

import os
import select
import socket
import subprocess
import sys
from contextlib import suppress

from pliant.network.namespaces import CannotEmulateError, Namespace, die_with_parent

__all__ = ["StoreHost", "main", "reserve_port"]

_START_S = 60.0


class StoreHost:
    """A process that hosts a TCPStore in a namespace; it ends with this one, however that ends.

    Raises:
        CannotEmulateError: It does not begin to listen; the message has what it said.

    """

    def __init__(self, namespace: Namespace, address: str, port: int) -> None:
        self._process = subprocess.Popen(
            [*namespace.prefix(), sys.executable, "-m", __name__, address, str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=die_with_parent(os.getpid()),
            process_group=0,  # see Note [one session]
        )
        try:
            self._await(address, port)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the process of the store."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()

    def _await(self, address: str, port: int) -> None:
        process = self._process
        if process.stdout is None or process.stderr is None:
            raise RuntimeError("the store's host was started without pipes, but it answers through them.")
        heard, _, _ = select.select([process.stdout], [], [], _START_S)
        if heard and process.stdout.readline() == "ready\n":
            return
        process.kill()
        words = process.stderr.read().strip().splitlines() or ["it said nothing"]
        raise CannotEmulateError(
            f"no store for an elastic run came up at {address}:{port} within {_START_S:g}s: {words[-1]}; run without "
            "--elastic, or mend what it says."
        )


def reserve_port() -> socket.socket:
    """Return a socket that reserves a port of loopback for a store until it is closed.

    A store may listen there all the same, since both sockets allow their address to be used again, and this one never
    listens. A port that was only looked up may belong to another connection by the time that a rank listens on it.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return held


def main(address: str, port: str) -> None:
    """Host a store at an address, and say so, until standard input ends."""
    # Here, since who starts this process does without torch.
    from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

    store = TCPStore(address, int(port), is_master=True, wait_for_workers=False)
    print("ready", flush=True)
    sys.stdin.read()
    del store


if __name__ == "__main__":
    main(*sys.argv[1:])
