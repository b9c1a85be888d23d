"""One of the two ranks of `slow_start.py`: rank 0 sends, times and says; rank 1 answers."""

import json
import os
import sys
import time
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from pliant.comm import Comm, new_comm
from pliant.network.streams import round_trip_s

TIMEOUT_S = 300.0
RANK = int(os.environ["RANK"])
PEER = 1 - RANK


def move(comm: Comm, x: torch.Tensor) -> None:
    """Send from rank 0 to rank 1."""
    comm.exchange(*(([(PEER, x)], []) if RANK == 0 else ([], [(PEER, x)]))).wait()


def answer(comm: Comm) -> None:
    """Let the receiver answer once, so that the sender has waited for it."""
    note = torch.zeros(1)
    comm.exchange(*(([], [(PEER, note)]) if RANK == 0 else ([(PEER, note)], []))).wait()


def measure(comm: Comm, control: Comm, num_bytes: int, connections: int, asked: dict[str, Any]) -> dict[str, Any]:
    """Return the seconds of messages that follow one another, and of those after silence, less the answer's way."""
    x = torch.zeros(num_bytes, dtype=torch.uint8)
    back_s = round_trip_s(control, PEER, 1.0) / 2

    def one() -> float:
        answer(control)  # both are here
        start_s = time.perf_counter()
        move(comm, x)
        answer(control)
        return time.perf_counter() - start_s - back_s

    one()
    warm = [one() for _ in range(asked["warm"])]
    paused: list[float] = []
    for _ in range(asked["paused"]):
        time.sleep(asked["pause_s"])
        paused.append(one())
    return {"bytes": num_bytes, "warm_s": warm, "paused_s": paused, "delay_s": back_s}


def main() -> None:
    """Measure all sizes over all numbers of connections."""
    asked = json.loads(sys.argv[1])
    dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT_S))
    control = new_comm(cast(ProcessGroup, dist.group.WORLD), TIMEOUT_S)
    for connections in asked["connections"]:
        comm = new_comm(cast(ProcessGroup, dist.group.WORLD), TIMEOUT_S)
        comm.reconnect(connections)
        for num_bytes in asked["bytes"]:
            found = measure(comm, control, num_bytes, connections, asked)
            if RANK == 0:
                print(json.dumps({"connections": connections, **found}), flush=True)
        comm.close()
    control.barrier()
    if RANK == 0:
        time.sleep(1.0)  # it has the store, which the other still asks
    control.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
