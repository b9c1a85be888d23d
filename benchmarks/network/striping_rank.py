"""One of the two ranks of `striping.py`: rank 0 sends, times and writes; rank 1 answers."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from pliant.comm import new_comm
from pliant.network.connection_choice import choose_connections
from pliant.network.streams import round_trip_s

TIMEOUT_S = 300.0
IDLE = Path("/proc/sys/net/ipv4/tcp_slow_start_after_idle")
RANK = int(os.environ["RANK"])
PEER = 1 - RANK
IPERF_S, IPERF_LEFT_OUT_S = 10, 5


def times(send: Callable[[], None], answer: Callable[[], None], trip_s: float, repeats: int, pause_s: float) -> Any:
    """Return seconds of the first message, of those after it, and of those after pauses, each less a round trip."""

    def one() -> float:
        answer()  # both are here
        start_s = time.perf_counter()
        send()
        answer()
        return time.perf_counter() - start_s - trip_s

    first, warm, paused = one(), [one() for _ in range(repeats)], list[float]()
    for _ in range(max(1, repeats // 2)):
        time.sleep(pause_s)
        paused.append(one())
    return {"first_s": [first], "warm_s": warm, "paused_s": paused}


def over_torch(asked: dict[str, Any]) -> dict[str, Any]:
    """Measure a message over Pliant's connections, or over torch's own groups."""
    if asked["arm"] == "no_idle_restart":
        IDLE.write_text("0")  # of this network namespace alone
    dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT_S))
    comm = new_comm(cast(ProcessGroup, dist.group.WORLD), TIMEOUT_S)
    trip_s, count, why = round_trip_s(comm, PEER, 1.0), asked["connections"], ""
    if asked["arm"] == "chosen":
        choice = choose_connections(comm)
        count, why = choice.connections, choice.why
    x, ping, pong = torch.zeros(asked["bytes"], dtype=torch.uint8), torch.zeros(1), torch.zeros(1)
    start_s = time.perf_counter()
    groups = [dist.new_group() for _ in range(count)] if asked["arm"] == "groups" else []
    control = new_comm(cast(ProcessGroup, dist.group.WORLD), TIMEOUT_S)
    begun_s = time.perf_counter()
    if not groups:
        comm.reconnect(count)
        start_s = begun_s
    connect_s = time.perf_counter() - start_s

    def send() -> None:
        if groups:
            move = dist.isend if RANK == 0 else dist.irecv
            parts = zip(x.chunk(count), groups, strict=True)
            for work in [move(part, PEER, group=group) for part, group in parts]:
                cast(dist.Work, work).wait()
        elif asked["arm"] == "all_reduce":
            comm.all_reduce(x.view(torch.float32)).wait()
        elif RANK == 0:
            comm.exchange([(PEER, x)], []).wait()
        else:
            comm.exchange([], [(PEER, x)]).wait()

    def answer() -> None:
        """Let the receiver answer once, so that the sender has waited for it."""
        if RANK == 0:
            control.exchange([], [(PEER, pong)]).wait()
        else:
            control.exchange([(PEER, ping)], []).wait()

    found = times(send, answer, trip_s, asked["repeats"], asked["pause_s"])
    control.barrier()
    if RANK == 1:
        time.sleep(1.0)  # rank 0 has the store
    control.close()
    comm.close()
    dist.destroy_process_group()
    return {**found, "found": count, "why": why, "round_trip_s": trip_s, "connect_s": connect_s}


def over_iperf3(asked: dict[str, Any]) -> dict[str, Any]:
    """Measure what iperf3 carries, after its slow start; as seconds of a message."""
    iperf3 = shutil.which("iperf3") or sys.exit("iperf3 is not on the PATH")
    if RANK == 1:
        subprocess.run([iperf3, "--server", "--one-off"], check=True, stdout=subprocess.DEVNULL)
        return {}
    time.sleep(2.0)
    to = os.environ["MASTER_ADDR"].rpartition(".")[0] + ".2"
    length = ["--time", str(IPERF_S), "--omit", str(IPERF_LEFT_OUT_S), "--parallel", str(asked["connections"])]
    said = subprocess.run([iperf3, "--client", to, "--json", *length], check=True, capture_output=True, text=True)
    rate = json.loads(said.stdout)["end"]["sum_received"]["bits_per_second"] / 8
    spent_s = asked["bytes"] / rate
    return {"found": asked["connections"], "first_s": [], "warm_s": [spent_s], "paused_s": [], "connect_s": 0.0}


def main() -> None:
    asked = json.loads(sys.argv[1])
    found = over_iperf3(asked) if asked["arm"] == "iperf3" else over_torch(asked)
    if RANK == 0:
        Path(asked["out"]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
