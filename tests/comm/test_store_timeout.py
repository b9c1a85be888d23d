"""A store that is cut off, or stopped, is noticed by who asks it."""

import multiprocessing
import os
import signal
from datetime import timedelta
from pathlib import Path

import pytest
from torch.distributed import TCPStore

from pliant.comm.store_timeout import answers_within
from waiting import until

pytestmark = pytest.mark.processes

processes = multiprocessing.get_context("forkserver")


processes.set_forkserver_preload(["torch"])


def _state(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def host(pipe):
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    pipe.send(store.port)
    pipe.recv()


def test_a_stopped_store_ends_every_kind_of_call_on_every_connection(capfd):
    here, there = processes.Pipe()
    hosts = processes.Process(target=host, args=(there,), daemon=True)
    hosts.start()
    try:
        with answers_within(0.5):
            store = TCPStore("127.0.0.1", here.recv(), is_master=False, timeout=timedelta(seconds=60))
            beside = store.clone()
        store.set("key", "value")
        assert (beside.get("key"), beside.add("number", 2), store.check(["key"])) == (b"value", 2, True)
        os.kill(hosts.pid, signal.SIGSTOP)
        until(lambda: _state(hosts.pid) == "T")
        for call in (
            lambda: store.check(["key"]),
            lambda: beside.add("number", 1),
            lambda: store.compare_set("key", "", "other"),
        ):
            with pytest.raises(RuntimeError, match="Socket Timeout"):
                call()
    finally:
        hosts.kill()
        hosts.join()
        capfd.readouterr()  # torch writes a stack for each


def test_waiting_for_a_key_is_no_silence():
    here, there = processes.Pipe()
    hosts = processes.Process(target=host, args=(there,), daemon=True)
    hosts.start()
    try:
        with answers_within(0.2):
            store = TCPStore("127.0.0.1", here.recv(), is_master=False, timeout=timedelta(seconds=1))
        with pytest.raises(RuntimeError, match="wait timeout after 1000ms"):
            store.get("absent")
        store.set("key", "value")
        assert store.get("key") == b"value"
    finally:
        hosts.kill()
        hosts.join()
