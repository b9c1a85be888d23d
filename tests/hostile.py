"""Hostile files for whatever reads one."""

import gzip
import os

FILES = {
    "empty": b"",
    "zeros": bytes(1000),
    "bytes": bytes(range(256)),
    "nested": b"[" * 100_000 + b"\n",
    "an object": b'{"kind": "session"}\n',
    "odd lines": b'{"kind": "job", "settings": 3}\n{"kind": "trial"}\n',
    "a number": b"7\n",
    "almost Parquet": b"PAR1" + bytes(100) + b"PAR1",
    "almost a zip": b"PK\x03\x04" + bytes(100),
    "almost idx": b"\0\0\x08\x03" + b"\xff" * 12,
    "almost gzip": gzip.compress(bytes(100))[:-9],
    "cells": b"a\tb\n" * 3 + b"1" * 100_000,
    "a pipe": None,
}


def put(folder, name, what):
    if FILES[what] is None:
        os.mkfifo(folder / name)
    else:
        (folder / name).write_bytes(FILES[what])


def started(*_, **__):
    raise AssertionError("it was taken: something is started")
