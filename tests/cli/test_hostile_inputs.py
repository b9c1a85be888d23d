"""Hostile files given to what reads them in a process: one sentence with the file's name, and no traceback."""

import gzip
import os
import sys

import pytest

from pliant.cli.bench.images import load_images
from pliant.cli.main import main
from pliant.recsys import Frequencies, criteo_batches, load_table

HERE = ("--hosts", "2")
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
LOCAL = ("--local", "--rates", "none", "--delays", "0ms")
VGG16 = ("plan", "--workload", "vgg16", "--compute", "1ms")
COMMANDS = {
    "plan workload": ("given.json", "plan", "--workload", "{}/given.json", *HERE),
    "plan topology": ("given.json", *VGG16, "--topology", "{}/given.json"),
    "plan costs": ("given.json", *VGG16, *HERE, "--costs", "{}/given.json"),
    "dataset": ("models.parquet", "dataset", "{}"),
    "collect export": ("trials.jsonl", "collect", "--out", "{}", "--export", "{}/made"),
    "collect": ("trials.jsonl", "collect", "--out", "{}", *LOCAL),
    "bench grid accuracy": ("given.json", "bench", "--grid", *LOCAL, "--accuracy", "{}/given.json"),
    "bench grid": ("given.json", "bench", "--grid", *LOCAL, "--json", "{}/given.json"),
    "bench kill": ("given.json", "bench", "--kill", "1", "--local", "--json", "{}/given.json"),
    "embed criteo": ("given.npz", "embed", "criteo", *HERE, "--frequencies", "{}/given.npz"),
}


def put(folder, name, what):
    if FILES[what] is None:
        os.mkfifo(folder / name)
    else:
        (folder / name).write_bytes(FILES[what])


def started(*_, **__):
    raise AssertionError("it was taken: something is started")


@pytest.mark.parametrize("what", FILES)
@pytest.mark.parametrize("command", COMMANDS)
def test_what_a_command_cannot_read_is_one_sentence(monkeypatch, capsys, tmp_path, command, what):
    name, *arguments = COMMANDS[command]
    if (command, what) == ("collect", "empty"):
        what = "zeros"  # for an empty one is that of a collection which is about to begin
    put(tmp_path, name, what)
    monkeypatch.setattr("subprocess.Popen", started)
    monkeypatch.setattr(sys, "argv", ["pliant", *(part.format(tmp_path) for part in arguments)])
    with pytest.raises(SystemExit) as end:
        main()
    said = "".join(capsys.readouterr().err.split())
    assert end.value.code == 2
    assert name in said, said
    assert "Traceback" not in said


def load_csv(path):
    return load_table(path, label="a", categories=["b"])


def load_criteo(path):
    return list(criteo_batches(path, num_rows=[50] * 26, num_samples=2))


def load_batches(path):
    (path.parent / "test_batch").touch()
    return load_images(path.parent)


READERS = {
    "Parquet": ("log.parquet", load_csv),
    "CSV": ("log.csv", load_csv),
    "Frequencies": ("rows.npz", Frequencies.load),
    "Criteo": ("day_0", load_criteo),
    "idx": ("train-images-idx3-ubyte", lambda path: load_images(path.parent)),
    "packed idx": ("train-images-idx3-ubyte.gz", lambda path: load_images(path.parent)),
    "CIFAR-10": ("data_batch_1", load_batches),
}


@pytest.mark.parametrize("what", FILES)
@pytest.mark.parametrize("reader", READERS)
def test_what_cannot_be_read_is_named(tmp_path, reader, what):
    name, read = READERS[reader]
    put(tmp_path, name, what)
    if (reader, what) == ("Criteo", "empty"):
        assert not read(tmp_path / name)
        return
    with pytest.raises((ValueError, RuntimeError), match=name) as caught:
        read(tmp_path / name)
    assert len(str(caught.value)) < 1000
