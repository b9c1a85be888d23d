"""Logs in memory that `examples/dlrm.py` trains on: tables of the user's own, sorted and cut in time."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
from click_log import ClickBatch, load_table

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


def test_a_log_is_cut_in_time(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text(TABLE)
    log = load_table(path, label="clicked", categories=["user"], time="when")
    earlier, later = log.split(0.7)
    assert (earlier.label.tolist(), later.label.tolist()) == ([0, 1], [1])
    with pytest.raises(ValueError, match="leaves one side empty"):
        log.split(0.01)


def test_parts_and_choices_keep_bags():
    sizes = torch.tensor([0, 1, 4] * 16 + [2, 0])
    batch = ClickBatch(
        dense=torch.arange(50)[:, None].float(),
        ids=(torch.arange(50), torch.arange(int(sizes.sum()))),
        offsets=(torch.arange(50), sizes.cumsum(0) - sizes),
        label=(torch.arange(50) % 3 == 0).float(),
    )

    def bags(b, t):
        return [list(x) for x in np.split(b.ids[t].numpy(), b.offsets[t].numpy()[1:])]

    chosen = torch.tensor([7, 3, 3, 49])
    taken, part, end = batch.take(chosen), batch.part(10, 20), batch.part(40, 50)
    for t in range(2):
        assert bags(taken, t) == [bags(batch, t)[k] for k in chosen.tolist()]
        assert bags(part, t) == bags(batch, t)[10:20]
        assert bags(end, t) == bags(batch, t)[40:]
    assert torch.equal(taken.label, batch.label[chosen])
    assert torch.equal(part.dense, batch.dense[10:20])
