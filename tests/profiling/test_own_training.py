"""What a user's function returns, how its steps are taken, and what is said where it has another shape."""

import sys
from collections import UserDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pliant
from pliant.cli.plan import plan as plan_command
from pliant.profiling import load_own_training, profile_own_training, read_own_training
from pliant.spec import SyncPlan, load


def parts():
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    return model, optimizer, [(torch.ones(5, 3), torch.ones(5, 2))], nn.MSELoss()


class Named(NamedTuple):
    model: Any
    optimizer: Any
    batches: Any
    loss_fn: Any


@dataclass
class Record:
    model: Any
    optimizer: Any
    batches: Any
    loss_fn: Any = None
    metric: Any = None


@dataclass
class Misnamed:
    model: Any
    optimizer: Any
    batches: Any
    criterion: Any


@pytest.mark.parametrize("kind", [tuple, list, lambda made: Named(*made), lambda made: Record(*made)])
def test_a_tuple_or_a_record_is_read(kind):
    model, optimizer, batches, loss_fn = parts()
    own = read_own_training("my:make", kind((model, optimizer, batches, loss_fn)))
    assert (own.model, own.optimizer, own.batches, own.loss_fn, own.metric) == (*parts_of(own), None)
    assert (own.model, own.loss_fn) == (model, loss_fn)
    assert torch.equal(own.loss(model, 0), loss_fn(model(batches[0][0]), batches[0][1]))


def parts_of(own):
    return own.model, own.optimizer, own.batches, own.loss_fn


def replaced(place, value):
    made = list(parts())
    made[place] = value
    return tuple(made)


WRONG = {
    "nothing": (lambda: None, "returned None; end the function with `return model, optimizer, batches, loss_fn`"),
    "a model alone": (lambda: parts()[0], "returned a Linear; end the function"),
    "two": (lambda: parts()[:2], "returned a tuple of Linear, AdamW; end the function"),
    "six": (lambda: (*parts(), None, None), "returned a tuple of Linear, AdamW, list, MSELoss, NoneType, NoneType"),
    "other names": (lambda: Misnamed(*parts()), "returned a Misnamed; end the function"),
    "swapped": (lambda: (parts()[1], parts()[0], *parts()[2:]), "the model is a AdamW, not a torch.nn.Module"),
    "no optimizer": (lambda: replaced(1, nn.MSELoss()), "the optimizer is a MSELoss, not a torch.optim.Optimizer"),
    "no batches": (lambda: replaced(2, 5), "the batches are a int, not an iterable or a function of the step"),
    "no loss_fn": (lambda: replaced(3, 0.5), "loss_fn is a float, not a function"),
    "no metric": (lambda: (*parts(), 0.5), "metric is a float, not a function"),
    "another's parameters": (lambda: replaced(0, nn.Linear(3, 2)), "holds no parameter of its model"),
}


@pytest.mark.parametrize("name", WRONG)
def test_another_shape_is_refused_with_the_right_one(name):
    make, sentence = WRONG[name]
    with pytest.raises(ValueError, match=r"my:make") as refused:
        read_own_training("my:make", make())
    assert sentence in str(refused.value)
    assert "model.parameters()" in str(refused.value) or "return model, optimizer, batches" in str(refused.value)


def test_a_model_in_ddp_is_refused():
    def body(place):
        made = parts()
        wrapped = DistributedDataParallel(made[0], process_group=place.process_group)
        with pytest.raises(ValueError, match="return the module inside"):
            read_own_training("my:make", (wrapped, *made[1:]))

    pliant.run_world(2, body)


class Together(nn.Module):
    """Returns its loss among other things."""

    def __init__(self, give):
        super().__init__()
        self.inner, self.give = nn.Linear(3, 1), give

    def forward(self, x, scale=1.0):
        return self.give(scale * self.inner(x).square().mean())


@dataclass
class Output:
    loss: Any


@pytest.mark.parametrize(
    ("batch", "give"),
    [
        (torch.ones(4, 3), lambda loss: loss),
        ((torch.ones(4, 3), 1.0), lambda loss: (loss, "logits")),
        ({"x": torch.ones(4, 3), "scale": 1.0}, lambda loss: {"loss": loss}),
        (UserDict(x=torch.ones(4, 3)), lambda loss: Output(loss)),
    ],
)
def test_a_model_may_return_its_loss(batch, give):
    model = Together(give)
    made = (model, torch.optim.SGD(model.parameters(), lr=0.1), [batch])
    assert torch.equal(read_own_training("my:make", made).loss(model, 0), model.inner(torch.ones(4, 3)).square().mean())


@pytest.mark.parametrize(
    ("batches", "loss_fn", "sentence"),
    [
        ([torch.ones(4, 3)], nn.MSELoss(), r"a batch is a tensor of shape \(4, 3\), not a pair"),
        ([(torch.ones(4, 3), torch.ones(4, 2))], nn.MSELoss(reduction="none"), r"is a tensor of shape \(4, 2\), but"),
        ([(torch.ones(4, 3), None)], lambda output, _: output.sum().item(), "is a float, but"),
        ([(torch.ones(4, 3), None)], lambda output, _: output.sum().detach(), "with a gradient"),
        ([torch.ones(4, 3)], None, "the model, which has no loss_fn beside it, must return a scalar"),
        (iter([(torch.ones(4, 3), torch.ones(4, 2))]), nn.MSELoss(), "ended at step 1, and cannot be iterated again"),
        ([], nn.MSELoss(), "ended at step 0"),
    ],
)
def test_a_step_that_yields_no_loss_is_refused(batches, loss_fn, sentence):
    model, optimizer, _, _ = parts()
    own = read_own_training("my:make", (model, optimizer, batches, loss_fn))
    with pytest.raises(ValueError, match=sentence):
        [own.loss(model, step) for step in range(2)]


def test_batches_begin_again_or_follow_the_step():
    model, optimizer, _, _ = parts()
    listed = read_own_training("my:make", (model, optimizer, [torch.zeros(1), torch.ones(1)]))
    assert [float(listed.batch(step)) for step in range(5)] == [0, 1, 0, 1, 0]
    called = read_own_training("my:make", (model, optimizer, lambda step: torch.full((1,), float(step))))
    assert [float(called.batch(step)) for step in range(3)] == [0, 1, 2]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The current folder, with modules that are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


OWN = """
import torch
from torch import nn

def make():
    torch.distributed.get_rank()
    model = nn.Sequential(nn.Linear(300, 200), nn.ReLU(), nn.Linear(200, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    return model, optimizer, lambda step: (torch.randn(7, 300), torch.randint(0, 10, (7,))), nn.CrossEntropyLoss()

def fails():
    raise KeyError("weights")

number = 5
"""


def test_a_module_of_the_current_folder_is_profiled_and_planned_for(here, capsys):
    (here / "planned_own.py").write_text(OWN)
    work, optimizer = profile_own_training("planned_own:make", errors=True)
    assert optimizer == "AdamW"
    assert work.name == "planned_own:make"
    assert work.batch_size == 7
    assert work.numel == 300 * 200 + 200 + 200 * 10 + 10
    assert work.gradient_error("qsgd(bits=4)") > 0
    assert not torch.distributed.is_initialized()
    plan_command(model="planned_own:make", hosts=4, rate="10mbit", quality=1.3, candidates=20, out=here / "plan.json")
    assert "measured with SGD only, and this training uses AdamW" in " ".join(capsys.readouterr().out.split())
    assert load(SyncPlan, here / "plan.json").rules


@pytest.mark.parametrize(
    ("where", "kind", "sentence"),
    [
        ("make", ValueError, "it takes a module and a function in it: --model my:make for make"),
        ("my_own.py:make", ValueError, "it takes a module and a function in it"),
        ("not_there:make", ValueError, "it was looked for as {here}/not_there.py and among installed packages"),
        ("my_own:other", ValueError, "my_own.py has no function other()"),
        ("my_own:number", ValueError, "my_own.py has no function number()"),
        ("my_own:fails", RuntimeError, "my_own:fails failed: KeyError: 'weights' ({here}/my_own.py, line 12)"),
        ("lacking:make", RuntimeError, "lacking cannot be imported: ModuleNotFoundError: No module named 'tensorfow'"),
        ("broken:make", RuntimeError, "broken cannot be imported: SyntaxError"),
    ],
)
def test_what_cannot_be_called_is_named(here, where, kind, sentence):
    (here / "my_own.py").write_text(OWN)
    (here / "lacking.py").write_text("import tensorfow")
    (here / "broken.py").write_text("def make(:")
    with pytest.raises(kind) as refused:
        load_own_training(where)
    assert sentence.format(here=here) in str(refused.value)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, "say what is trained, once"),
        ({"workload": "vgg16", "model": "my:make"}, "say what is trained, once"),
        ({"model": "my:make", "compute": "5ms"}, "--compute is for a named workload"),
    ],
)
def test_a_plan_is_for_one_training(given, sentence):
    with pytest.raises(ValueError, match=sentence):
        plan_command(**given, hosts=4)
