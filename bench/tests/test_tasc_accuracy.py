"""The accuracy jobs of benchmarks/tasc, on made data."""

import importlib
import io
import json
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from pliant_bench.data.fetch import DataMissingError

_FOLDER = Path(__file__).parents[2] / "benchmarks" / "tasc"


@pytest.fixture
def load(monkeypatch):
    """Return what imports a module of benchmarks/tasc."""
    monkeypatch.syspath_prepend(str(_FOLDER))
    return importlib.import_module


def write_images(folder):
    rng = np.random.default_rng(0)
    folder.mkdir()
    for part, num in (("train", 256), ("t10k", 64)):
        labels = rng.integers(0, 2, num, dtype=np.uint8)
        images = rng.integers(0, 100, (num, 8, 8), dtype=np.uint8)
        for image, label in zip(images, labels, strict=True):
            image[:, 4 * label : 4 * label + 4] += 150
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            head = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
            (folder / f"{part}-{kind}-ubyte").write_bytes(head + array.tobytes())
    return folder


def test_a_book_survives_a_cut_off_line_and_keeps_the_first_of_a_key(load, tmp_path):
    book_of = load("accuracy_book").Book
    path = tmp_path / "new" / "runs.jsonl"
    record = {"kind": "run", "task": "images", "arm": "dense", "seed": 0, "value": 0.5}
    journal = book_of(path)
    journal.add(record)
    with path.open("a") as file:
        file.write('{"kind": "run", "task": "ima')  # killed here
    again = book_of(path)
    assert again.find(kind="run", task="images", arm="dense", seed=0) == record
    other = again.add({**record, "seed": 1})
    assert again.add({**record, "value": 0.9}) == record
    assert book_of(path).of_kind("run") == [record, other]
    assert book_of(path).find(kind="run", task="images", arm="dense", seed=2) is None


def test_the_short_form_and_every_run_have_names_of_their_own(load):
    accuracy = load("accuracy")
    everything = accuracy.jobs(5, ["*"])
    assert len(set(everything)) == len(everything)
    assert 1000 < len(everything) < 2000
    short = accuracy.jobs(5, accuracy.SHORT)
    assert len(short) == 5 * len(accuracy.SHORT) == 90
    assert {job.name for job in short} == set(accuracy.SHORT)
    beside = accuracy.jobs(3, accuracy.HEADLINE)
    assert {job.name for job in beside} < {job.name for job in everything}
    assert {job.ratio for job in beside} == {2, 30, 130, 300}
    assert not [job for job in everything if job.arm == "dgc" and job.optimizer == "adam"]
    names = {job.arm for job in everything}
    assert {f"tasc-p{p}-{b}" for p in ("0", "0.5", "1") for b in ("rows", "b16", "b32", "b64", "b128")} < names
    with pytest.raises(ValueError, match=r"nothing is called images/sgd/7/\*; .* as in images/sgd/2/dense"):
        accuracy.jobs(1, ["images/sgd/7/*"])


def test_the_table_pairs_seeds_and_says_what_diverged(load):
    made = load("accuracy_table")
    low, high = made.interval([1.0, 2.0, 3.0])
    assert 1 <= low < 2 < high <= 3
    assert made.interval([1.5] * 5) == (1.5, 1.5)
    common = {"task": "images", "optimizer": "sgd", "sent_bytes": 10.0}
    dense = [{**common, "arm": "dense", "ratio": 2, "seed": s, "value": v} for s, v in enumerate((0.8, 0.6))]
    topk = [{**common, "arm": "topk", "ratio": 130, "seed": s, "value": v} for s, v in enumerate((0.79, 0.59))]
    lost = [{**common, "arm": "random", "ratio": 130, "seed": 0, "value": None}]
    text = made.table([*dense, *topk, *lost], {("images", "sgd"): 100.0})
    assert "| dense |  | 10.0x | 70.00% | 14.14 | 2 | | |" in text
    assert "| topk | 130x | 10.0x | 69.00% | 14.14 | 2 | -1.00 | -1.00 to -1.00 |" in text
    assert "| random | 130x | 10.0x | | | 1, 1 diverged | | |" in text
    assert {*load("accuracy").STEPS} <= {*made.METRIC}


@pytest.mark.extended
def test_one_command_measures_fits_and_goes_on_where_it_stopped(load, tmp_path, monkeypatch, capsys):
    accuracy = load("accuracy")
    out, images = tmp_path / "runs.jsonl", write_images(tmp_path / "images")
    names = ("2/dense", "10/topk", "10/random", "10/uniform-b16", "300/uniform", "10/tasc-p1-b64")
    common = ["--out", str(out), "--images", str(images), "--seeds", "2", "--steps", "12"]
    only = [text for name in names for text in ("--only", f"images/sgd/{name}")]
    accuracy.main([*common, *only, "--time-limit", "1e-9"])
    assert "runs are left: the same command goes on" in capsys.readouterr().out
    assert not out.exists()
    accuracy.main([*common, *only])
    said = capsys.readouterr().out
    records = [json.loads(line) for line in out.read_text().splitlines()]
    runs = [r for r in records if r["kind"] == "run"]
    assert [(r["arm"], r["seed"]) for r in runs] == [
        (arm, seed) for seed in (0, 1) for arm in ("dense", "tasc-p1-b64", "uniform-b16", "random", "topk")
    ]
    assert all(0 <= r["value"] <= 1 and r["wall_s"] > 0 for r in runs)
    (dense,) = (r["sent_bytes"] for r in records if r["kind"] == "float32")
    model = accuracy.task_named("images", str(images)).model()
    numel = sum(p.numel() for p in model.parameters())
    assert dense == pytest.approx(4 * 2 * 3 / 4 * 4 * numel, rel=1e-4)  # four ranks of a ring
    for run in runs:
        asked = run["ratio"]
        assert dense / run["sent_bytes"] == pytest.approx(asked, rel=0.15 if asked > 2 else 1e-3)
    (refused,) = (r for r in records if r["kind"] == "unreachable")
    assert "uniform cannot send a 300th of dense float32 on images" in refused["why"]
    assert refused["why"] in said
    assert "| topk | 10x |" in said

    def never(*_, **__):
        raise AssertionError

    monkeypatch.setattr(accuracy, "trained", never)
    accuracy.main([*common, *only])
    accuracy.main([*common, *only, "--table"])
    assert len(out.read_text().splitlines()) == len(records)
    assert capsys.readouterr().out.count("| topk | 10x |") == 2


def test_the_model_of_characters_learns_with_both_optimizers(load):
    tasks = load("accuracy_tasks")
    torch.manual_seed(0)
    model = tasks.Decoder(90)
    assert 400_000 < sum(p.numel() for p in model.parameters()) < 420_000
    assert sum(p.numel() for p in model.parameters() if p.dim() < 2) < 0.002 * 410_000
    logits = model(torch.zeros(2, 64, dtype=torch.int64))
    assert logits.shape == (2, 64, 90)
    later = torch.zeros(2, 64, dtype=torch.int64)
    later[:, 40:] = 5
    torch.testing.assert_close(model(later)[:, :40], logits[:, :40])  # no look ahead


def _write_cifar(folder, num=24, *, last=None):
    """Make an archive of the official format."""
    folder.mkdir()
    rng = np.random.default_rng(1)
    with tarfile.open(folder / "cifar-10-python.tar.gz", "w:gz") as tar:
        for name in (*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"):
            labels = rng.integers(0, 10, num).tolist()
            data = rng.integers(0, 256, (num, 3072), dtype=np.uint8)
            body = {b"batch_label": name.encode(), b"labels": labels, b"data": data, b"filenames": [b"x.png"] * num}
            if name == last:
                body[b"data"] = _Runs()
            raw = pickle.dumps(body, protocol=2)
            info = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            info.size = len(raw)
            tar.addfile(info, io.BytesIO(raw))
    return folder


class _Runs:
    def __reduce__(self):
        return (print, ("this must not run",))


def test_cifar_comes_from_its_archive_and_nothing_in_it_runs(load, tmp_path, capsys):
    wide = load("wide_model")
    images = wide.load_cifar10(_write_cifar(tmp_path / "good"))
    assert images.train_x.shape == (120, 3, 32, 32)
    assert images.test_y.shape == (24,)
    (tmp_path / "good" / "cifar-10-python.tar.gz").unlink()
    assert torch.equal(wide.load_cifar10(tmp_path / "good").train_x, images.train_x)
    with pytest.raises(DataMissingError, match="may not hold"):
        wide.load_cifar10(_write_cifar(tmp_path / "evil", last="data_batch_3"))
    assert "must not run" not in capsys.readouterr().out
    with pytest.raises(DataMissingError, match="other images than CIFAR-10's"):
        wide.load_cifar10(write_images(tmp_path / "other"))


def test_the_network_has_20_layers_and_computes_the_same_elsewhere(load):
    wide = load("wide_model")
    torch.manual_seed(0)
    model = wide.WideResNet(1)
    layers = [m for m in model.modules() if isinstance(m, (torch.nn.Conv2d, torch.nn.Linear))]
    assert len([m for m in layers if getattr(m, "kernel_size", None) != (1, 1)]) == 20
    assert 4.2e6 < sum(p.numel() for p in wide.WideResNet(4).parameters()) < 4.4e6
    torch.manual_seed(0)
    moved = wide.ComputedOn(wide.WideResNet(1), torch.device("cpu"))
    x = torch.randn(4, 3, 32, 32)
    for net in (model, moved):
        net(x).square().sum().backward()
    for (name, a), b in zip(model.named_parameters(), moved.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, msg=name)
    for a, b in zip(model.buffers(), moved.buffers(), strict=True):
        assert torch.equal(a, b)


def test_every_augmented_image_is_a_crop_perhaps_mirrored(load):
    augmented = load("wide_model").augmented
    x = torch.arange(1, 1 + 6 * 2 * 8 * 8.0).view(6, 2, 8, 8)
    out = augmented(x, torch.Generator().manual_seed(3))
    wide = torch.nn.functional.pad(x, (4, 4, 4, 4))
    mirrors = set()
    for image, source in zip(out, wide, strict=True):
        found = [
            mirror
            for mirror in (False, True)
            for top in range(9)
            for left in range(9)
            if torch.equal(image.flip(2) if mirror else image, source[:, top : top + 8, left : left + 8])
        ]
        assert found
        mirrors.add(found[0])
    assert mirrors == {False, True}


@pytest.mark.extended
def test_the_wide_job_goes_on_as_if_it_had_never_stopped(load, tmp_path, capsys):
    wide = load("wide_resnet")
    data = _write_cifar(tmp_path / "data")
    common = ["--data", str(data), "--epochs", "2", "--widen", "1", "--batch", "24", "--workers", "2", "--seeds", "1"]
    common += ["--arms", "bf16,sparcml(ratio=0.02)"]

    def run(folder, *more):
        wide.main([*common, "--out", str(tmp_path / folder), *more])
        journal = tmp_path / folder / "results.jsonl"
        return [json.loads(line) for line in journal.read_text().splitlines()] if journal.exists() else []

    whole = run("whole")
    assert [r["steps"] for r in whole] == [1, 2, 1, 2]
    assert whole[1]["sent_bytes"] > 8 * whole[3]["sent_bytes"] > 0
    assert run("halted", "--time-limit", "1e-9") == []
    assert "the same command goes on" in capsys.readouterr().out
    train = wide._epoch
    calls = iter(range(100))

    def interrupted(*given):
        if next(calls) >= 2:  # two ranks have made an epoch each
            raise KeyboardInterrupt
        return train(*given)

    wide._epoch = interrupted
    try:
        with pytest.raises(KeyboardInterrupt):
            run("halted")
    finally:
        wide._epoch = train
    resumed = run("halted")
    for a, b in zip(whole, resumed, strict=True):
        assert {k: v for k, v in a.items() if k != "train_s"} == {k: v for k, v in b.items() if k != "train_s"}
    assert run("halted") == resumed
    kept = sorted(path.name for path in (tmp_path / "halted").glob("bf16*/*/*"))
    assert kept == ["rank0.pt", "rank1.pt"]
    with pytest.raises(ValueError, match="a batch of 25 cannot be divided among 2 workers"):
        run("odd", "--batch", "25")
