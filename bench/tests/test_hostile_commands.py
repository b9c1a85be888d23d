"""Hostile files given to what reads them in the laboratory: one sentence with the file's name, and no traceback."""

import sys

import pytest

from hostile import FILES, put, started
from pliant.cli.main import main
from pliant_bench.data.images import load_images

LOCAL = ("--local", "--rates", "none", "--delays", "0ms")
COMMANDS = {
    "dataset": ("models.parquet", "dataset", "{}"),
    "collect export": ("trials.jsonl", "collect", "--out", "{}", "--export", "{}/made"),
    "collect": ("trials.jsonl", "collect", "--out", "{}", *LOCAL),
    "bench grid accuracy": ("given.json", "bench", "--grid", *LOCAL, "--accuracy", "{}/given.json"),
    "bench grid": ("given.json", "bench", "--grid", *LOCAL, "--json", "{}/given.json"),
    "bench kill": ("given.json", "bench", "--kill", "1", "--local", "--json", "{}/given.json"),
}


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


def load_batches(path):
    (path.parent / "test_batch").touch()
    return load_images(path.parent)


READERS = {
    "idx": ("train-images-idx3-ubyte", lambda path: load_images(path.parent)),
    "packed idx": ("train-images-idx3-ubyte.gz", lambda path: load_images(path.parent)),
    "CIFAR-10": ("data_batch_1", load_batches),
}


@pytest.mark.parametrize("what", FILES)
@pytest.mark.parametrize("reader", READERS)
def test_what_cannot_be_read_is_named(tmp_path, reader, what):
    name, read = READERS[reader]
    put(tmp_path, name, what)
    with pytest.raises((ValueError, RuntimeError), match=name) as caught:
        read(tmp_path / name)
    assert len(str(caught.value)) < 1000
