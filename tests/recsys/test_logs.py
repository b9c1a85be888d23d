"""Loaders on small made files of the formats of the real ones."""

import zipfile

import numpy as np
import pytest
import torch

from pliant.recsys import criteo_batches, load_flights, load_movielens, load_table

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


def criteo_line(label="1", first="5", category="0a0b0c0d"):
    return "\t".join([label, first, "-2", *[""] * 11, category, *["1f"] * 24, ""]) + "\n"


def test_criteo(tmp_path):
    path = tmp_path / "day_0"
    path.write_text(criteo_line() + criteo_line("0", "", "") + criteo_line())
    batches = list(criteo_batches(path, num_rows=[50] * 26, num_samples=2))
    assert [b.num_samples for b in batches] == [2, 1]
    first = batches[0]
    assert first.label.tolist() == [1, 0]
    assert first.dense.shape == (2, 13)
    assert first.dense[0, :3].tolist() == pytest.approx([np.log(6), 0, 0])
    assert first.dense[1].tolist() == [0] * 13
    assert first.ids[0][1] == 0  # missing
    assert first.ids[25].tolist() == [0, 0]
    assert all(1 <= int(i[0]) < 50 for i in first.ids[:25])
    assert len({int(i[0]) for i in first.ids[1:25]}) > 10  # each column has a hash of its own
    assert torch.equal(batches[1].ids[0], first.ids[0][:1])
    assert all(i.numel() == o.numel() for i, o in zip(first.ids, first.offsets, strict=True))


def test_other_lines_are_refused(tmp_path):
    path = tmp_path / "day_0"
    for text, said in [
        (criteo_line() + "1\t2\n", r"line 2 of .* has 2 cells and label '1'"),
        (criteo_line("7"), r"line 1 of .* and label '7'"),
        (criteo_line(category="xyz"), "26 hexadecimal categories are expected"),
    ]:
        path.write_text(text)
        with pytest.raises(ValueError, match=said):
            list(criteo_batches(path, num_rows=[50] * 26, num_samples=2))
    with pytest.raises(ValueError, match="26 categories of at least 2 rows"):
        next(criteo_batches(path, num_rows=[50], num_samples=2))


TABLE = "when,clicked,user,shop,price\n3,1,ann,x,1.5\n1,0,bob,,2.5\n2,1,ann,y,\n"


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_tables_with_named_columns(tmp_path, kind):
    path = tmp_path / f"log.{kind}"
    (tmp_path / "log.csv").write_text(TABLE)
    if kind == "parquet":
        import pyarrow as arrow
        from pyarrow import parquet

        columns = {"when": [3, 1, 2], "clicked": [1, 0, 1], "user": ["ann", "bob", "ann"], "shop": ["x", None, "y"]}
        parquet.write_table(arrow.table(columns | {"price": [1.5, 2.5, None]}), path)
    log = load_table(
        path, label="clicked", categories=["user", "shop"], dense=["price"], time="when", num_rows={"shop": 30}
    )
    assert log.num_rows == (3, 30)
    assert log.samples.label.tolist() == [0, 1, 1]
    assert log.samples.ids[0].tolist() == [1, 2, 2]
    assert log.samples.ids[1].tolist()[0] == 0
    assert min(log.samples.ids[1].tolist()[1:]) >= 1
    assert log.samples.dense.tolist() == [[0], [0], [-1]]


def test_hashes_are_the_same_on_every_machine(tmp_path):
    (tmp_path / "log.csv").write_text(TABLE)
    log = load_table(tmp_path / "log.csv", label="clicked", categories=["user"], num_rows={"user": 1_000_000})
    assert log.samples.ids[0].tolist() == [481645, 575690, 481645]


def test_wrong_columns_are_named(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text(TABLE)
    with pytest.raises(ValueError, match="has no column 'color'; it has when, clicked, user, shop, price"):
        load_table(path, label="clicked", categories=["color"])
    with pytest.raises(ValueError, match=r"must hold 0 and 1, but has 3\.0"):
        load_table(path, label="when", categories=["user"])
    with pytest.raises(ValueError, match="num_rows names 'shop'"):
        load_table(path, label="clicked", categories=["user"], num_rows={"shop": 5})
    with pytest.raises(ValueError, match="'user' holds what is not a number"):
        load_table(path, label="clicked", categories=["shop"], dense=["user"])
