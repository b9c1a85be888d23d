"""A hostile file given to each subcommand: one sentence that names it, and no traceback."""

import os
import re
import subprocess
import sys

import pytest

HERE = ("--hosts", "2")
COMMANDS = {
    "simulate plan": ("simulate", "{}", "--workload", "vgg16", "--compute", "1ms", *HERE),
    "simulate topology": ("simulate", "allreduce", "--workload", "vgg16", "--compute", "1ms", "--topology", "{}"),
    "emulate": ("emulate", "--topology", "{}", "--", "true"),
    "schedule": ("schedule", "--topology", "{}"),
    "embed": ("embed", "{}", *HERE),
    "frequencies": ("embed", "criteo", *HERE, "--frequencies", "{}"),
    "report": ("report", "{}"),
}
FILES = {
    "nested.json": b"[" * 100_000,
    "bytes.json": bytes(range(256)),
    "names.json": b'{"pliant": "Topology", "format": 1, "hosts": [{"name": "[/x]"}, {"name": "[/x]"}]}',
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_hostile_file_ends_in_a_sentence(command, tmp_path):
    """One process for all files of a command, since each start takes long."""
    os.mkfifo(tmp_path / "pipe.json")
    for name, raw in FILES.items():
        (tmp_path / name).write_bytes(raw)
    names = [*FILES, "pipe.json"]
    arguments = [[part.format(tmp_path / name) for part in COMMANDS[command]] for name in names]
    code = f"""
import sys
from pliant.cli.main import main
for arguments in {arguments!r}:
    sys.argv = ["pliant", *arguments]
    try:
        main()
    except SystemExit as end:
        print("code", end.code, file=sys.stderr, flush=True)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=250, check=False)
    said = re.split(r"code \d+\n", done.stderr)
    assert re.findall(r"code (\d+)", done.stderr) == ["2"] * len(names), done.stderr[-2000:]
    for name, sentence in zip(names, said, strict=False):
        assert name in "".join(sentence.split())
        assert "Traceback" not in sentence
