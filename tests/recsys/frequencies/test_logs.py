"""Readers of logs on small made files of the formats of the real ones."""

import numpy as np
import pytest

from pliant.recsys import count_log, criteo_batches


def criteo_line(label="1", first="5", category="0a0b0c0d"):
    return "\t".join([label, first, "-2", *[""] * 11, category, *["1f"] * 24, ""]) + "\n"


def test_criteo(tmp_path):
    path = tmp_path / "day_0"
    path.write_text(criteo_line() + criteo_line("0", "", "") + criteo_line())
    batches = list(criteo_batches(path, num_rows=[50] * 26, num_samples=2))
    assert [len(b.label) for b in batches] == [2, 1]
    first = batches[0]
    assert first.label.tolist() == [1, 0]
    assert first.dense.shape == (2, 13)
    assert first.dense[0, :3].tolist() == pytest.approx([np.log(6), 0, 0])
    assert first.dense[1].tolist() == [0] * 13
    assert first.ids[0][1] == 0  # missing
    assert first.ids[25].tolist() == [0, 0]
    assert all(1 <= int(i[0]) < 50 for i in first.ids[:25])
    assert len({int(i[0]) for i in first.ids[1:25]}) > 10  # each column has a hash of its own
    assert batches[1].ids[0].tolist() == first.ids[0][:1].tolist()
    assert all(len(i) == 2 for i in first.ids)


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


def test_criteo_logs_are_counted(tmp_path):
    path = tmp_path / "day_0"
    path.write_text(criteo_line() * 3 + criteo_line(category="") + criteo_line())
    found = count_log(path, {f"C{t}": 50 for t in range(26)})
    assert [table.num_lookups for table in found.tables] == [5] * 26
    first = found.tables[0]
    assert (first.name, first.head_p.tolist(), first.head_ids[1]) == ("C0", pytest.approx([0.8, 0.2]), 0)


TABLE = "clicked,user,shop\n1,ann,x\n0,bob,\n1,ann,y\n"


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_tables_with_named_columns_are_counted(tmp_path, kind):
    path = tmp_path / f"log.{kind}"
    (tmp_path / "log.csv").write_text(TABLE)
    if kind == "parquet":
        import pyarrow as arrow
        from pyarrow import parquet

        columns = {"clicked": [1, 0, 1], "user": ["ann", "bob", "ann"], "shop": ["x", None, "y"]}
        parquet.write_table(arrow.table(columns), path)
    user, shop = count_log(path, {"user": 1_000_000, "shop": 30}, label="clicked").tables
    assert user.head_ids.tolist() == [481645, 575690]  # hashes are the same on every machine
    assert user.head_p.tolist() == pytest.approx([2 / 3, 1 / 3])
    assert 0 in shop.head_ids  # missing
    assert (shop.num_lookups, shop.num_samples) == (3, 3)


def test_wrong_columns_are_named(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text(TABLE)
    with pytest.raises(ValueError, match="has no column 'color'; it has clicked, user, shop"):
        count_log(path, {"color": 5}, label="clicked")
    with pytest.raises(ValueError, match="'user' holds what is not a number"):
        count_log(path, {"shop": 5}, label="user")
    path.write_text(TABLE.replace("0,bob", "3,bob"))
    with pytest.raises(ValueError, match=r"must hold 0 and 1, but has 3\.0"):
        count_log(path, {"shop": 5}, label="clicked")
    path.write_text(TABLE + "4\n")
    with pytest.raises(ValueError, match=r"line 5 of .*log\.csv has 1 cells, its header 3"):
        count_log(path, {"user": 5}, label="clicked")
