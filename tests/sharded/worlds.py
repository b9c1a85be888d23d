"""Worlds of forked processes, which FSDP2 needs: its meshes are those of torch's default world."""

import multiprocessing
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Collection
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from torch.distributed import TCPStore

sys.path.insert(0, str(Path(__file__).parent.parent / "processes"))  # one fork server for all tests
from ranks import _forkserver


def run(
    size: int, function: Callable[..., Any], *arguments: Any, limit_s: float = 400, missing: Collection[int] = ()
) -> list[Any]:
    """Run a function of a module on `size` ranks, each a process with a default world over Gloo; return the results.

    What one of them raises is raised here with its traceback, and all are ended. Those that are missing may be killed.
    Their store is here, so that it is there for each of them, whichever ends first.
    """
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    environment = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "WORLD_SIZE": str(size),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "XDG_CACHE_HOME": os.environ["XDG_CACHE_HOME"],  # of this test, and not of the one that started the server
    }
    pipes, processes = [], []
    for rank in range(size):
        here, there = multiprocessing.Pipe(duplex=False)
        process = _forkserver.Process(target=_be, args=({**environment, "RANK": str(rank)}, there, function, arguments))
        process.start()
        there.close()
        pipes.append(here)
        processes.append(process)
    try:
        return _results(pipes, processes, limit_s, missing)
    finally:
        for process in processes:
            process.kill()
            process.join()


def _results(pipes: list[Any], processes: list[Any], limit_s: float, missing: Collection[int]) -> list[Any]:
    results: dict[int, Any] = {}
    while len(results) < len(pipes):
        ready = wait([pipe for rank, pipe in enumerate(pipes) if rank not in results], timeout=limit_s)
        assert ready, f"only ranks {sorted(results)} have ended within {limit_s} s"
        for pipe in ready:
            rank = pipes.index(pipe)
            try:
                error, results[rank] = pipe.recv()
            except EOFError:
                processes[rank].join(limit_s)
                ended = f"it has ended without a result, with exit code {processes[rank].exitcode}"
                error, results[rank] = "" if rank in missing else ended, None
            assert not error, f"rank {rank}:\n{error}"
    return [results[rank] for rank in range(len(pipes))]


def _be(environment: dict[str, str], pipe: Any, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    os.environ.update(environment)
    import torch
    import torch.distributed as dist

    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor")  # dynamo looks at every tensor's
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")  # and nobody writes it
    torch.set_num_threads(1)
    try:
        dist.init_process_group("gloo")
        pipe.send(("", function(*arguments)))
        dist.destroy_process_group()
    except BaseException:  # noqa: BLE001  the test raises it
        pipe.send((traceback.format_exc(), None))
