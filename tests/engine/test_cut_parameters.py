"""Parameters that are cut into parts: whatever the optimizer, size and plan, all is as with whole ones."""

import pytest
import torch
from test_owner_step import OPTIMIZERS
from torch import nn

import pliant
from models import new_ddp, train, weights
from pliant.engine.owned_ranges import is_elementwise
from pliant.spec.owners import ELEMENTWISE_OPTIMIZERS

EVERY = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, lr_decay=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
}


def odd() -> nn.Module:
    return nn.Sequential(nn.Linear(11, 13), nn.Tanh(), nn.Linear(13, 7)).double()


def gradient(module, step, size, rank=None):
    """Fill the gradients of a rank's batch, or with their mean over ranks."""
    module.zero_grad()
    for k in range(size) if rank is None else (rank,):
        generator = torch.Generator().manual_seed(10 * step + k)
        loss = module(torch.randn(5, 11, generator=generator, dtype=torch.float64)).square().sum()
        (loss / size if rank is None else loss).backward()


@pytest.mark.parametrize(
    ("size", "names"),
    [
        (3, tuple(EVERY)),
        (5, ("adamw",)),
        (7, ("sgd",)),
        *(pytest.param(size, tuple(EVERY), marks=pytest.mark.extended) for size in (5, 7)),
    ],
)
def test_slices_are_stepped_as_an_all_reduce_would(size, names):
    """On sizes that no number of ranks divides, in float64, so that only the order of additions differs."""

    def body(place):
        ends = {}
        for name in names:
            ddp = new_ddp(place, model=odd)
            made = EVERY[name](ddp.parameters())
            cut = pliant.sharded_optimizer(cut="flat")
            with pliant.relax(ddp, made, cut, timeout_s=20, agreement_every=0):
                for step in range(3):
                    gradient(ddp, step, size, place.rank)
                    made.step()
            ends[name] = weights(ddp)
        return ends

    results = pliant.run_world(size, body, timeout_s=60)
    for name in names:
        torch.manual_seed(0)
        exact = odd()
        made = EVERY[name](exact.parameters())
        for step in range(3):
            gradient(exact, step, size)
            made.step()
        for ends in results:
            torch.testing.assert_close(ends[name], weights(exact), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ELEMENTWISE_OPTIMIZERS)
def test_an_optimizer_of_the_table_steps_each_element_by_itself(name):
    kind = getattr(torch.optim, name)
    whole = torch.linspace(-2, 2, 35, dtype=torch.float64).view(5, 7).requires_grad_()
    parts = [part.detach().clone().requires_grad_() for part in whole.detach().view(-1).split([4, 20, 11])]
    optimizers = kind([whole]), kind(parts)
    assert is_elementwise(optimizers[0])
    for step in range(4):
        gradient = torch.sin(whole.detach() * (step + 1))
        whole.grad = gradient
        for part, its in zip(parts, gradient.view(-1).split([4, 20, 11]), strict=True):
            part.grad = its
        for optimizer in optimizers:
            optimizer.step()
        assert torch.equal(whole.detach().view(-1), torch.cat([part.detach() for part in parts]))


class Whole(torch.optim.SGD):
    """An optimizer that nobody knows: it divides a gradient by the norm of its parameter's."""

    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            if p.grad is not None:
                p.grad.div_(p.grad.norm() + 1e-8)
        return super().step(closure)


class Elementwise(torch.optim.SGD):
    """An optimizer that says of itself that it may be cut."""

    is_elementwise = True


def test_what_needs_whole_parameters_is_not_cut():
    def body(place):
        ends, told = [], []
        for kind, what in ((Whole, "sharded_optimizer"), (Whole, "allreduce"), (Elementwise, "sharded_optimizer")):
            ddp = new_ddp(place)
            made = kind(ddp.parameters(), lr=0.05)
            with pliant.relax(ddp, made, what, timeout_s=20) as run:
                train(ddp, made, place.rank, range(3))
                told.append(run.explain())
            ends.append(weights(ddp))
        for what in (pliant.sharded_optimizer(cut="flat"), pliant.bounded_staleness(cut="rows")):
            with pytest.raises(ValueError, match="Whole is not known to step each element by itself; set cut='whole'"):
                pliant.relax(ddp, Whole(ddp.parameters(), lr=0.05), what)
        return ends, told

    for (owned, exact, _), (whole, _, cut) in pliant.run_world(2, body, timeout_s=60):
        torch.testing.assert_close(owned, exact, rtol=1e-4, atol=2e-5)
        assert "0 of 10 parameters of Whole are cut, since it may need whole parameters" in whole
        assert "4 of 10 parameters of Elementwise are cut, since it works element by element; the busiest" in cut


class Strided(nn.Module):
    """Parameters that lie otherwise in memory than in rows: turned, in channels last, complex."""

    def __init__(self):
        super().__init__()
        self.first, self.conv = nn.Conv2d(1, 6, 3, padding=1), nn.Conv2d(6, 4, 3, padding=1)
        self.conv.to(memory_format=torch.channels_last)
        self.turned = nn.Parameter(torch.randn(5, 64).t())
        self.turn = nn.Parameter(torch.randn(64, dtype=torch.complex64))

    def forward(self, x):
        h = (self.conv(self.first(x)).flatten(1) * self.turn).abs()
        return h @ self.turned


@pytest.mark.parametrize("cut", ["flat", "rows"])
def test_parameters_that_lie_otherwise_in_memory(cut):
    def body(place):
        found = []
        for what in (pliant.sharded_optimizer(cut=cut), pliant.bounded_staleness(0, cut=cut), "allreduce"):
            ddp = new_ddp(place, model=Strided)
            made = torch.optim.Adam(ddp.parameters(), lr=0.01, eps=1e-3)
            with pliant.relax(ddp, made, what, timeout_s=20, agreement_every=1):
                train(ddp, made, place.rank, range(4))
            found.append([p.detach().clone() for p in ddp.parameters()])
        return found

    for owned, served, exact in pliant.run_world(3, body, timeout_s=60):
        for one, other, plain in zip(owned, served, exact, strict=True):
            torch.testing.assert_close(one, plain, rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(other, plain, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [("sharded_optimizer", (3, 2)), ("sharded_optimizer", (1, 3)), ("bounded_staleness(0, max_bytes=700)", (2, 3))],
)
def test_another_number_of_ranks_goes_on(name, sizes, tmp_path):
    """What owners had of the optimizer is put together, and cut anew: batches of all ranks are alike here."""
    path = tmp_path / "run"

    def made(place, seed):
        ddp = new_ddp(place, seed)
        return ddp, torch.optim.Adam(ddp.parameters(), lr=0.01, eps=1e-4)

    def begin(place):
        ddp, optimizer = made(place, 0)
        with pliant.relax(ddp, optimizer, name, timeout_s=20) as run:
            train(ddp, optimizer, 0, range(3))
            run.save(path)
            train(ddp, optimizer, 0, range(3, 6))
        return weights(ddp)

    def go_on(place):
        ddp, optimizer = made(place, 5)
        with pliant.load_run(path, ddp, optimizer, resize=True, timeout_s=20) as run:
            train(ddp, optimizer, 0, range(3, 6))
            assert run.steps == 6
        return weights(ddp)

    straight = pliant.run_world(sizes[0], begin, timeout_s=60)[0]
    for end in pliant.run_world(sizes[1], go_on, timeout_s=60):
        torch.testing.assert_close(end, straight, rtol=1e-4, atol=1e-5)


def test_a_state_of_other_parts_is_refused():
    def body(place):
        states = []
        for cut in ("flat", "whole"):
            ddp = new_ddp(place)
            made = OPTIMIZERS["adamw"](ddp.parameters())
            with pliant.relax(ddp, made, pliant.sharded_optimizer(cut=cut), timeout_s=20) as run:
                train(ddp, made, place.rank, range(2))
                states.append(run.state_dict())
                if len(states) == 2:
                    own = states[1][f"rank{place.rank}"]
                    own["owned"] = states[0][f"rank{place.rank}"]["owned"]
                    with pytest.raises(ValueError, match="cut into other parts"):
                        run.load_state_dict(states[1])

    pliant.run_world(2, body, timeout_s=60)


def test_owners_stand_beside_any_other_exchange():
    """Owners for some parameters, and for others exact sums, codes, low rank, or weights between steps."""

    def body(place):
        ends = {}
        for beside in ("allreduce", "onebit", "powersgd", "local_sgd(2)", "gossip"):
            plan = pliant.partition({"hidden.*": pliant.sharded_optimizer(), "*": pliant.parse(beside)})
            ddp = new_ddp(place)
            made = OPTIMIZERS["adamw"](ddp.parameters())
            with pliant.relax(ddp, made, plan, timeout_s=20, agreement_every=1) as run:
                train(ddp, made, place.rank, range(4))
                owned = [p for n, p in ddp.module.named_parameters() if n.startswith("hidden")]
                assert all(made.state[p]["exp_avg"].shape != p.shape for p in owned)
                run.switch("allreduce")
                train(ddp, made, place.rank, range(4, 6))
            ends[beside] = weights(ddp)
        ddp = new_ddp(place)
        made = OPTIMIZERS["adamw"](ddp.parameters())
        train(ddp, made, place.rank, range(6))
        return ends, weights(ddp)

    results = pliant.run_world(3, body, timeout_s=60)
    for ends, plain in results:
        torch.testing.assert_close(ends["allreduce"], plain, rtol=1e-4, atol=2e-5)
        assert all(torch.equal(end, results[0][0][name]) for name, end in ends.items())
