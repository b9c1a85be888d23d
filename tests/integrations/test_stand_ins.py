"""Runs in checkpoints of frameworks: stand-ins with the calls that Pliant takes part in, in a world of threads."""

import sys
import types
from contextlib import nullcontext
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem

import pliant
from models import new_ddp, train, weights
from pliant.integrations import fabric as in_fabric


class Fabric:
    """Saves on the first rank, and loads, as Fabric does."""

    def __init__(self, rank):
        self.rank, self.loggers = rank, []
        self.strategy = SimpleNamespace(precision=SimpleNamespace())

    def save(self, path, state):
        held = {name: value.state_dict() for name, value in state.items()}
        if self.rank == 0:
            torch.save(held, path)

    def load(self, path, state):
        for name, saved in torch.load(path).items():
            state[name].load_state_dict(saved)
        return {}


def begin(fabric, context, seed, what):
    model = new_ddp(context, seed=seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return model, optimizer, in_fabric.relax(fabric, model, optimizer, what, timeout_s=20)


def test_fabric_saves_the_mean_where_ranks_differ(tmp_path):
    def rank(context):
        fabric = Fabric(context.rank)
        model, optimizer, run = begin(fabric, context, 0, "diloco(32)")
        with run:
            train(model, optimizer, context.rank, range(2))
            with (
                run.consolidated(),
                pytest.raises(RuntimeError, match=r"fabric.save\(\) needs this rank's own weights"),
            ):
                fabric.save(tmp_path / "early.ckpt", {"model": model})
            fabric.save(tmp_path / "a.ckpt", {"model": model})
            return weights(model).clone(), [name for name, _ in model.named_parameters()]

    (first, names), (second, _) = pliant.run_world(2, rank)
    assert not torch.equal(first, second)
    saved = torch.load(tmp_path / "a.ckpt")["model"]
    found = torch.cat([saved[name].flatten() for name in names])
    torch.testing.assert_close(found, (first + second) / 2)
    assert not (tmp_path / "early.ckpt").exists()


def test_two_runs_of_one_fabric_go_on_to_the_bit(tmp_path):
    """As a GAN's: each keeps a part of its own, though both models are alike."""

    def rank(context):
        ended = []
        for loads in (False, True):
            fabric = Fabric(context.rank)
            pairs = [begin(fabric, context, seed, "topk") for seed in (1, 2)]
            names = ["model", "optimizer", "other", "its optimizer"]
            state = dict(zip(names, [part for pair in pairs for part in pair[:2]], strict=True))
            if loads:
                fabric.load(tmp_path / "a.ckpt", state)
            for steps in [range(2, 4)] if loads else [range(2), range(2, 4)]:
                for k, (model, optimizer, _) in enumerate(pairs):
                    train(model, optimizer, context.rank + 10 * k, steps)
                if steps.start == 0:
                    fabric.save(tmp_path / "a.ckpt", state)
            ended.append(torch.cat([weights(model) for model, _, _ in pairs]).clone())
            for _, _, run in pairs:
                run.close()
        return ended

    for before, after in pliant.run_world(2, rank):
        assert torch.equal(before, after)
    assert {path.name for path in tmp_path.iterdir()} == {"a.ckpt", "a.ckpt.pliant", "a.ckpt.pliant2"}


class Accelerator:
    """Calls what is registered when its test says so."""

    scaler, trackers = None, ()

    def __init__(self):
        self.before_save, self.before_load, self.objects = [], [], []
        self.register_save_state_pre_hook = self.before_save.append
        self.register_load_state_pre_hook = self.before_load.append
        self.register_for_checkpointing = self.objects.append

    def end_training(self): ...


@pytest.mark.skipif(find_spec("accelerate") is None, reason="needs accelerate: pip install accelerate")
def test_an_accelerator_loads_what_it_likes_once_the_run_is_closed(tmp_path):
    from pliant.integrations.accelerate import relax

    def rank(context):
        accelerator, model = Accelerator(), new_ddp(context)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        run = relax(accelerator, model, optimizer, "topk", timeout_s=20)
        accelerator.before_load[0]([model], str(tmp_path))
        with pytest.raises(ValueError, match=r"pliant/rank\d.pt is not there"):
            accelerator.objects[0].load_state_dict({})
        accelerator.end_training()
        accelerator.objects[0].load_state_dict({})
        return run.is_open

    assert pliant.run_world(2, rank) == [False, False]


@pytest.mark.skipif(find_spec("accelerate") is None, reason="needs accelerate: pip install accelerate")
def test_rows_in_wandb_are_never_ahead_of_what_a_script_logs_by_epochs():
    from pliant.integrations.accelerate import relax

    rows = {"wandb": [], "other": []}

    def tracker(name):
        def log(values, step):
            rows[name].append((step, values["pliant/sent_bytes"], values.get("pliant/step")))

        return SimpleNamespace(name=name, log=log, tracker=SimpleNamespace(step=1))

    def rank(context):
        accelerator, model = Accelerator(), new_ddp(context)
        accelerator.trackers = [tracker(name) for name in rows]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with relax(accelerator, model, optimizer, "allreduce", timeout_s=20, log_every=2):
            train(model, optimizer, 0, range(4))

    pliant.run_world(1, rank)
    assert rows == {"wandb": [(1, 0.0, 2), (1, 0.0, 4)], "other": [(2, 0.0, None), (4, 0.0, None)]}


class WithMore(torch.nn.Module):
    """A model with a part that is compiled by itself, and a state that is no tensor."""

    def __init__(self):
        super().__init__()
        self.part = torch.compile(torch.nn.Linear(3, 2), backend="eager")

    def get_extra_state(self):
        return {"seen": 3}

    def set_extra_state(self, state): ...


@pytest.mark.skipif(find_spec("accelerate") is None, reason="needs accelerate: pip install accelerate")
def test_an_accelerator_saves_the_mean_of_a_model_in_parts(tmp_path):
    from pliant.integrations.accelerate import relax

    def rank(context):
        accelerator, model = Accelerator(), new_ddp(context, model=WithMore)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with relax(accelerator, model, optimizer, "diloco(8)", timeout_s=20):
            with torch.no_grad():
                model.module.part.weight.fill_(context.rank)
            weights = [dict(model.state_dict())]
            accelerator.before_save[0]([model], weights, str(tmp_path))
        return weights[0]

    saved, _ = pliant.run_world(2, rank)
    (weight,) = [value for name, value in saved.items() if name.endswith("weight")]
    assert torch.equal(weight, torch.full((2, 3), 0.5))
    assert saved["module._extra_state"] == {"seen": 3}


@pytest.mark.skipif(find_spec("transformers") is None, reason="needs transformers: pip install transformers accelerate")
@pytest.mark.parametrize(("given", "wanted"), [(str, 4), (Path, 4), (lambda _: True, 8)])
def test_a_trainer_resumes_from_the_checkpoint_that_is_named(given, wanted, tmp_path):
    """The Trainer takes a path as well as a text."""
    from pliant.integrations.transformers import PliantCallback

    for step in (4, 8):
        (tmp_path / f"checkpoint-{step}").mkdir()

    def rank(context):
        def begins(resume_from_checkpoint):
            args = SimpleNamespace(eval_on_start=False, output_dir=str(tmp_path))
            callback.on_train_begin(args, SimpleNamespace(global_step=4), None)

        model = new_ddp(context)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        trainer = SimpleNamespace(train=begins, log=None, accelerator=None, model_wrapped=model, optimizer=optimizer)
        callback = PliantCallback(trainer, "topk", timeout_s=20)
        with pytest.raises(ValueError, match=rf"checkpoint-{wanted}/pliant/rank0.pt is not there"):
            trainer.train(given(tmp_path / "checkpoint-4"))

    pliant.run_world(1, rank)


@pytest.mark.skipif(find_spec("transformers") is None, reason="needs transformers: pip install transformers accelerate")
@pytest.mark.parametrize("error", [ValueError("a batch was odd"), KeyboardInterrupt()])
def test_a_trainer_that_fails_breaks_its_run_off(error):
    from pliant.integrations.transformers import PliantCallback

    def rank(context):
        model, runs = new_ddp(context), []

        def fails(resume_from_checkpoint):
            callback.on_train_begin(SimpleNamespace(eval_on_start=False), SimpleNamespace(global_step=0), None)
            runs.append(callback.run)
            raise error

        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        trainer = SimpleNamespace(train=fails, log=None, accelerator=None, model_wrapped=model, optimizer=optimizer)
        callback = PliantCallback(trainer, "topk", timeout_s=20)
        with pytest.raises(type(error)):
            trainer.train()
        return callback.run, runs[0].is_open

    assert pliant.run_world(2, rank) == [(None, False)] * 2


@pytest.mark.skipif(find_spec("transformers") is None, reason="needs transformers: pip install transformers accelerate")
def test_each_trial_of_a_search_for_hyperparameters_has_parts_of_its_own(tmp_path):
    """In the folder that the Trainer itself makes for it; a training without a trial has none."""
    from transformers import Trainer
    from transformers.trainer_utils import HPSearchBackend

    from pliant.integrations.transformers import PliantCallback

    args = SimpleNamespace(eval_on_start=False, output_dir=str(tmp_path), save_only_model=False)

    def rank(context):
        def trains(resume_from_checkpoint, trial=None):
            callback.on_train_begin(args, SimpleNamespace(global_step=0), None)
            callback.on_save(args, SimpleNamespace(global_step=4), None)
            callback.run.close()
            callback.run = None

        model = new_ddp(context)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        trainer = SimpleNamespace(train=trains, log=None, accelerator=None, model_wrapped=model, optimizer=optimizer)
        trainer.args, trainer.hp_search_backend, trainer.hp_name = args, HPSearchBackend.OPTUNA, None
        trainer._get_output_dir = partial(Trainer._get_output_dir, trainer)
        callback = PliantCallback(trainer, "topk", timeout_s=20)
        trainer.train(None, SimpleNamespace(number=0))
        trainer.train(trial=SimpleNamespace(number=1))
        trainer.train()

    pliant.run_world(1, rank)
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("rank0.pt")}
    assert found == {f"{folder}checkpoint-4/pliant/rank0.pt" for folder in ("run-0/", "run-1/", "")}


def play(monkeypatch, ours, *modules):
    """Let stand-ins be imported in the place of a framework, by a module of ours that is loaded anew."""
    for module in modules:
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(sys.modules, ours, None)  # so that what was there comes back in the end
    del sys.modules[ours]


@pytest.fixture
def lightning(monkeypatch):
    """Stand-in for the strategy that ours is derived from, which saves nothing itself."""

    class DDPStrategy:
        precision_plugin = SimpleNamespace()

        def setup(self, trainer): ...

        def save_checkpoint(self, checkpoint, filepath, storage_options): ...

        def remove_checkpoint(self, filepath): ...

    names = "lightning", "lightning.pytorch", "lightning.pytorch.strategies"
    modules = [types.ModuleType(name) for name in names]
    modules[-1].DDPStrategy = DDPStrategy
    play(monkeypatch, "pliant.integrations.lightning", *modules)


def begin_lightning(context, checkpoint=None):
    from pliant.integrations.lightning import PliantStrategy

    strategy = PliantStrategy("topk", timeout_s=20)
    strategy.setup(SimpleNamespace(ckpt_path=checkpoint, loggers=[]))
    strategy.model, strategy.global_rank = new_ddp(context), context.rank
    strategy.optimizers = [torch.optim.SGD(strategy.model.parameters(), lr=0.1)]
    strategy.on_train_start()
    return strategy


def test_lightnings_checkpoints_may_lie_in_a_bucket(lightning):
    """Any path that fsspec knows, as Lightning takes it; what is beside a checkpoint goes with it."""
    path, files = "memory://runs/a.ckpt", MemoryFileSystem()

    def rank(context):
        strategy = begin_lightning(context)
        train(strategy.model, strategy.optimizers[0], context.rank, range(2))
        strategy.save_checkpoint({"optimizer_states": []}, path)
        strategy.on_train_end()
        strategy = begin_lightning(context, path)
        steps, found = strategy.run.steps, sorted(files.find("/runs"))
        strategy.on_train_end()
        strategy.remove_checkpoint(path)
        return steps, found

    assert pliant.run_world(2, rank) == [(2, [f"/runs/a.ckpt.pliant/rank{k}.pt" for k in range(2)])] * 2
    assert files.find("/runs") == []


def test_each_rank_removes_its_part_of_lightnings_checkpoint_from_its_own_hosts_disk(lightning, tmp_path):
    """The first rank also removes what more ranks of an earlier run have left."""

    def rank(context):
        strategy = begin_lightning(context)
        path = f"{tmp_path}/host{context.rank // 2}/a.ckpt"
        strategy.save_checkpoint({"optimizer_states": []}, path)
        if context.rank == 0:
            Path(f"{path}.pliant/rank9.pt").touch()
        strategy.remove_checkpoint(path)
        strategy.on_train_end()

    pliant.run_world(3, rank)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["host0", "host1"]


@pytest.fixture
def ray_train(monkeypatch):
    """Stand-in for Ray Train, of one worker, which keeps what is reported."""
    ray, train, collective = map(types.ModuleType, ("ray", "ray.train", "ray.train.collective"))
    ray.train, train.kept = train, []
    train.report = lambda metrics, **more: train.kept.append((metrics, more))
    train.get_checkpoint = lambda: None
    train.Checkpoint = SimpleNamespace(from_directory=lambda folder: SimpleNamespace(path=folder))
    collective.broadcast_from_rank_zero = lambda value: value
    play(monkeypatch, "pliant.integrations.ray", ray, train, collective)
    return train


def test_a_worker_of_ray_goes_on_from_what_it_has_reported(ray_train, tmp_path):
    """What steps cost is in the metrics, and its part of the run in the checkpoint, if it gives one."""
    from pliant.integrations.ray import relax

    def rank(context):
        ended = []
        for loads in (False, True):
            model = new_ddp(context, seed=loads)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            if loads:
                ray_train.get_checkpoint = lambda: SimpleNamespace(as_directory=lambda: nullcontext(tmp_path))
                for part, saved in zip((model, optimizer), torch.load(tmp_path / "training.pt"), strict=True):
                    part.load_state_dict(saved)
            with relax(model, optimizer, "topk", timeout_s=20) as run:
                if not loads:
                    train(model, optimizer, context.rank, range(2))
                    ray_train.report({"loss": 1.0, "pliant/step_s": "mine"}, checkpoint=None)
                    torch.save((model.state_dict(), optimizer.state_dict()), tmp_path / "training.pt")
                    ray_train.report({}, checkpoint=SimpleNamespace(path=tmp_path))
                assert run.steps == 2
                train(model, optimizer, context.rank, range(2, 4))
                ended.append(weights(model).clone())
            ray_train.report({"loss": 0.5})
        return ended

    ((before, after),) = pliant.run_world(1, rank)
    assert torch.equal(before, after)
    assert (tmp_path / "pliant" / "rank0.pt").is_file()
    first, saved, closed, *_ = ray_train.kept
    assert first[0]["loss"] == 1.0
    assert first[0]["pliant/step_s"] == "mine"  # the worker's own
    assert first[0].keys() >= {"pliant/exposed_s", "pliant/sent_bytes"}
    assert (first[1]["checkpoint"], closed[1]["checkpoint"]) == (None, None)
    assert saved[1]["checkpoint"].path == tmp_path


def test_a_worker_that_was_given_another_checkpoint_has_no_open_run(ray_train, tmp_path):
    from pliant.integrations.ray import relax

    def rank(context):
        model = new_ddp(context)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        ray_train.get_checkpoint = lambda: SimpleNamespace(as_directory=lambda: nullcontext(tmp_path))
        with pytest.raises(ValueError, match=r"pliant/rank0\.pt is not there"):
            relax(model, optimizer, "topk", timeout_s=20)
        ray_train.get_checkpoint = lambda: None
        relax(model, optimizer, "topk", timeout_s=20).close()

    pliant.run_world(1, rank)


def test_a_report_to_ray_that_does_not_wait_for_its_upload_is_refused(ray_train, tmp_path):
    """The folder of a rank's part would be gone before Ray has read it."""
    from pliant.integrations.ray import relax

    def rank(context):
        model = new_ddp(context)
        checkpoint = SimpleNamespace(path=tmp_path)
        with relax(model, torch.optim.SGD(model.parameters(), lr=0.1), "topk", timeout_s=20):
            for name in ("ASYNC", "NO_UPLOAD"):
                with pytest.raises(ValueError, match="leave checkpoint_upload_mode out"):
                    ray_train.report({}, checkpoint=checkpoint, checkpoint_upload_mode=SimpleNamespace(name=name))
            ray_train.report({}, checkpoint=checkpoint, checkpoint_upload_mode=SimpleNamespace(name="SYNC"))

    pliant.run_world(1, rank)
    assert len(ray_train.kept) == 1
    assert (tmp_path / "pliant" / "rank0.pt").is_file()
