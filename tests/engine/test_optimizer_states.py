"""Means of optimizer states beside weights: when, which, of whom, and what is refused."""

import threading

import pytest
import torch
from torch import nn

import pliant
from pliant.spec import After, AllReduce, CodecSpec, LocalSteps, OptimizerState, ScatterGather

STEPS = 13
BF16 = AllReduce(codec=CodecSpec(name="bf16"))
_one_at_a_time = threading.Lock()


class Two(nn.Module):
    """Matrices for Muon, and biases that it does not take."""

    def __init__(self, width=6):
        super().__init__()
        self.first, self.second = nn.Linear(width, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


def adamw(model):
    return [torch.optim.AdamW(model.parameters(), lr=1e-2)]


def momentum(model):
    return [torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)]


def muon_and_adamw(model):
    matrices = [p for p in model.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if p.dim() != 2]
    return [torch.optim.Muon(matrices, lr=1e-2), torch.optim.AdamW(others, lr=1e-2)]


def made(optimizers_of=adamw, model=Two):
    with _one_at_a_time:  # threads share torch's generator
        torch.manual_seed(0)
        module = model()
    return module, optimizers_of(module)


def train(model, optimizers, rank, steps):
    for step in steps:
        generator = torch.Generator().manual_seed(1000 * rank + step)
        for optimizer in optimizers:
            optimizer.zero_grad()
        model(torch.randn(4, 6, generator=generator)).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()


def states(optimizers):
    """Return key -> all that the optimizers keep under it, in one vector."""
    found = {}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for p in group["params"]:
                for key, value in optimizer.state.get(p, {}).items():
                    if key != "step":
                        found.setdefault(key, []).append(value.detach().flatten())
    return {key: torch.cat(parts).clone() for key, parts in found.items()}


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()]).clone()


def path_of(size, what, optimizers_of=adamw, num_steps=STEPS, **options):
    """Train on thread ranks; return for each step and rank the states that it made, and what they were afterwards."""

    def body(place):
        model, optimizers = made(optimizers_of)
        before, after = [], []
        optimizers[-1].register_step_post_hook(lambda *_: before.append(states(optimizers)))
        with pliant.relax(model, optimizers, what, group=place.process_group, timeout_s=20, **options) as run:
            for step in range(num_steps):
                train(run.model, optimizers, place.rank, [step])
                after.append(states(optimizers))
            told = run.explain()
        return before, after, states(optimizers), told

    return pliant.run_world(size, body, timeout_s=60)


def equal(found, step, key):
    first = found[0][1][step - 1][key]
    return all(torch.equal(after[step - 1][key], first) for _, after, _, _ in found)


def steps_when_equal(found, key):
    return [step for step in range(1, len(found[0][1]) + 1) if equal(found, step, key)]


PERIODS = {
    "des_loc": (pliant.des_loc(2, second=2), adamw, {"exp_avg": [6, 12], "exp_avg_sq": [4, 8, 12]}),
    "local_momentum": (pliant.local_momentum(4), momentum, {"momentum_buffer": [4, 8, 12]}),
    "local_momentum of Muon": (
        pliant.local_momentum(4),
        muon_and_adamw,
        {"momentum_buffer": [4, 8, 12], "exp_avg": [], "exp_avg_sq": []},
    ),
    "more often than weights": (
        LocalSteps(period=6, states=(OptimizerState(name="momentum_buffer", period=3),)),
        momentum,
        {"momentum_buffer": [3, 6, 9, 12]},
    ),
    "in 16 bits": (
        LocalSteps(period=4, states=(OptimizerState(name="exp_avg_sq", period=4, averaging=BF16),)),
        adamw,
        {"exp_avg": [], "exp_avg_sq": [4, 8, 12]},
    ),
    "coded": (
        LocalSteps(
            period=4,
            states=(
                OptimizerState(
                    name="momentum_buffer", period=4, averaging=ScatterGather(codec=CodecSpec(name="minmax8"))
                ),
            ),
        ),
        momentum,
        {"momentum_buffer": [4, 8, 12]},
    ),
    "beside late weights": (
        LocalSteps(period=4, delay_steps=2, states=(OptimizerState(name="exp_avg", period=8),)),
        adamw,
        {"exp_avg": [8], "exp_avg_sq": []},
    ),
    "after a warm-up": (
        After(steps=5, first=AllReduce(), then=pliant.des_loc(3, first=2, second=1)),
        adamw,
        {"exp_avg": [1, 2, 3, 4, 5, 11], "exp_avg_sq": [1, 2, 3, 4, 5, 8, 11]},
    ),
    "Muon and AdamW": (
        pliant.des_loc(2, first=3, second=2, first_states=("momentum_buffer", "exp_avg")),
        muon_and_adamw,
        {"momentum_buffer": [6, 12], "exp_avg": [6, 12], "exp_avg_sq": [4, 8, 12]},
    ),
}


@pytest.mark.parametrize("row", PERIODS)
def test_states_become_their_mean_at_their_periods_and_only_there(row):
    """What is not due stays as the rank's own step has left it; what is never negative stays so."""
    what, optimizers_of, wanted = PERIODS[row]
    found = path_of(3, what, optimizers_of)
    loss = {"in 16 bits": 2**-7, "coded": 2**-7}.get(row, 2**-22)
    warmup = what.steps if isinstance(what, After) else 0
    assert {key: steps_when_equal(found, key) for key in wanted} == wanted
    for key, due in wanted.items():
        for step in range(1, STEPS + 1):
            own, after = (torch.stack([each[k][step - 1][key] for each in found]).double() for k in (0, 1))
            if step in due and step > warmup:
                torch.testing.assert_close(after[0], own.mean(0), rtol=0, atol=loss * float(own.abs().max()))
            else:
                assert torch.equal(after, own), (key, step)
            assert key != "exp_avg_sq" or float(after.min()) >= 0


def test_fragments_are_due_beside_their_weights():
    """Of two fragments, one is exchanged after steps 2, 6, 10, and the other after 4, 8, 12."""
    what = LocalSteps(period=4, fragments=2, states=(OptimizerState(name="momentum_buffer", period=8),))

    def body(place):
        model, optimizers = made(momentum)
        seen = []
        with pliant.relax(model, optimizers, what, group=place.process_group, timeout_s=20) as run:
            for step in range(STEPS):
                train(run.model, optimizers, place.rank, [step])
                seen.append([optimizers[0].state[p]["momentum_buffer"].clone() for p in model.parameters()])
        return seen

    one, other = pliant.run_world(2, body, timeout_s=60)
    alike = [[torch.equal(a, b) for a, b in zip(x, y, strict=True)] for x, y in zip(one, other, strict=True)]
    early, late = [k for k in range(4) if alike[5][k]], [k for k in range(4) if alike[7][k]]
    assert sorted(early + late) == [0, 1, 2, 3]
    assert [step + 1 for step in range(STEPS) if any(alike[step])] == [6, 8]


def test_the_period_of_a_state_stretches_with_that_of_weights():
    """At lr 0.05 weights are exchanged every (0.2 / 0.05)^2 = 16 steps instead of 4, and the state every 32."""
    what = LocalSteps(period=4, stretch=0.2, states=(OptimizerState(name="momentum_buffer", period=8),))
    found = path_of(2, what, momentum, num_steps=34)
    assert steps_when_equal(found, "momentum_buffer") == [32]


@pytest.mark.parametrize("optimizers_of", [adamw, momentum, muon_and_adamw])
def test_one_rank_is_the_plain_optimizer(optimizers_of):
    def body(place):
        plain, plain_optimizers = made(optimizers_of)
        train(plain, plain_optimizers, 0, range(8))
        model, optimizers = made(optimizers_of)
        names = [key for key in states(plain_optimizers) if key != "exp_avg_sq"]
        what = pliant.des_loc(1, first=1, first_states=names, second_states=())
        with pliant.relax(model, optimizers, what, group=place.process_group) as run:
            train(run.model, optimizers, 0, range(8))
        return torch.equal(weights(plain), weights(model)), states(plain_optimizers), states(optimizers)

    same, plain, ours = pliant.run_world(1, body, timeout_s=30)[0]
    assert same
    torch.testing.assert_close(ours, plain, rtol=0, atol=0)


class Far(nn.Module):
    """Weights that are far from 0 beside a step, so that a change is exactly what is between two of them."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(0.5 + torch.rand(6, 3))

    def forward(self, x):
        return x @ self.weight


@pytest.mark.parametrize("size", [2, 4])
def test_equal_batches_and_periods_of_one_are_the_plain_optimizer(size):
    def body(place):
        ends = []
        for what in (None, pliant.des_loc(1, first=1, second=1)):
            model, optimizers = made(lambda m: [torch.optim.AdamW(m.parameters(), lr=1e-3)], Far)
            run = pliant.relax(model, optimizers, what, group=place.process_group, timeout_s=20) if what else None
            train(model, optimizers, 0, range(10))
            found = states(optimizers)
            ends.append([weights(model), found["exp_avg"], found["exp_avg_sq"]])
            if run is not None:
                run.close()
        return all(map(torch.equal, *ends))

    assert pliant.run_world(size, body, timeout_s=60) == [True] * size


def test_a_state_without_gradients_counts_as_zero_and_is_not_made():
    """Of a parameter that only rank 0 uses: its optimizer has half of the momentum, and rank 1's has none."""

    def body(place):
        model, optimizers = made(momentum)
        with pliant.relax(
            model,
            optimizers,
            LocalSteps(period=2, states=(OptimizerState(name="momentum_buffer", period=1),)),
            group=place.process_group,
            timeout_s=20,
        ):
            out = model.first(torch.ones(1, 6)) if place.rank else model(torch.ones(1, 6))
            out.sum().backward()
            own = model.second.weight.grad
            optimizers[0].step()
            return own, optimizers[0].state.get(model.second.weight, {}).get("momentum_buffer")

    (own, mean), (_, other) = pliant.run_world(2, body, timeout_s=30)
    assert torch.equal(mean, own / 2)
    assert other is None


def test_between_hosts_states_are_averaged_over_all_ranks():
    found = path_of(3, pliant.between_hosts(pliant.des_loc(2, first=2, second=1)), hosts=[[0, 1], [2]])
    assert steps_when_equal(found, "exp_avg") == [4, 8, 12]
    for step in (4, 8):
        mean = torch.stack([before[step - 1]["exp_avg"] for before, _, _, _ in found]).double().mean(0)
        torch.testing.assert_close(found[2][1][step - 1]["exp_avg"].double(), mean, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(("first", "then"), [("des_loc", "local_sgd"), ("local_sgd", "des_loc"), ("des_loc", "bf16")])
def test_a_switch_from_and_to_plans_with_states(first, then):
    """Ranks are alike where the new plan begins or says so, and alike at the end."""
    plans = {"des_loc": pliant.des_loc(2, first=1, second=2), "local_sgd": pliant.local_sgd(2), "bf16": pliant.bf16()}

    def body(place):
        model, optimizers = made()
        ddp = nn.parallel.DistributedDataParallel(model, process_group=place.process_group)
        seen = []
        with pliant.relax(ddp, optimizers, plans[first], timeout_s=20) as run:
            train(run.model, optimizers, place.rank, range(3))
            run.switch(plans[then])
            for step in range(3, 9):
                train(run.model, optimizers, place.rank, [step])
                seen.append(states(optimizers)["exp_avg"])
        return seen, weights(model), states(optimizers)

    (one, end, last), (other, other_end, other_last) = pliant.run_world(2, body, timeout_s=60)
    alike = [step for step, (a, b) in enumerate(zip(one, other, strict=True), start=4) if torch.equal(a, b)]
    assert alike == {"des_loc": [5, 7, 9], "local_sgd": [], "bf16": [4, 5, 6, 7, 8, 9]}[then]
    assert torch.equal(end, other_end)
    torch.testing.assert_close(last, other_last, rtol=0, atol=0)


def test_muon_beside_adamw_goes_on_to_the_bit(tmp_path):
    what = pliant.des_loc(2, first=3, second=2, first_states=("momentum_buffer", "exp_avg"))

    def body(place):
        model, optimizers = made(muon_and_adamw)
        with pliant.relax(model, optimizers, what, group=place.process_group, timeout_s=20) as run:
            train(run.model, optimizers, place.rank, range(5))
            run.save(tmp_path / "run")
            train(run.model, optimizers, place.rank, range(5, 9))
            mine = weights(model), states(optimizers)
        other, optimizers = made(muon_and_adamw)
        with pliant.load_run(tmp_path / "run", other, optimizers, group=place.process_group, timeout_s=20) as run:
            assert run.steps == 5
            train(run.model, optimizers, place.rank, range(5, 9))
            again = weights(other), states(optimizers)
        torch.testing.assert_close(again, mine, rtol=0, atol=0)
        return True

    assert pliant.run_world(2, body, timeout_s=60) == [True] * 2


@pytest.mark.parametrize(("optimizers_of", "steps"), [(muon_and_adamw, 3), (momentum, 0)])
def test_steps_before_the_run_are_those_that_any_optimizer_has_counted(optimizers_of, steps):
    """Muon and SGD count none, AdamW beside them does."""

    def body(place):
        model, optimizers = made(optimizers_of)
        train(model, optimizers, 0, range(3))
        with pliant.relax(model, optimizers, "des_loc", group=place.process_group) as run:
            return run.steps

    assert pliant.run_world(1, body, timeout_s=30) == [steps]


@pytest.mark.parametrize(
    ("optimizers_of", "names"),
    [
        (adamw, {"exp_avg": 96, "exp_avg_sq": 192}),
        (momentum, {"momentum_buffer": 96}),
        (muon_and_adamw, {"exp_avg": 96, "momentum_buffer": 96, "exp_avg_sq": 192}),
        (
            lambda m: [torch.optim.AdamW(m.parameters(), amsgrad=True)],
            {"exp_avg": 96, "exp_avg_sq": 192, "max_exp_avg_sq": 192},
        ),
    ],
)
def test_by_name_it_averages_the_moments_that_the_optimizer_has(optimizers_of, names):
    def body(place):
        model, optimizers = made(optimizers_of)
        with pliant.relax(model, optimizers, "des_loc", group=place.process_group) as run:
            return {state.name: state.period for state in run.plan.rules[-1].exchange.states}, run.explain()

    found, told = pliant.run_world(1, body, timeout_s=30)[0]
    assert found == names
    numel = 6 * 8 + 8 + 8 * 3 + 3
    if optimizers_of is adamw:
        assert f"exp_avg every 96 steps ({4 * numel / 1e6:.3g} MB in float32)" in told


class CodedSgd(torch.optim.SGD):
    """Stands in for an optimizer in 8 bits."""

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.state[p]["momentum_buffer"] = torch.zeros(p.shape, dtype=torch.uint8)


REFUSED = {
    "a name that nobody has": (
        "des_loc(first_states=('momentum_buffer',))",
        adamw,
        "averages 'momentum_buffer' of the optimizer, but AdamW keeps exp_avg, exp_avg_sq of these parameters",
    ),
    "a name of another optimizer": (
        "des_loc(first_states=('momentum_buffer', 'exp'))",
        muon_and_adamw,
        "averages 'exp' of the optimizer, but AdamW and Muon keeps exp_avg, exp_avg_sq, momentum_buffer",
    ),
    "a count": (
        "LocalSteps(period=2, states=(OptimizerState(name='step', period=2), ))",
        adamw,
        "averages 'step' of the optimizer, but AdamW keeps exp_avg",
    ),
    "nothing to average": ("des_loc", lambda m: [torch.optim.SGD(m.parameters())], "keeps none .* use local_sgd"),
    "no slow momentum": ("mt_dao", adamw, "needs pliant.SlowAdamW as its optimizer, .* but got AdamW"),
    "8 bits": (
        "des_loc(first_states=('momentum_buffer',), second_states=())",
        lambda m: [CodedSgd(m.parameters(), lr=0.1)],
        "CodedSgd keeps it as Tensor of torch.uint8, whose codes have no mean; use an optimizer with floating-point",
    ),
}


@pytest.mark.parametrize("row", REFUSED)
@pytest.mark.parametrize("when", ["start", "switch"])
def test_what_cannot_be_averaged_is_refused_before_anything_changes(row, when):
    what, optimizers_of, sentence = REFUSED[row]

    def body(place):
        model, optimizers = made(optimizers_of)
        if when == "start":
            with pytest.raises(ValueError, match=sentence):
                pliant.relax(model, optimizers, what, group=place.process_group, timeout_s=20)
        with pliant.relax(model, optimizers, "local_sgd(2)", group=place.process_group, timeout_s=20) as run:
            if when == "switch":
                with pytest.raises(ValueError, match=sentence):
                    run.switch(what)
            train(run.model, optimizers, place.rank, range(2))
        return weights(model)

    one, other = pliant.run_world(2, body, timeout_s=60)
    assert torch.equal(one, other)


def test_a_sparse_state_is_refused():
    what = pliant.des_loc(1, first=1, first_states=("momentum_buffer",), second_states=())

    def body(place):
        model, optimizers = made(momentum, lambda: nn.EmbeddingBag(5, 3, sparse=True, mode="sum"))
        run = pliant.relax(model, optimizers, what, group=place.process_group, timeout_s=20)
        model(torch.tensor([[0, 1]])).sum().backward()
        with pytest.raises(ValueError, match=r"of weight it is a sparse tensor, .* sparse=False") as caught:
            optimizers[0].step()
        run.__exit__(ValueError, caught.value, None)

    pliant.run_world(2, body, timeout_s=30)


def test_a_state_that_is_not_finite_is_not_sent():
    def body(place):
        model, optimizers = made()
        run = pliant.relax(model, optimizers, pliant.des_loc(2, first=1), group=place.process_group, timeout_s=20)
        train(model, optimizers, place.rank, [0])
        optimizers[0].state[model.first.weight]["exp_avg"][0, 0] = torch.nan
        told = f"after step 2 rank {place.rank} has a NaN or Inf in exp_avg of first.weight, and has not sent it"
        with pytest.raises(pliant.NonFiniteGradientError, match=told) as caught:
            train(model, optimizers, place.rank, [1])
        run.__exit__(pliant.NonFiniteGradientError, caught.value, None)

    pliant.run_world(2, body, timeout_s=30)


@pytest.mark.parametrize("second", [3, 6])
@pytest.mark.parametrize("seen", [0.0, 1e-6, 1e-3])
def test_the_mean_of_a_first_moment_moves_nothing_far_that_a_rank_has_hardly_seen(second, seen):
    """Rank 1 gets the others' exp_avg, and divides it by the root of its own exp_avg_sq."""

    def body(place):
        model, optimizers = made(lambda m: [torch.optim.AdamW(m.parameters(), lr=1e-3)])
        before = weights(model)
        with pliant.relax(
            model, optimizers, pliant.des_loc(1, first=3, second=second), group=place.process_group, timeout_s=20
        ):
            for _ in range(5):
                optimizers[0].zero_grad()
                (model(torch.ones(1, 6)).sum() * (seen if place.rank else 1)).backward()
                optimizers[0].step()
            return float((weights(model) - before).abs().max())

    assert max(pliant.run_world(2, body, timeout_s=30)) < 0.1  # two steps behind the mean, of 29 lr at most


def gradients(model, rank, step):
    """Give a model gradients whose elements are of very different size on each rank, but always the same ones."""
    sizes, values = torch.Generator().manual_seed(rank), torch.Generator().manual_seed(1000 * rank + step)
    for p in model.parameters():
        p.grad = 10 ** (4 * torch.rand(p.shape, generator=sizes) - 2) * torch.randn(p.shape, generator=values)


@pytest.mark.parametrize(("b1", "b2", "bounded"), [(0.9, 0.999, True), (0.5, 0.9, True), (0.99, 0.95, False)])
def test_a_mean_of_first_moments_is_cut_to_what_gradients_can_make_of_them(b1, b2, bounded):
    """A law: what is within four times the bound is the mean to the bit, the rest is that."""

    def adam(model):
        return [torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(b1, b2))]

    def body(place):
        model, optimizers = made(adam)
        what = pliant.des_loc(1, first=3, second=6)
        with pliant.relax(model, optimizers, what, group=place.process_group, timeout_s=20):
            for step in range(3):
                gradients(model, place.rank, step)
                optimizers[0].step()
            after = states(optimizers)
        plain, alone = made(adam)
        for step in range(3):
            gradients(plain, place.rank, step)
            alone[0].step()
        return states(alone), after

    found = pliant.run_world(2, body, timeout_s=30)
    mean = sum(alone["exp_avg"] for alone, _ in found) / 2
    for alone, after in found:
        assert torch.equal(after["exp_avg_sq"], alone["exp_avg_sq"])
        most = 4 * (1 - b1) / ((1 - b2) * (1 - b1**2 / b2)) ** 0.5 if bounded else torch.inf
        limit = most * alone["exp_avg_sq"].double().sqrt()
        torch.testing.assert_close(after["exp_avg"].double(), mean.double().clamp(-limit, limit), rtol=1e-6, atol=0)
        within = mean.abs() <= limit * (1 - 1e-6)
        assert torch.equal(after["exp_avg"][within], mean[within])
        assert bool(within.all()) != bounded
