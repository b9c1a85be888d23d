"""The file of a shared secret, and a store that believes only who knows it."""

import os
import threading

import pytest
import torch
from torch.distributed import HashStore

from pliant.comm.gloo_private import gloo_group
from pliant.comm.sealed_store import SealedStore
from pliant.comm.secret import is_loopback, read_secret
from pliant.comm.signed_records import Seal

SECRET = "0123456789abcdef"


@pytest.mark.parametrize(
    ("text", "mode", "sentence"),
    [
        (SECRET, 0o640, r"may be read or written by others \(mode 640\)"),
        (SECRET, 0o604, "may be read or written by others"),
        (SECRET[1:] + "\n", 0o600, "has 15 bytes, but needs at least 16"),
        ("", 0o600, "has 0 bytes"),
        ("x" * 5000, 0o600, "of such a file at most"),
    ],
)
def test_a_secret_that_is_none_is_refused_with_the_cure(text, mode, sentence, tmp_path):
    path = tmp_path / "run.secret"
    path.write_text(text)
    path.chmod(mode)
    with pytest.raises(ValueError, match=sentence) as caught:
        read_secret(path)
    assert SECRET not in str(caught.value)


def test_a_secret_is_the_file_without_the_end_of_its_line(tmp_path):
    path = tmp_path / "run.secret"
    path.write_text(SECRET + "\n")
    path.chmod(0o400)
    assert read_secret(path) == SECRET.encode()
    os.mkfifo(tmp_path / "pipe")
    for other in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(ValueError, match="an ordinary file was expected"):
            read_secret(other)


def group(store, rank, secret, timeout_s=20.0):
    sealed = SealedStore(store, Seal(secret), "group 7", timeout_s)
    return sealed, gloo_group(sealed, rank, 2, "group 7", timeout_s, loopback=True)


def test_a_group_meets_in_a_sealed_store_though_a_stranger_was_there_before():
    store, sums = HashStore(), {}
    for key in ("0/0", "0/1"):
        store.set(f"group 7/{key}", b"\xffmy address")

    def be(rank):
        _sealed, found = group(store, rank, b"secret")
        tensor = torch.ones(3) + rank
        found.allreduce([tensor]).wait()
        sums[rank] = tensor.tolist()

    threads = [threading.Thread(target=be, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sums == {0: [3.0] * 3, 1: [3.0] * 3}


def test_nobody_is_connected_to_who_does_not_know_the_secret():
    store, ends = HashStore(), {}

    def be(rank, secret):
        try:
            group(store, rank, secret, timeout_s=1.0)
        except RuntimeError as error:
            ends[rank] = str(error)

    threads = [threading.Thread(target=be, args=each) for each in ((0, b"secret"), (1, b"another"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert set(ends) == {0, 1}


def test_values_of_another_group_or_key_do_not_hold():
    store = HashStore()
    here = SealedStore(store, Seal(b"s"), "group 7", 0.0)
    here.set("a", "value")
    assert here.get("a") == b"value"
    store.set("group 7/b", store.get("group 7/a"))
    store.set("group 8/a", store.get("group 7/a"))
    for sealed, key in ((here, "b"), (SealedStore(store, Seal(b"s"), "group 8", 0.0), "a")):
        assert not sealed.check([key])
        with pytest.raises(RuntimeError, match="nobody of this run has set"):
            sealed.get(key)
        with pytest.raises(RuntimeError, match="nobody of this run has set"):
            sealed.wait([key])


@pytest.mark.parametrize(
    ("host", "holds"),
    [("127.0.0.1", True), ("127.8.9.1", True), ("::1", True), ("0.0.0.0", False), ("10.77.0.254", False), ("", False)],
)
def test_loopback_is_what_no_other_machine_reaches(host, holds):
    assert is_loopback(host) == holds
