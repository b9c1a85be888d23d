import gzip
import hashlib
import pickle
import struct
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch

from pliant_bench.data import fetch
from pliant_bench.data.fetch import DataMissingError, find_images
from pliant_bench.data.images import load_images
from pliant_bench.harness.learners import LearnsTask


def _write_idx(folder, *, packed):
    rng = np.random.default_rng(0)
    made = {}
    for part, num in (("train", 12), ("t10k", 5)):
        for kind, array in (
            ("images-idx3", rng.integers(0, 256, (num, 4, 4), dtype=np.uint8)),
            ("labels-idx1", rng.integers(0, 10, num, dtype=np.uint8)),
        ):
            raw = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}i", *array.shape) + array.tobytes()
            name = f"{part}-{kind}-ubyte"
            (folder / (name + ".gz" if packed else name)).write_bytes(gzip.compress(raw) if packed else raw)
            made[name] = array
    return made


@pytest.mark.parametrize("packed", [True, False])
def test_idx_files_come_back_normalized_with_their_labels(tmp_path, packed):
    made = _write_idx(tmp_path, packed=packed)
    images = load_images(tmp_path)
    raw = made["train-images-idx3-ubyte"].astype(np.float64)
    np.testing.assert_allclose(images.train_x[:, 0].numpy(), (raw - raw.mean()) / raw.std(), rtol=1e-5, atol=1e-6)
    assert images.train_y.tolist() == made["train-labels-idx1-ubyte"].tolist()
    assert images.test_x.shape == (5, 1, 4, 4)
    test_raw = made["t10k-images-idx3-ubyte"]  # by the training set's mean: nothing of the test set is looked at
    np.testing.assert_allclose(images.test_x[:, 0].numpy(), (test_raw - raw.mean()) / raw.std(), rtol=1e-5, atol=1e-6)


def _write_cifar(folder, *, batches=(1, 2), protocol=2):
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(1)
    made = {}
    for name in [f"data_batch_{k}" for k in batches] + ["test_batch"]:
        made[name] = rng.integers(0, 256, (3, 3072), dtype=np.uint8), [1, 2, 9]
        body = {b"data": made[name][0], b"labels": made[name][1], b"batch_label": b"made"}
        (folder / name).write_bytes(pickle.dumps(body, protocol=protocol))
    return made


@pytest.mark.parametrize("inside", ["", "cifar-10-batches-py"])
def test_cifar_batches_come_back_as_channels_of_rows(tmp_path, inside):
    made = _write_cifar(tmp_path / inside)
    images = load_images(tmp_path)
    assert images.train_x.shape == (6, 3, 32, 32)
    assert images.train_y.tolist() == [1, 2, 9, 1, 2, 9]
    green = np.concatenate([made[f"data_batch_{k}"][0] for k in (1, 2)])[:, 1024:2048].astype(np.float64)
    wanted = ((green - green.mean()) / green.std()).reshape(6, 32, 32)
    np.testing.assert_allclose(images.train_x[:, 1].numpy(), wanted, rtol=1e-5, atol=1e-6)


class _Runs:
    def __reduce__(self):
        return (print, ("this must not run",))


def test_a_cifar_batch_that_would_run_code_is_refused(tmp_path, capsys):
    _write_cifar(tmp_path)
    (tmp_path / "data_batch_1").write_bytes(pickle.dumps({b"data": _Runs(), b"labels": []}))
    with pytest.raises(DataMissingError, match=r"may not hold builtins\.print"):
        load_images(tmp_path)
    assert "must not run" not in capsys.readouterr().out


def test_missing_cut_off_or_half_there_is_said(tmp_path):
    with pytest.raises(DataMissingError, match=r"neither train-images-idx3-ubyte nor .*data_batch_1.*--data"):
        load_images(tmp_path)
    _write_idx(tmp_path, packed=False)
    whole = (tmp_path / "t10k-images-idx3-ubyte").read_bytes()
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(whole[:-1])
    with pytest.raises(DataMissingError, match="t10k-images-idx3-ubyte is not an idx file of bytes, or is cut off"):
        load_images(tmp_path)
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(b"\x1f")
    with pytest.raises(DataMissingError, match="is not an idx file"):
        load_images(tmp_path)
    _write_cifar(tmp_path / "cifar")
    (tmp_path / "cifar" / "test_batch").unlink()
    with pytest.raises(DataMissingError, match="no test_batch"):
        load_images(tmp_path / "cifar")


def test_ranks_share_an_epoch_without_overlap_and_the_next_is_shuffled_anew(tmp_path):
    _write_idx(tmp_path, packed=True)
    images = load_images(tmp_path)
    object.__setattr__(images, "train_y", torch.arange(12))  # each image's label is its index

    def epoch(first_step):
        steps = range(first_step, first_step + images.steps_per_epoch(2, 3))
        return [images.batch(step, rank, 2, 3, seed=5)[1].tolist() for step in steps for rank in range(2)]

    first, second = epoch(0), epoch(2)
    assert sorted(chain(*first)) == list(range(12))
    assert sorted(chain(*second)) == list(range(12))
    assert first != second
    assert first == epoch(0)


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """A machine without the package, and with an apt-get of our own."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setattr(fetch, "_INSTALLED", tmp_path / "usr/share/datasets/fashion-mnist")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path


def _apt_get(folder, script):
    program = folder / "bin" / "apt-get"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def test_a_machine_without_the_data_or_apt_says_what_to_do(nowhere):
    with pytest.raises(DataMissingError, match=r"could not be fetched .*apt-get.*Install the Debian package .* --data"):
        find_images("")
    _apt_get(nowhere, "echo 'E: Unable to locate package' >&2; exit 100")
    with pytest.raises(DataMissingError, match="E: Unable to locate package"):
        find_images("")
    with pytest.raises(DataMissingError, match=r"--data .*missing is not a folder"):
        find_images(str(nowhere / "missing"))


def test_a_package_with_another_hash_is_not_used_and_leaves_nothing(nowhere):
    _apt_get(nowhere, "echo other > dataset-fashion-mnist_1_all.deb")
    with pytest.raises(DataMissingError, match=f"1 packages with sha256 .* has {fetch.IMAGES.sha256}; it was not used"):
        find_images("")
    assert list((nowhere / ".cache" / "pliant").iterdir()) == []


def test_a_fetched_package_is_unpacked_once(nowhere, monkeypatch):
    _apt_get(nowhere, "echo one >> $HOME/calls; echo right > data.deb")
    unpack = nowhere / "bin" / "dpkg-deb"
    unpack.write_text('#!/bin/sh\n/bin/mkdir -p "$3/inside/fashion-mnist"; echo x > "$3/inside/fashion-mnist/file"\n')
    unpack.chmod(0o755)
    monkeypatch.setattr(fetch, "_INSTALLED", Path("/inside/fashion-mnist"))
    right = hashlib.sha256(b"right\n").hexdigest()
    monkeypatch.setattr(fetch, "IMAGES", fetch.IMAGES._replace(sha256=right))
    found = find_images("")
    assert (found / "file").read_text() == "x\n"
    assert find_images("") == found
    assert (nowhere / "calls").read_text() == "one\n"
    assert [p.name for p in found.parent.iterdir()] == ["fashion-mnist"]


def test_a_learning_rate_that_is_given_takes_the_place_of_the_tasks(tmp_path):
    _write_idx(tmp_path, packed=False)
    task = load_images(tmp_path)
    for lr, used in ((0.0, task.lr), (0.5, 0.5)):
        arm = LearnsTask(task=task, batch=2, bucket_mb=25.0, lr=lr).arm("compute", 0, 10)
        assert arm.optimizer.param_groups[0]["lr"] == used
