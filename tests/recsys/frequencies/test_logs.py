"""Readers of logs on small made files of the formats of the real ones."""

import numpy as np
import pytest
import torch

from pliant.recsys import criteo_batches, load_table


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


def test_lines_are_as_long_as_the_header(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text(TABLE + "4\n")
    with pytest.raises(ValueError, match=r"line 5 of .*log\.csv has 1 cells, its header 5"):
        load_table(path, label="clicked", categories=["user"])


def test_a_log_is_cut_in_time(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text(TABLE)
    log = load_table(path, label="clicked", categories=["user"], time="when")
    earlier, later = log.split(0.7)
    assert (earlier.label.tolist(), later.label.tolist()) == ([0, 1], [1])
    with pytest.raises(ValueError, match="leaves one side empty"):
        log.split(0.01)
