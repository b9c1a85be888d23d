"""Exchanges between steps, against oracles that hold all ranks' weights in one matrix and do the algebra in float64.

An oracle sets out anew in every step, from the weights that the ranks had: so rounding, which differs between CPUs and
which training makes larger, stays as large as one step makes it.
"""

import itertools
import threading
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import pliant
from models import batch, new_ddp, train, weights
from pliant.algorithms import executor_for
from pliant.codecs import MinMax8, Sign
from pliant.engine import background_average
from pliant.engine.attendance import gather_attendance
from pliant.engine.background_average import BackgroundAverage
from pliant.engine.plan_resolution import resolve_plan
from pliant.engine.round_calls import RoundCalls
from pliant.spec import Graph, LocalSteps, Outer
from waiting import Scripted, until

LR = 0.05
STEPS = 20


def path_of(size, what, steps=STEPS, momentum=0.0, plain=False):
    """Train on thread ranks; return the weights that each step began with and the last ones, (steps + 1, size, numel).

    The last ones are those before the run is closed.
    """

    def body(place):
        ddp = new_ddp(place)
        model = ddp.module if plain else ddp
        optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=momentum)
        seen = []
        with pliant.relax(model, optimizer, what, group=place.process_group, timeout_s=20) as run:
            ddp.module.conv.register_forward_pre_hook(lambda *_: seen.append(weights(run.model).clone()))
            train(run.model, optimizer, place.rank, range(steps))
            run.state_dict()  # settles what is in flight
            return torch.stack([*seen, weights(run.model).clone()])

    return torch.stack(pliant.run_world(size, body, timeout_s=60), 1).double().numpy()


def run_all(size, what, steps=STEPS, **options):
    """Train on thread ranks; return the last weights before the run is closed, (size, numel)."""
    return path_of(size, what, steps, **options)[-1]


def gradients_at(x, step, model):
    """The gradient of each rank's loss at its own weights, (size, numel)."""
    rows = []
    for rank, row in enumerate(x):
        nn.utils.vector_to_parameters(torch.from_numpy(row).float(), model.parameters())
        model.zero_grad()
        inputs, labels = batch(rank, step)
        nn.functional.cross_entropy(model(inputs), labels).backward()
        rows.append(torch.cat([p.grad.flatten() for p in model.parameters()]).double().numpy())
    return np.stack(rows)


def check(path, after_step, direction=lambda x, gradients: gradients, atol=lambda: 0.0):
    """Each step leads from the weights seen to what after_step(t, x) makes of x, which is one step of SGD further.

    A sum of `size` terms and the step itself round at most once per addition, each time by half an epsilon of the
    largest weight; what the oracle keeps between steps has rounded as often on the other side.
    """
    rounding = (path.shape[1] + 16) * torch.finfo(torch.float32).eps * np.abs(path).max()
    model = pliant.run_world(1, lambda place: new_ddp(place, bucket_cap_mb=25).module)[0]
    for t, (x, then) in enumerate(itertools.pairwise(path)):
        wanted = after_step(t + 1, x - LR * direction(x, gradients_at(x, t, model)))
        np.testing.assert_allclose(then, wanted, rtol=0, atol=rounding + atol(), err_msg=f"after step {t + 1}")


def matrix(graph, round_, size):
    rows = graph.mixing(round_, size)
    return np.array([[row.get(j, 0.0) for j in range(size)] for row in rows])


sizes = pytest.mark.parametrize("size", [2, 3, 4, pytest.param(8, marks=pytest.mark.extended)])


@pytest.mark.parametrize("size", [4, *(pytest.param(size, marks=pytest.mark.extended) for size in (2, 3, 8))])
@pytest.mark.parametrize("kind", ["ring", "one_peer", "round_robin", "matching", "grid", "complete"])
@pytest.mark.parametrize("period", [1, 3])
def test_gossip_equals_its_oracle(size, kind, period):
    graph = Graph(kind=kind)
    corrections = {}

    def after_step(t, x):
        x = x + corrections.pop(t, 0)
        if t % period == 0:
            corrections[t + 1] = matrix(graph, t // period - 1, size) @ x - x
        return x

    steps = 9 if period == 1 else 11  # all seven rounds of eight ranks; three exchanges and what they bring
    check(path_of(size, pliant.gossip(graph, period=period), steps), after_step)


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        ("ring", 4),
        ("exponential", 8),
        ("complete", 3),
        *(pytest.param(kind, 8, marks=pytest.mark.extended) for kind in ("ring", "grid")),
    ],
)
def test_gossip_keeps_the_mean_and_contracts_at_the_spectral_rate(kind, size):
    graph, rounds = Graph(kind=kind), 8

    def body(place):
        ddp = new_ddp(place)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.0)
        with pliant.relax(ddp, optimizer, pliant.gossip(graph), timeout_s=20) as run:
            with torch.no_grad():
                for p in ddp.parameters():
                    p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(place.rank)))
            start = weights(ddp).clone()
            train(run.model, optimizer, place.rank, range(rounds + 1))  # the last exchange is not taken yet
            run.state_dict()
            return start, weights(ddp).clone()

    start, end = (torch.stack(x).double() for x in zip(*pliant.run_world(size, body, timeout_s=60), strict=True))
    torch.testing.assert_close(end.mean(0), start.mean(0), atol=1e-5, rtol=0)
    singular = np.linalg.svd(matrix(graph, 0, size) - np.full((size, size), 1 / size), compute_uv=False)
    assert (end - end.mean(0)).norm() <= singular[0] ** rounds * (start - start.mean(0)).norm() + 1e-4


class Coded:
    """What a codec that rounds to 8 bits leaves of an array's rows, and how far its next level is at most."""

    def __init__(self, codec):
        self.codec, self.level = codec, 0.0

    def __call__(self, x):
        self.level = max(self.level, float(np.ptp(x, 1).max()) / 255)
        rows = torch.from_numpy(x).float()
        out = torch.zeros_like(rows)
        payload = torch.empty(self.codec.nbytes(rows.shape[1]), dtype=torch.uint8)
        for row, into in zip(rows, out, strict=True):
            self.codec.encode(row, payload, 0)
            self.codec.decode(payload, into)
        return out.double().numpy()


@sizes
def test_choco_equals_its_oracle(size):
    """An element on the border of two levels may be rounded to either one, and the next step makes up for it."""
    graph, codec, gamma = Graph(kind="ring"), MinMax8(), 0.6
    w, coded = matrix(graph, 0, size), Coded(codec)
    path = path_of(size, pliant.choco(codec, graph, gamma=gamma), steps=10)
    replicas, correction = path[0].copy(), np.zeros_like(path[0])

    def after_step(t, x):
        x = x + correction
        replicas[:] += coded(x - replicas)
        correction[:] = gamma * (w @ replicas - replicas)
        return x

    check(path, after_step, atol=lambda: 2 * gamma * coded.level)
    assert coded.level < 1e-3


@sizes
def test_dcd_equals_its_oracle_and_replicas_agree(size):
    graph, codec = Graph(kind="ring"), MinMax8()
    w, coded = matrix(graph, 0, size), Coded(codec)
    path = path_of(size, pliant.dcd(codec, graph), steps=10)

    def after_step(t, x):
        replicas = path[t - 1]  # the weights are what all know of them
        return replicas + coded(x + w @ replicas - 2 * replicas)

    check(path, after_step, atol=lambda: 1.01 * coded.level)
    assert coded.level < 1e-3


@pytest.mark.parametrize(
    "what", [pliant.dcd(graph=Graph(kind="ring")), pliant.choco(Sign(), gamma=0.1)], ids=["dcd", "choco"]
)
def test_replicas_survive_rebucketing_and_a_checkpoint(what):
    """DDP lays its buckets out anew after the first step; a loaded run goes on with the same replicas, to the bit."""

    def body(place):
        ddp = new_ddp(place)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=LR)
        with pliant.relax(ddp, optimizer, what, timeout_s=20) as run:
            train(ddp, optimizer, place.rank, range(6))
            slots = run.state_dict()[f"rank{place.rank}"]["slots"]
            return {slot: t.clone() for slot, t in slots["hidden.weight"].items()}, weights(ddp).clone()

    results = pliant.run_world(4, body, timeout_s=60)
    for slots, _ in results:
        for slot, replica in slots.items():
            if slot.startswith("replica"):
                owner = int(slot.split()[1])
                assert torch.equal(replica, results[owner][0][slot]), slot


@sizes
def test_local_sgd_equals_its_oracle(size):
    path = path_of(size, pliant.local_sgd(4), steps=12)
    check(path, lambda t, x: np.tile(x.mean(0), (size, 1)) if t % 4 == 0 else x)
    assert (path[-1] == path[-1][0]).all()


@sizes
def test_delayed_averaging_equals_its_oracle_and_its_mean_is_never_late(size):
    corrections = {}

    def after_step(t, x):
        x = x + corrections.pop(t, 0)
        corrections[t + 1] = x.mean(0) - x
        return x

    check(path_of(size, pliant.local_sgd(1, delay_steps=1), steps=8), after_step)
    # After the first step ranks differ, but their mean is where exact averaging is.
    first = run_all(size, pliant.local_sgd(1, delay_steps=1), steps=1)
    np.testing.assert_allclose(first.mean(0), run_all(size, "allreduce", steps=1)[0], atol=2e-6)


def along(first, points, share):
    """The value of a setting at a share of the training."""
    shares, values = zip((0.0, first), *points, strict=True)
    return np.interp(share, shares, values)


OUTERS = {
    "constant": Outer(lr=0.7, momentum=0.9),
    "points": Outer(
        lr=0.7, momentum=0.8, lr_points=((0.5, 0.2),), momentum_points=((0.3, 0.8), (0.9, 0.1)), total_steps=16
    ),
    "momentum later": Outer(momentum_points=((0.5, 0.8),), total_steps=12),
    "every": Outer(lr=0.2, momentum=0.9, every=3),
}


@pytest.mark.parametrize(
    ("size", "outer", "fragments", "delay"),
    [
        *((n, "constant", fragments, delay) for n in (2, 3, 4) for fragments in (1, 3) for delay in (0, 2)),
        *((1, outer, 1, 0) for outer in OUTERS),
        *((3, outer, 3, 0) for outer in OUTERS if outer != "constant"),
        *(pytest.param(8, outer, 3, 2, marks=pytest.mark.extended) for outer in OUTERS),
    ],
)
def test_diloco_equals_its_oracle(size, outer, fragments, delay):
    """The oracle of delayed Nesterov is the paper's, with the rate that N arrivals divide among them."""
    outer, period = OUTERS[outer], 4 if outer == "every" else 6
    every, state = outer.every, {"corrections": {}, "rounds": [0] * fragments}

    def spread(names_and_numels):
        numels, own = [0] * fragments, []
        for numel in names_and_numels:
            k = numels.index(min(numels))
            numels[k] += numel
            own += [k] * numel
        return np.array(own)

    def after_step(t, x):
        if "theta" not in state:
            state["theta"], state["m"], state["acc"] = start.copy(), np.zeros_like(start), np.zeros_like(start)
        x = x + state["corrections"].pop(t, 0)
        theta, m, acc = state["theta"], state["m"], state["acc"]
        share = t / (outer.total_steps or 1)
        lr = along(outer.lr, outer.lr_points, share) * every
        mu = along(outer.momentum, outer.momentum_points, share)
        for k in range(fragments):
            first = -(-period * (k + 1) // fragments)
            if (t - first) % period or t < first:
                continue
            part = fragment == k
            change = (theta[part] - x[:, part]).mean(0)
            acc[part] += change
            state["rounds"][k] += 1
            theta[part] -= lr * change / every
            if state["rounds"][k] % every == 0:
                m[part] = mu * m[part] + acc[part] / every
                theta[part] -= lr * mu * m[part]
                acc[part] = 0
            if delay:
                correction = np.zeros_like(x)
                correction[:, part] = theta[part] - x[:, part]
                state["corrections"][t + delay] = state["corrections"].get(t + delay, 0) + correction
            else:
                x[:, part] = theta[part]
        return x

    start = run_all(1, "allreduce", steps=0)[0]
    fragment = spread(pliant.run_world(1, lambda place: [p.numel() for p in new_ddp(place).parameters()])[0])
    what = LocalSteps(period=period, outer=outer, fragments=fragments, delay_steps=delay)
    check(path_of(size, what, steps=15), after_step)


def test_diloco_with_a_period_of_one_and_no_outer_optimizer_is_synchronous_training():
    what = pliant.diloco(1, outer_lr=1.0, outer_momentum=0.0)
    np.testing.assert_allclose(run_all(4, what), run_all(4, "allreduce"), atol=2e-5)


@pytest.mark.parametrize("codec", ["int4", "bytegrad", "topk", "powersgd", "onebit"])
def test_changes_go_through_any_averaging(codec):
    """All ranks hold the same bits after an exchange, however lossy; and what is lost is owed, not forgotten."""
    found = run_all(3, pliant.diloco(5, averaging=getattr(pliant, codec)()), steps=10)
    assert (found == found[0]).all()


@sizes
@pytest.mark.parametrize(("compensation", "lookahead"), [(0.0, 0.0), (0.5, 0.0), (0.0, 0.9), (0.5, 1.0)])
def test_late_gradients_equal_their_oracle(size, compensation, lookahead):
    late, before, taken_at = None, 0, None

    def direction(x, gradients):
        nonlocal late, before, taken_at
        g = np.zeros_like(x) if late is None else late + lookahead * (late - before)
        if compensation and late is not None:
            g = g + compensation * g * g * (x - taken_at)
        late, before, taken_at = gradients.mean(0), 0 if late is None else late, x
        return g

    path = path_of(size, pliant.delayed(pliant.allreduce(), compensation=compensation, lookahead=lookahead), steps=8)
    assert (path == path[:, :1]).all()
    check(path, lambda t, x: x, direction)


@pytest.mark.parametrize(
    ("lookahead", "nesterov", "bound"), [(0.0, False, 0.1), (0.0, True, 0.253), (0.9, False, 0.253), (0.9, True, 0.36)]
)
def test_late_momentum_is_stable_as_far_as_its_page_says(lookahead, nesterov, bound):
    """The largest root of x_{t+1} = x_t + m (x_t - x_{t-1}) - lr h (late x), for lr h on both sides of the bound."""
    m = 0.9
    look = [1 + lookahead, -lookahead]
    gradient = np.convolve(look, [1 + m, -m]) if nesterov else [*look, 0.0]  # of x_{t-1}, x_{t-2}, x_{t-3}

    def radius(a):
        return np.abs(np.roots(np.array([1, -1 - m, m, 0, 0]) + a * np.array([0, 0, *gradient]))).max()

    assert radius(0.97 * bound) < 1 < radius(1.03 * bound)


def test_late_by_name_looks_ahead_as_far_as_the_optimizer_has_momentum():
    weight = [torch.zeros(1, requires_grad=True)]
    optimizers = {
        0.9: torch.optim.SGD(weight, lr=0.1, momentum=0.9),
        0.0: torch.optim.SGD(weight, lr=0.1),
        0.8: torch.optim.AdamW(weight, betas=(0.8, 0.99)),
    }
    for lookahead, optimizer in optimizers.items():
        assert resolve_plan("delayed", optimizer).rules[-1].exchange.lookahead == lookahead


def test_an_overflow_meets_a_late_gradient_once():
    """It is skipped one step late, by all ranks, and does not come back as the gradient before."""

    def body(place):
        ddp = new_ddp(place)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=LR)
        finite = []
        what = pliant.delayed(pliant.allreduce(), lookahead=0.9)
        with pliant.relax(ddp, optimizer, what, nonfinite="propagate", timeout_s=20):
            for step in range(6):
                x, y = batch(place.rank, step)
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(ddp(x), y)
                (loss * torch.inf if (step, place.rank) == (2, 1) else loss).backward()
                finite.append(all(bool(p.grad.isfinite().all()) for p in ddp.parameters()))
                if finite[-1]:
                    optimizer.step()
        return finite

    for finite in pliant.run_world(2, body, timeout_s=60):
        assert finite == [True, True, True, False, True, True]


def test_a_plain_module_is_trained_as_it_is():
    found, wrapped = (run_all(3, "local_sgd", steps=9, plain=plain) for plain in (True, False))
    np.testing.assert_array_equal(found, wrapped)


def test_a_warm_up_is_exact_and_the_rest_sets_out_from_its_end():
    found = run_all(3, pliant.after(5, pliant.allreduce(), then=pliant.diloco(4)), steps=5)
    np.testing.assert_array_equal(found, run_all(3, "allreduce", steps=5))
    later = run_all(3, pliant.post_local_sgd(5, 4), steps=9)
    assert (later == later[0]).all()


def test_the_period_stretches_as_the_learning_rate_falls():
    what = pliant.local_sgd(2, stretch=0.2)  # (0.2 / 0.05)^2 = 16
    before, at = (run_all(2, what, steps=steps) for steps in (15, 16))
    assert (before[0] != before[1]).any()
    assert (at[0] == at[1]).all()


@pytest.mark.parametrize("sizes", [[[0, 1], [2, 3]], [[0], [1, 2]]])
def test_between_hosts_ranks_of_a_host_stay_equal(sizes):
    size = sum(len(host) for host in sizes)

    def body(place):
        ddp = new_ddp(place)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=LR)
        what = pliant.between_hosts(pliant.local_sgd(4))
        with pliant.relax(ddp, optimizer, what, hosts=sizes, timeout_s=20) as run:
            train(ddp, optimizer, place.rank, range(6))
            apart = weights(ddp).clone()
            train(ddp, optimizer, place.rank, range(6, 8))
            together = weights(ddp).clone()
            run.state_dict()
        return apart, together

    results = pliant.run_world(size, body, timeout_s=60)
    for host in sizes:
        assert all(torch.equal(results[r][0], results[host[0]][0]) for r in host)
    assert not torch.equal(results[sizes[0][0]][0], results[sizes[1][0]][0])
    assert all(torch.equal(r[1], results[0][1]) for r in results)


def test_evaluation_neither_communicates_nor_counts():
    def body(place):
        ddp = new_ddp(place)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=LR)
        with pliant.relax(ddp, optimizer, "gossip", timeout_s=20) as run:
            train(ddp, optimizer, place.rank, range(3))
            run.state_dict()
            before = run.stats()
            ddp.eval()
            for step in range(place.rank):  # as often as each likes
                with torch.no_grad():
                    ddp(batch(place.rank, step)[0])
            after = run.stats()
            ddp.train()
            train(ddp, optimizer, place.rank, range(3, 5))
        return before["sent_bytes"] == after["sent_bytes"] and before["steps"] == after["steps"] == 3

    assert pliant.run_world(3, body, timeout_s=30) == [True] * 3


def test_consolidate_gives_the_mean_and_close_leaves_the_ranks_equal():
    def body(place):
        ddp = new_ddp(place)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=LR)
        with pliant.relax(ddp, optimizer, pliant.local_sgd(100), timeout_s=20) as run:
            train(ddp, optimizer, place.rank, range(3))
            own, mean = weights(ddp).clone(), run.consolidate()
            assert torch.equal(own, weights(ddp))
        flat = torch.cat([mean[name].flatten() for name, _ in ddp.module.named_parameters()])
        return own, flat, weights(ddp), mean["norm.running_mean"]

    results = pliant.run_world(3, body, timeout_s=30)
    mean = sum(own for own, *_ in results) / 3
    for _, consolidated, closed, buffers in results:
        torch.testing.assert_close(consolidated, mean)
        assert torch.equal(closed, results[0][2])
        assert torch.equal(buffers, results[0][3])


def test_a_free_pace_waits_for_nobody_and_ends_with_all():
    """Ranks make different numbers of steps; averaging goes on beside them, and closing waits for the last."""

    def body(place):
        ddp = new_ddp(place)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=LR)
        with pliant.relax(ddp, optimizer, "async_average", timeout_s=20):
            train(ddp, optimizer, place.rank, range(10 * (place.rank + 1)))
            apart = weights(ddp).clone()
        return apart, weights(ddp)

    results = pliant.run_world(3, body, timeout_s=60)
    assert all(torch.equal(r[1], results[0][1]) for r in results)
    assert results[0][1].isfinite().all()


def test_each_step_of_a_rank_counts_once(monkeypatch):
    """At a free pace ranks are weighed by their steps since the last exchange, whatever plan was before."""
    told = {0: [], 1: []}

    def noted(mine, comm):
        told[comm.rank].append(mine.weight)
        return gather_attendance(mine, comm)

    monkeypatch.setattr(background_average, "gather_attendance", noted)

    def body(place):
        ddp = new_ddp(place)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=LR)
        with pliant.relax(ddp, optimizer, "allreduce", timeout_s=20) as run:
            train(ddp, optimizer, place.rank, range(3))
            run.switch(pliant.async_average())
            train(ddp, optimizer, place.rank, range(10 * (place.rank + 1)))

    pliant.run_world(2, body, timeout_s=60)
    for rank, works in told.items():
        assert min(works) >= 0
        assert 0 < sum(works) <= 10 * (rank + 1)


@pytest.mark.parametrize(
    "what",
    [pliant.async_average(), pliant.decoupled_diloco(2), pliant.gossip(free=True)],
    ids=["average", "quorum", "gossip"],
)
def test_a_stalled_rank_does_not_stall_the_others(what):
    gone_on = threading.Semaphore(0)

    def body(place):
        ddp = new_ddp(place)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=LR)
        with pliant.relax(ddp, optimizer, what, timeout_s=60) as run:
            train(ddp, optimizer, place.rank, range(2))
            if place.rank == 1:
                assert all(gone_on.acquire(timeout=250) for _ in range(2)), "the others wait for this rank"
            train(ddp, optimizer, place.rank, range(2, 12))
            assert run.stats()["steps"] == 12
            gone_on.release()

    pliant.run_world(3, body, timeout_s=60)


def test_a_rank_that_computes_for_long_takes_part_in_averages():
    """Rank 1 makes no step until there were more averages, and its thread alone can take part in them."""
    done = threading.Event()

    def body(place):
        ddp = new_ddp(place)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=LR)
        with pliant.relax(ddp, optimizer, "async_average", timeout_s=20) as run:
            [averages] = run._executor.of(BackgroundAverage)
            train(ddp, optimizer, place.rank, range(2))
            if place.rank == 1:
                before = averages.rounds[0]
                until(lambda: averages.rounds[0] > before + 10)
                done.set()
            step = 2
            while not done.is_set():
                train(ddp, optimizer, place.rank, [step])
                step += 1

    pliant.run_world(3, body, timeout_s=60)


def test_a_period_counts_from_the_last_average_whoever_has_called_it():
    all_there = threading.Barrier(3)

    def body(place):
        ddp = new_ddp(place)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=LR)
        with pliant.relax(ddp, optimizer, pliant.async_average(10), timeout_s=60) as run:
            for step in range(40):
                train(ddp, optimizer, place.rank, [step])
                all_there.wait(250)
            rounds = run._executor.of(BackgroundAverage)[0].rounds[0]
            all_there.wait(250)  # who closes calls more
        return rounds

    assert 1 <= max(pliant.run_world(3, body, timeout_s=60)) <= 40 // 9  # a rank may have taken part a step early


@pytest.mark.parametrize("is_silent", [False, True])
def test_a_round_may_take_as_long_as_the_exchanges_of_all_its_buckets(is_silent):
    """Each of which has the timeout for itself."""
    rounds = [0, 0]
    average = SimpleNamespace(
        _comms=SimpleNamespace(all=SimpleNamespace(timeout_s=1.0)),
        _calls=SimpleNamespace(last=1, silence=lambda seconds: LookupError(f"{seconds:g}s of silence")),
        _call=lambda number: None,
        _raise_error=lambda: None,
        _round=0,
        _error=None,
        _leaving=False,
        rounds=rounds,
    )

    def comes(k, by=1):
        rounds[k] += by

    def ends():
        average._round = 1

    last = (lambda: comes(1, 0),) if is_silent else (lambda: comes(1), ends, lambda: None)
    average._changed = Scripted(lambda: comes(0), *last)
    with pytest.raises(LookupError, match="1s of silence") if is_silent else nullcontext():
        BackgroundAverage._next_round(average)
    assert not average._changed.events


def test_what_has_ended_averages_is_raised_until_the_run_ends(monkeypatch):
    """Else a rank whose loop survives the error would train on alone, and wait in vain for others as it closes."""

    def broken(mine, comm):
        raise ArithmeticError("no average")

    monkeypatch.setattr(background_average, "gather_attendance", broken)

    def body(place):
        ddp = new_ddp(place)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=LR)
        run = pliant.relax(ddp, optimizer, "async_average", timeout_s=60)
        for steps in (itertools.count(), [0]):
            with pytest.raises(ArithmeticError, match="no average"):
                train(ddp, optimizer, place.rank, steps)
        with pytest.raises(ArithmeticError, match="no average"):
            run.close()

    pliant.run_world(2, body, timeout_s=60)


def test_a_rank_that_does_not_pass_on_a_call_ends_the_others(monkeypatch):
    """Its thread hears nothing, as under SIGSTOP; no rank hangs, and who waits longest is told why."""
    hear, stopped, going, found = RoundCalls.hear, threading.Event(), threading.Event(), {}

    def hear_unless_stopped(self):
        if self._comm.rank == 2 and stopped.is_set():
            going.wait(250)
        return hear(self)

    monkeypatch.setattr(RoundCalls, "hear", hear_unless_stopped)

    def body(place):
        ddp = new_ddp(place)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=LR)
        try:
            with pliant.relax(ddp, optimizer, "async_average", timeout_s=2):
                train(ddp, optimizer, place.rank, range(4))
                stopped.set()
                if place.rank == 2:
                    until(lambda: len(found) == 2)
                    going.set()
        except pliant.CommError as error:
            found[place.rank] = str(error)

    pliant.run_world(3, body, timeout_s=60)
    assert found.keys() >= {0, 1}


@pytest.mark.parametrize(
    "what",
    [
        pliant.gossip(period=2),
        pliant.gossip(free=True),
        pliant.choco(gamma=0.3),
        pliant.choco(free=True, staleness=2),
        pliant.bounded_staleness(codec=Sign()),
        pliant.dcd(),
        pliant.local_sgd(stretch=0.1),
        pliant.async_average(),
        pliant.post_local_sgd(3),
        pliant.diloco(averaging=pliant.int4()),
        pliant.streaming_diloco(),
        pliant.sparse_loco(),
        pliant.delayed(pliant.onebit(), compensation=0.1),
        pliant.between_hosts(pliant.diloco()),
        pliant.between_hosts(pliant.delayed(pliant.qsgd())),
    ],
    ids=str,
)
def test_the_plan_names_the_algorithm(what):
    assert executor_for(what).node == what


@pytest.mark.parametrize("kind", ["momentum", "adam", "counted apart"])
def test_what_the_optimizer_has_gathered_apart_is_joined_by_a_switch_to_gradients(kind):
    def body(place):
        ddp = new_ddp(place)
        kept = ddp.parameters()
        optimizer = torch.optim.SGD(kept, lr=0.05, momentum=0.9) if kind == "momentum" else torch.optim.Adam(kept)
        with pliant.relax(ddp, optimizer, "local_sgd", agreement_every=2) as run:
            train(ddp, optimizer, place.rank, range(5))
            if kind == "counted apart":
                first = next(iter(optimizer.state.values()))
                first["step"] += place.rank
            run.switch("allreduce")
            train(ddp, optimizer, place.rank, range(5, 12))
            return weights(ddp), run.stats()["last_agreement_step"]

    (first, agreed), (second, _) = pliant.run_world(2, body)
    assert torch.equal(first, second)
    assert agreed >= 10
