"""Several optimizers, and parameters that none of them holds."""

import pytest
import torch
from held import EVERYTHING, OVER_ALGORITHMS, backward, batch, ddp, in_ddp, one_at_a_time, simple, small
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pliant
from tables import needs_its_optimizer


def ends(place, what, loop, optimizers_of, relaxed_ones, make=ddp, **options):
    """Train one model plainly (what=None) or relaxed; return its weights, and how far each half has moved."""
    model = make(place)
    optimizers = optimizers_of(model.module)
    before = [torch.cat([p.detach().flatten() for p in half.parameters()]) for half in model.module.children()]
    run = None
    if what is not None:
        run = pliant.relax(model, relaxed_ones(optimizers), what, timeout_s=20, agreement_every=1, **options)
    loop(model, optimizers, place.rank, 6)
    if run is not None:
        run.close()
    after = [torch.cat([p.detach().flatten() for p in half.parameters()]) for half in model.module.children()]
    moved = [float((a - b).norm()) for a, b in zip(after, before, strict=True)]
    return torch.cat(after), moved


def sgd_and_adam(module):
    return [torch.optim.SGD(module.first.parameters(), lr=0.05), torch.optim.Adam(module.second.parameters(), lr=0.01)]


@OVER_ALGORITHMS
@pytest.mark.parametrize("given", [pytest.param("one of two", marks=pytest.mark.extended), "both"])
def test_two_optimizers_train_all_parameters(given, names):
    """Muon and AdamW, say: replicas end equal under every plan, and everything trains, also what only DDP exchanges."""
    which = (lambda both: both[0]) if given == "one of two" else (lambda both: both)

    def body(place):
        plain_end, _ = ends(place, None, simple, sgd_and_adam, which)
        made = {}
        for name in names:
            if not needs_its_optimizer(name):
                hosts = [[0], [1]] if name == "between-hosts" else None
                made[name] = ends(place, EVERYTHING[name], simple, sgd_and_adam, which, hosts=hosts)
        return plain_end, made

    (plain_end, made), (_, others) = pliant.run_world(2, body, timeout_s=60)
    assert torch.equal(plain_end, made["allreduce"][0])
    for name, (end, moved) in made.items():
        assert torch.equal(end, others[name][0]), name
        assert (moved[1] if given == "one of two" else max(moved)) > 1e-3, name
    torch.testing.assert_close(plain_end, made["sharded_optimizer"][0], rtol=0, atol=1e-6)
    torch.testing.assert_close(plain_end, made["bounded_staleness"][0], rtol=0, atol=1e-6)


def test_owners_share_what_each_optimizer_has_stepped():
    """A step of one optimizer alone: the others have its new weights when it returns."""

    def body(place):
        model = ddp(place)
        optimizers = sgd_and_adam(model.module)
        with pliant.relax(model, optimizers, "sharded_optimizer", timeout_s=20) as run:
            backward(model, place.rank, 0)
            optimizers[1].step()
            assert run.steps == 0
            alone = torch.cat([p.detach().flatten() for p in model.parameters()]).clone()
            optimizers[0].step()
            assert run.steps == 1
            held = [sum(state["exp_avg"].numel() for state in optimizers[1].state.values())]
        return alone, torch.cat([p.detach().flatten() for p in model.parameters()]), held, len(optimizers[1].state)

    (alone, end, held, whole), (other, other_end, other_held, other_whole) = pliant.run_world(2, body, timeout_s=30)
    assert torch.equal(alone, other)
    assert torch.equal(end, other_end)
    assert abs(held[0] - other_held[0]) <= 2  # Adam's, divided; whole again after close()
    assert whole == other_whole == 2


class Both(nn.Module):
    """A generator and a critic in one module."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 1)

    def forward(self, x, part):
        if part == "critic":
            return self.second(x).mean() - self.second(self.first(x).detach()).mean()
        return -self.second(self.first(x)).mean()


def adversarial(model, optimizers, rank, steps, critic_steps=1):
    for step in range(steps):
        for k in range(critic_steps):
            optimizers[1].zero_grad()
            model(batch(rank, 10 * step + k)[0], "critic").backward()
            optimizers[1].step()
        optimizers[0].zero_grad()
        model(batch(rank, 10 * step)[0], "generator").backward()
        optimizers[0].step()


def one_gan(place):
    with one_at_a_time:
        torch.manual_seed(0)
        module = Both()
    return DistributedDataParallel(module, process_group=place.process_group, find_unused_parameters=True)


@pytest.mark.extended
@pytest.mark.parametrize("critic_steps", [1, 2])
def test_a_gan_in_one_model(critic_steps):
    """Optimizers that step in turns: exact plans train it as DDP does; plans that would mix the two losses say so."""

    def loop(model, optimizers, rank, steps):
        adversarial(model, optimizers, rank, steps, critic_steps)

    def body(place):
        both = lambda optimizers: optimizers  # noqa: E731
        out = [
            ends(place, what, loop, sgd_and_adam, both, make=one_gan)[0]
            for what in (None, "allreduce", "sharded_optimizer")
        ]
        for what in ("qsgd", "local_sgd", "gossip"):
            ends(place, what, loop, sgd_and_adam, both, make=one_gan)
        for name in ("onebit", "delayed", "every", "powersgd", "decoupled_momentum"):
            with pytest.raises(RuntimeError, match="give each network its own DistributedDataParallel"):
                ends(place, EVERYTHING.get(name, name), loop, sgd_and_adam, both, make=one_gan)
        return out

    for plain_end, exact, owned in pliant.run_world(2, body, timeout_s=60):
        assert torch.equal(plain_end, exact)
        torch.testing.assert_close(plain_end, owned, rtol=0, atol=1e-6)


def test_a_gan_in_two_models():
    """Each with its own optimizer and run; the critic is also called by the generator's loss."""

    def body(place):
        out = []
        for what in (None, "allreduce"):
            with one_at_a_time:
                torch.manual_seed(0)
                pair = nn.Linear(6, 6), nn.Linear(6, 1)
            generator, critic = (in_ddp(each, place) for each in pair)
            optimizers = [torch.optim.SGD(each.parameters(), lr=0.05) for each in (generator, critic)]
            runs = []
            if what is not None:
                for model, optimizer in zip((generator, critic), optimizers, strict=True):
                    runs.append(pliant.relax(model, optimizer, what, timeout_s=20))
            for step in range(4):
                x, _ = batch(place.rank, step)
                optimizers[1].zero_grad()
                (critic(x).mean() - critic(generator(x).detach()).mean()).backward()
                optimizers[1].step()
                optimizers[0].zero_grad()
                (-critic.module(generator(x)).mean()).backward()
                optimizers[0].step()
            for run in runs:
                assert run.steps == 4
                run.close()
            out.append(torch.cat([p.detach().flatten() for m in (generator, critic) for p in m.parameters()]))
        return out

    for plain_end, exact in pliant.run_world(2, body, timeout_s=60):
        assert torch.equal(plain_end, exact)


def test_an_optimizer_that_nobody_was_told_of_is_found_by_the_agreement():
    """On a plain module nobody exchanges its gradients: raised at the next check, and at the end in any case."""

    def body(place):
        for every in (1, 100):
            model = small()
            optimizers = sgd_and_adam(model)
            run = pliant.relax(
                model, optimizers[0], "diloco", group=place.process_group, timeout_s=20, agreement_every=every
            )

            def go_on(run=run, model=model, optimizers=optimizers):
                simple(model, optimizers, place.rank, 2)
                run.close()

            with pytest.raises(pliant.ReplicasDisagreeError, match=r"first 'second.*an optimizer stepped that relax"):
                go_on()
            run.__exit__(RuntimeError, RuntimeError("given up"), None)

    pliant.run_world(2, body, timeout_s=60)
