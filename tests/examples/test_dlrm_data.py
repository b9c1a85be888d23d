"""Where `examples/dlrm.py` gets its clicks: every sample once in an epoch, by one rank, and none of the test data."""

import argparse
import itertools
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
from click_log import ClickBatch, ClickLog
from dlrm_data import Criteo, Generated, Log, options_of_data, source_of


def _options(*arguments):
    parser = argparse.ArgumentParser()
    options_of_data(parser)
    return parser.parse_args(arguments)


def _log(num):
    """A log whose only id of a sample is its number."""
    ids = torch.arange(num)
    samples = ClickBatch(
        dense=torch.zeros(num, 2), ids=(ids,), offsets=(torch.arange(num),), label=(ids % 2).to(torch.float32)
    )
    return ClickLog(names=("number",), num_rows=(num,), samples=samples)


def test_an_epoch_of_a_log_is_each_sample_once_and_the_next_is_another_order():
    log = Log(_log(100), seed=3)  # 80 to train on
    epochs = [
        [log.train(step, rank, 2, 10).ids[0].tolist() for step in range(first, first + 4) for rank in range(2)]
        for first in (0, 4)
    ]
    for epoch in epochs:
        assert sorted(itertools.chain(*epoch)) == list(range(80))
    assert epochs[0] != epochs[1]
    assert log.train(2, 1, 2, 10).ids[0].tolist() == epochs[0][5]  # also after another epoch


def test_ranks_test_on_all_that_is_kept_for_it():
    log = Log(_log(103), seed=0)
    found = [batch.ids[0].tolist() for rank in range(3) for batch in log.test(rank, 3, 10, 2)]
    assert sorted(itertools.chain(*found)) == list(range(82, 103))


def test_a_log_that_is_too_short_for_a_step_is_refused():
    with pytest.raises(ValueError, match=r"4 ranks with batches of 32 need 128 samples .* has 80"):
        Log(_log(100), seed=0).train(0, 0, 4, 32)


def test_generated_clicks_differ_by_rank_and_from_what_is_tested():
    source = Generated(_options("--max-rows", "100"))
    batches = [source.train(0, 0, 2, 8), source.train(0, 1, 2, 8), next(source.test(0, 2, 8, 1))]
    for k, batch in enumerate(batches):
        for other in batches[:k]:
            assert not torch.equal(batch.dense, other.dense)
    assert source.best_auc is not None
    assert 0.6 < source.best_auc < 1


def _criteo_line(label, k):
    return "\t".join([str(label), *[str(k)] * 13, *[f"{k:08x}"] * 26])


def test_ranks_take_turns_at_the_lines_of_a_criteo_file_and_can_go_back(tmp_path):
    for name in ("train.txt", "test.txt"):
        (tmp_path / name).write_text("\n".join(_criteo_line(k % 2, k) for k in range(20)) + "\n")
    source = source_of(_options("--data", "criteo", "--folder", str(tmp_path), "--max-rows", "50"))
    assert isinstance(source, Criteo)
    dense = [
        [source.train(step, rank, 2, 3).dense[:, 0].expm1().round().tolist() for step in (0, 1, 2, 0)]
        for rank in range(2)
    ]
    assert dense == [[[0, 1, 2], [6, 7, 8], [12, 13, 14], [0, 1, 2]], [[3, 4, 5], [9, 10, 11], [15, 16, 17], [3, 4, 5]]]
    with pytest.raises(ValueError, match="ends in step 3"):
        source.train(3, 0, 2, 3)


def test_a_log_needs_its_folder():
    with pytest.raises(ValueError, match="--data criteo needs --folder"):
        source_of(_options("--data", "criteo"))
    with pytest.raises(ValueError, match="--data table needs --folder FILE"):
        source_of(_options("--data", "table", "--label", "clicked"))


def test_a_table_of_the_user_is_a_log(tmp_path):
    path = tmp_path / "clicks.csv"
    path.write_text("clicked,user\n" + "".join(f"{k % 2},u{k % 7}\n" for k in range(50)))
    source = source_of(_options("--data", "table", "--folder", str(path), "--label", "clicked", "--categories", "user"))
    assert (source.names, source.num_rows) == (("user",), (8,))
    assert source.train(0, 0, 2, 10).num_samples == 10
