"""Hostile files given to what reads them in a process: one sentence with the file's name, and no traceback."""

import sys

import pytest

from hostile import FILES, put, started
from pliant.cli.main import main
from pliant.recsys import Frequencies, count_log

HERE = ("--hosts", "2")
VGG16 = ("plan", "--workload", "vgg16", "--compute", "1ms")
COMMANDS = {
    "plan workload": ("given.json", "plan", "--workload", "{}/given.json", *HERE),
    "plan topology": ("given.json", *VGG16, "--topology", "{}/given.json"),
    "plan overheads": ("given.json", *VGG16, *HERE, "--overheads", "{}/given.json"),
    "embed criteo": ("given.npz", "embed", "criteo", *HERE, "--frequencies", "{}/given.npz"),
}


@pytest.mark.parametrize("what", FILES)
@pytest.mark.parametrize("command", COMMANDS)
def test_what_a_command_cannot_read_is_one_sentence(monkeypatch, capsys, tmp_path, command, what):
    name, *arguments = COMMANDS[command]
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
    return count_log(path, {"b": 50}, label="a")


def load_criteo(path):
    return count_log(path, {f"c{t}": 50 for t in range(26)})


READERS = {
    "Parquet": ("log.parquet", load_csv),
    "CSV": ("log.csv", load_csv),
    "Frequencies": ("rows.npz", Frequencies.load),
    "Criteo": ("day_0", load_criteo),
}


@pytest.mark.parametrize("what", FILES)
@pytest.mark.parametrize("reader", READERS)
def test_what_cannot_be_read_is_named(tmp_path, reader, what):
    name, read = READERS[reader]
    put(tmp_path, name, what)
    if (reader, what) == ("Criteo", "empty"):
        assert read(tmp_path / name).tables[0].num_lookups == 0
        return
    with pytest.raises((ValueError, RuntimeError), match=name) as caught:
        read(tmp_path / name)
    assert len(str(caught.value)) < 1000
