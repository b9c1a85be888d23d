"""What `pliant run` puts into a process: a start-up file, a watch over imports, and the ends of steps."""

import importlib.util
import os
import subprocess
import sys
import types
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

import pliant
from models import new_ddp
from pliant.attachment import startup
from pliant.attachment.imports import after_import
from pliant.attachment.launch import environment_of, launch_folder
from pliant.attachment.steps import StepEnds
from pliant.attachment.verdict import RunOptions
from pliant.attachment.wrapped import WrappedModels, wrapped_models


@pytest.fixture
def new_module(tmp_path, monkeypatch):
    (tmp_path / "watched_module.py").write_text("value = 3\nname = __spec__.loader.name\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "watched_module"
    sys.modules.pop("watched_module", None)


def test_a_call_follows_an_import_once_and_leaves_no_trace(new_module):
    called, before = [], list(sys.meta_path)
    after_import(new_module, lambda: called.append(sys.modules[new_module].value))
    import watched_module

    assert called == [3]
    assert watched_module.name == new_module  # it saw its own loader
    assert type(watched_module.__loader__).__name__ == "SourceFileLoader"
    assert sys.meta_path == before


def test_who_only_asks_whether_there_is_a_module_does_not_end_the_watch(new_module):
    """As transformers and datasets do for torch, whose users often import them first."""
    called, before = [], list(sys.meta_path)
    after_import(new_module, lambda: called.append(sys.modules[new_module].value))
    for _ in range(2):
        assert importlib.util.find_spec(new_module) is not None
    assert not called
    importlib.import_module(new_module)
    assert called == [3]
    assert sys.meta_path == before


def test_an_import_that_fails_may_be_tried_again(new_module, tmp_path):
    called, before = [], list(sys.meta_path)
    source = tmp_path / "watched_module.py"
    whole = source.read_text()
    source.write_text("raise OSError('a library is missing')\n")
    after_import(new_module, lambda: called.append(sys.modules[new_module].value))
    with pytest.raises(OSError, match="a library is missing"):
        importlib.import_module(new_module)
    source.write_text(whole)
    importlib.invalidate_caches()
    importlib.import_module(new_module)
    assert called == [3]
    assert sys.meta_path == before


def test_a_module_that_is_there_already_is_called_for_at_once():
    called = []
    after_import("torch", lambda: called.append(1))
    assert called == [1]


def said_under_pliant(code, tmp_path):
    """Run code in a Python that attaches Pliant, whose environment has a `sitecustomize` of its own."""
    with launch_folder(RunOptions()) as folder:
        own = environment_of(folder, {"PYTHONPATH": f"{tmp_path}{os.pathsep}{Path(pliant.__file__).parents[1]}"})
        assert own["PYTHONPATH"].startswith(str(folder))
        said = subprocess.run([sys.executable, "-c", code], env=own, capture_output=True, text=True, check=True)
    assert not Path(folder).exists()
    return said.stdout.splitlines(), said.stderr


def test_the_environments_own_sitecustomize_runs_and_torch_stays_unloaded(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("print('mine')\nvalue = 3\n")
    code = "import sys, sitecustomize; print('torch' in sys.modules, sitecustomize.value)"
    assert said_under_pliant(code, tmp_path)[0] == ["mine", "False 3"]


WATCHES = "import sys; print([type(finder).__name__ for finder in sys.meta_path].count('_AfterImport'))"


@pytest.mark.parametrize("raised", ["ValueError('mine')", "ImportError('mine')"])
def test_a_sitecustomize_that_raises_is_reported_as_always_and_pliant_is_attached(raised, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(f"raise {raised}\n")
    out, err = said_under_pliant(WATCHES, tmp_path)
    assert out == ["1"]
    alone = subprocess.run(
        [sys.executable, "-c", "print(1)"],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert err == alone.stderr
    assert "mine" in err


def test_a_process_that_outlives_the_command_imports_torch_as_always(tmp_path, monkeypatch):
    """Such as one that the script leaves behind, when the folder of the run is gone."""
    calls = []
    monkeypatch.setattr("pliant.attachment.imports.after_import", lambda _, call: calls.append(call))
    monkeypatch.setattr("pliant.attachment.attachment.Attachment", pytest.fail)
    startup._wait_for_torch(tmp_path / "gone")
    (attach,) = calls
    attach()


class Twice(torch.optim.SGD):
    """Calls its base's step(), as subclasses do: torch's hooks hear two."""

    def step(self, closure=None):
        return super().step(closure)


def optimizer_of(kind=torch.optim.SGD):
    parameter = torch.nn.Parameter(torch.zeros(2))
    parameter.grad = torch.ones(2)
    return kind([parameter], lr=0.1)


@pytest.mark.parametrize("kinds", [(torch.optim.SGD,), (Twice,), (torch.optim.SGD, torch.optim.Adam), (Twice, Twice)])
def test_a_step_ends_with_the_last_optimizer_of_a_round(kinds):
    heard, optimizers = [], [optimizer_of(kind) for kind in kinds]
    ends = StepEnds(lambda members: heard.append((len(done), [*members])))
    done = []
    try:
        for _ in range(4):
            for each in optimizers:
                done.append(each)
                each.step()
    finally:
        ends.close()
    num = len(optimizers)
    assert heard == [(num * k, optimizers) for k in (2, 3, 4)]


@pytest.mark.parametrize("kind", [torch.optim.SGD, Twice])
def test_a_step_that_raises_does_not_silence_those_after_it(kind):
    """As where a closure runs out of memory, and the script goes on with a smaller batch."""

    def too_large():
        raise MemoryError("no")

    heard, optimizer = [], optimizer_of(kind)
    ends = StepEnds(lambda members: heard.append(members))
    try:
        ends.keep([optimizer])
        for closure in (None, too_large, None, None):
            with nullcontext() if closure is None else pytest.raises(MemoryError):
                optimizer.step(closure)
    finally:
        ends.close()
    assert heard == [[optimizer]] * 3


def test_others_are_not_heard_once_a_round_is_known():
    ours, other, heard = optimizer_of(), optimizer_of(), []
    ends = StepEnds(lambda members: heard.append(members))
    try:
        ends.keep([ours])
        for each in (other, ours, other, ours):
            each.step()
    finally:
        ends.close()
    ours.step()
    assert heard == [[ours], [ours]]


def test_a_wrapped_model_is_found_by_the_optimizer_that_steps_it():
    def body(place):
        ddp, other = new_ddp(place), new_ddp(place)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        found = wrapped_models([optimizer])
        plain = torch.nn.Linear(2, 2)
        nothing = wrapped_models([torch.optim.SGD(plain.parameters(), lr=0.1)])
        both = wrapped_models([optimizer, torch.optim.SGD(other.parameters(), lr=0.1)])
        return [found == [ddp], nothing == [], {id(m) for m in both} == {id(ddp), id(other)}]

    assert pliant.run_world(2, body) == [[True] * 3] * 2


def test_a_model_that_was_noted_is_found_without_a_look_at_all_objects(monkeypatch):
    def body(place):
        noted, plain = WrappedModels(), torch.nn.Linear(2, 2)
        ddp = new_ddp(place)
        optimizer, other = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (ddp, plain))
        looked = []
        monkeypatch.setattr("pliant.attachment.wrapped.wrapped_models", lambda optimizers: looked.append(optimizers))
        return [noted.of([optimizer]) == [ddp], not looked, noted.of([optimizer, other]) is None, len(looked) == 1]

    assert pliant.run_world(1, body) == [[True] * 4]


def test_looking_for_models_does_not_touch_objects_that_answer_for_others():
    class Proxy:
        @property
        def __class__(self):
            raise RuntimeError("asked")

    held = types.SimpleNamespace(proxy=Proxy())
    assert wrapped_models([optimizer_of()]) == []
    assert held is not None
