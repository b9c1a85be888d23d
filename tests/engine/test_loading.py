"""A whole run in one folder: one call saves it and one goes on, and half of one is never taken for a whole."""

import json
from pathlib import Path

import pytest
import torch
from test_checkpoint import EVERY_ALGORITHM, HOSTS, adam_for, relaxed

import pliant
from models import new_ddp, train, weights
from pliant.engine import checkpoint


def scheduled(optimizer):
    return torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[2, 5], gamma=0.5)


def steps(ddp, optimizer, scheduler, rank, which):
    losses = []
    for step in which:
        losses += train(ddp, optimizer, rank, [step])
        scheduler.step()
    return losses


def again(place, path, name="gossip", **options):
    ddp = new_ddp(place, seed=5)
    optimizer = adam_for(name, ddp.parameters())
    scheduler = scheduled(optimizer)
    run = pliant.load_run(path, ddp, optimizer, scheduler, hosts=HOSTS, timeout_s=20, **options)
    return ddp, optimizer, scheduler, run


def saved(place, path, name="gossip", num_steps=4):
    ddp, optimizer, run = relaxed(place, name)
    scheduler = scheduled(optimizer)
    steps(ddp, optimizer, scheduler, place.rank, range(num_steps))
    run.save(path, scheduler=scheduler)
    return ddp, optimizer, scheduler, run


@pytest.mark.parametrize(
    "name",
    [
        *("onebit", "sharded_optimizer", "streaming_diloco"),
        *(pytest.param(name, marks=pytest.mark.extended) for name in ("gossip", "bounded_staleness", "des_loc")),
    ],
)
def test_a_run_goes_on_to_the_bit_in_one_call(name, tmp_path):
    def body(place):
        ddp, optimizer, scheduler, run = saved(place, tmp_path / "run", name)
        with run:
            losses = steps(ddp, optimizer, scheduler, place.rank, range(4, 8))
            mine = weights(ddp).clone()
        other, optimizer, scheduler, run = again(place, tmp_path / "run", name)
        with run:
            assert run.steps == 4
            assert run.plan.rules[0].exchange == EVERY_ALGORITHM[name]
            return steps(other, optimizer, scheduler, place.rank, range(4, 8)) == losses and torch.equal(
                mine, weights(other)
            )

    assert pliant.run_world(2, body, timeout_s=60) == [True] * 2


def test_one_checkpoint_takes_the_place_of_another(tmp_path):
    def body(place):
        ddp, optimizer, scheduler, run = saved(place, tmp_path / "run")
        with run:
            steps(ddp, optimizer, scheduler, place.rank, range(4, 6))
            run.save(tmp_path / "run", scheduler=scheduler)
        *_, run = again(place, tmp_path / "run", "gossip")
        with run:
            return run.steps

    assert pliant.run_world(2, body) == [6, 6]
    assert len(list((tmp_path / "run").iterdir())) == 2  # what it says, and one folder of parts


@pytest.mark.parametrize("part", ["rank1.pt", "shared.pt", "checkpoint.json"])
def test_whatever_cannot_be_written_leaves_the_old_one_whole(part, tmp_path, monkeypatch):
    """A disk that is full for one rank, at any file: all raise the same, nothing is left over."""
    sync = checkpoint._sync

    def body(place):
        ddp, optimizer, scheduler, run = saved(place, tmp_path / "run")
        with run:
            before = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
            place.comm.barrier()
            if place.rank == 0:
                monkeypatch.setattr(checkpoint, "_sync", full)
            place.comm.barrier()
            with pytest.raises(OSError, match=r"No space left on device.*as it was"):
                run.save(tmp_path / "run", scheduler=scheduler)
            place.comm.barrier()
            assert before == {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
            steps(ddp, optimizer, scheduler, place.rank, range(4, 5))  # it goes on

    def full(path):
        if path.name == part:
            raise OSError(28, "No space left on device")
        sync(path)

    pliant.run_world(2, body)


def truncate(run):
    next(run.glob("step*/rank1.pt")).write_bytes(b"half")


def spoil(run):
    file = next(run.glob("step*/rank1.pt"))
    file.write_bytes(b"x" * file.stat().st_size)


def rewrite(**changes):
    def spoil(run):
        file = run / "checkpoint.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))

    return spoil


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda run: (run / "checkpoint.json").unlink(), "holds no whole checkpoint"),
        (truncate, r"rank1\.pt has 4 bytes"),
        (spoil, r"rank1\.pt is damaged"),
        (lambda run: next(run.glob("step*/shared.pt")).unlink(), r"shared\.pt is not there"),
        (lambda run: (run / "checkpoint.json").write_text("{" * 9), "cannot be read as a checkpoint"),
        (rewrite(format=9), r"as a checkpoint of format 1 \(it is a checkpoint of format 9\)"),
        (rewrite(files={"shared.pt": 3, "rank7.pt": 1}), "not one part for each rank"),
        (rewrite(plan={"pliant": "Topology"}), "cannot be read as a checkpoint"),
    ],
)
def test_what_is_damaged_is_refused_on_all_ranks(damage, sentence, tmp_path):
    def save(place):
        with saved(place, tmp_path / "run")[-1]:
            pass

    def load(place):
        with pytest.raises(ValueError, match=sentence):
            again(place, tmp_path / "run", "gossip")

    pliant.run_world(2, save)
    damage(tmp_path / "run")
    pliant.run_world(2, load)


def test_a_whole_run_is_not_kept_where_only_fsspec_finds_it(tmp_path, monkeypatch):
    """It would be a folder named s3: beside the script."""
    monkeypatch.chdir(tmp_path)

    def body(place):
        sentence = "s3://bucket/run is a path of fsspec, but a whole run is kept in a folder of a disk"
        with relaxed(place, "gossip")[-1] as run, pytest.raises(ValueError, match=sentence):
            run.save("s3://bucket/run")
        with pytest.raises(ValueError, match=sentence):
            again(place, "s3://bucket/run", "gossip")

    pliant.run_world(2, body)
    assert list(tmp_path.iterdir()) == []


def test_where_one_rank_is_told_of_another_place_none_loads(tmp_path):
    def body(place):
        with saved(place, tmp_path / "run")[-1], pytest.raises(ValueError, match="s3://bucket/run is a path of fsspec"):
            again(place, tmp_path / "run" if place.rank else "s3://bucket/run")

    pliant.run_world(2, body)


def test_a_scheduler_that_was_saved_must_be_given(tmp_path):
    def body(place):
        with saved(place, tmp_path / "run")[-1]:
            pass
        ddp = new_ddp(place)
        optimizer = adam_for("gossip", ddp.parameters())
        with pytest.raises(ValueError, match=r"was saved with a scheduler, but load_run\(\) was given none"):
            pliant.load_run(tmp_path / "run", ddp, optimizer)
        other = torch.nn.Linear(3, 2)
        step = torch.optim.AdamW(other.parameters())
        with pytest.raises(ValueError, match="does not fit the model or the optimizer"):
            pliant.load_run(tmp_path / "run", other, step, scheduled(step), group=place.process_group)

    pliant.run_world(2, body)


@pytest.mark.parametrize(
    ("kept", "sentence"), [(Path("x"), r"holds pathlib.*tensors, numbers, texts"), (lambda: 0, "holds something that")]
)
def test_what_would_have_to_be_run_is_not_saved(kept, sentence, tmp_path):
    class Odd(torch.optim.lr_scheduler.ConstantLR):
        def state_dict(self):
            return {**super().state_dict(), "when": kept}

    def body(place):
        *_, optimizer, run = relaxed(place, "gossip")
        with run, pytest.raises(ValueError, match=sentence):
            run.save(tmp_path / "run", scheduler=Odd(optimizer))

    pliant.run_world(2, body)
    assert not list((tmp_path / "run").iterdir())


def test_another_number_of_ranks_is_asked_for(tmp_path):
    def save(place):
        ddp, *_, run = saved(place, tmp_path / "run", "onebit")
        with run:
            return weights(ddp).clone()

    def load(place):
        with pytest.raises(ValueError, match="saved by 3 ranks, but 2 load it"):
            again(place, tmp_path / "run", "onebit")
        ddp, optimizer, scheduler, run = again(place, tmp_path / "run", "onebit", resize=True)
        with run:
            same = torch.equal(weights(ddp), wanted)
            steps(ddp, optimizer, scheduler, place.rank, range(4, 7))
            return same, run.steps

    wanted = pliant.run_world(3, save)[0]
    assert pliant.run_world(2, load) == [(True, 7)] * 2
