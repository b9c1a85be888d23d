"""Blocks: nothing is lost, masks agree, the dense limit, waiting, poison, curvature, checkpoints and other sizes."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import pliant
from models import new_ddp, train, weights
from pliant.algorithms import StepContext, executor_for
from pliant.algorithms.plans import plan_of
from pliant.buckets import Bucket, spans_of
from pliant.codecs import tensor_hash
from pliant.engine.algorithm_state import AlgorithmState
from pliant.engine.comms import Comms
from pliant.engine.plan_resolution import resolve_plan
from pliant.layouts.blocks import divide_blocks
from pliant.spec import BetweenHosts, BlockSparse, Host, LocalSteps, Selection

SHAPES = [(12, 40), (7,), (6, 5, 3, 3), (30, 33)]
NUMEL = sum(torch.Size(s).numel() for s in SHAPES)
ON_TWO = pliant.Topology(hosts=(Host(name="a"), Host(name="b")))
WAYS = {
    "global": {"agreement": "global"},
    "global-fresh": {"agreement": "global", "rescore": 1, "ratio": 0.3},
    "rows": {"agreement": "global", "block": 0},
    "leader": {"agreement": "leader"},
    "local": {"agreement": "local"},
    "scheduled": {"agreement": "local", "topology": ON_TWO},
}
SHARED = {"ratio": 0.2, "block": 16, "power": 0, "age": 0.25}
MODES = {name: pliant.tasc(**SHARED | {"value_bits": 32} | way) for name, way in WAYS.items()}
CODED = {
    f"{name}-coded": pliant.tasc(**SHARED | way | {"ratio": 0.04 if "local" in name else 0.05})
    for name, way in WAYS.items()
    if name not in ("scheduled", "global-fresh")
}
AGREED = ("global", "global-fresh", "rows", "leader", "global-coded", "rows-coded", "leader-coded")
MODES |= CODED
modes = pytest.mark.parametrize("mode", MODES)


def require_same(x, y, mode):
    """To the bit, unless codes of 4 bits round."""
    torch.testing.assert_close(x, y, rtol=0, atol=1e-3 if mode in CODED else 0)


class Rank:
    """One bucket, its state, and an algorithm, without an engine around them."""

    def __init__(self, node, comm, optimizer=torch.optim.SGD):
        algorithm = executor_for(node)
        names = [f"p{k}" for k in range(len(SHAPES))]
        parameters = {name: nn.Parameter(torch.zeros(shape)) for name, shape in zip(names, SHAPES, strict=True)}
        store = AlgorithmState(parameters, dict.fromkeys(names, node), Comms(comm))
        self.algorithm, self.comm, self.store, self.step_count = algorithm, comm, store, 0
        for name, parameter in parameters.items():
            algorithm.start_from(optimizer([parameter], lr=0.1), parameter, store.tensors[name])
        self.bucket = Bucket(name="bucket 0", spans=spans_of(names, SHAPES), flat=torch.zeros(NUMEL))
        self.state = replace(store.state_of(self.bucket), workspace=algorithm.prepare(self.bucket, comm))

    def step(self, gradient):
        """Return what the optimizer would get."""
        self.bucket.flat = gradient.clone()
        self.algorithm.on_ready(self.bucket, self.state, self.comm, StepContext(step=self.step_count, seed=0, lr=0.1))
        self.step_count += 1
        return self.bucket.flat.clone()

    def slot(self, name):
        return torch.cat(list(self.state.of[name].values()))


def whole_numbers(rank, step, scale=8):
    """Sums and halves of these are exact."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randint(-scale, scale + 1, (NUMEL,), generator=generator).float()


@modes
def test_sent_and_residual_are_the_sum_of_updates(mode):
    def body(place):
        me, came, went = Rank(MODES[mode], place.comm), torch.zeros(NUMEL), torch.zeros(NUMEL)
        for step in range(20):
            g = whole_numbers(place.rank, step)
            came += g
            went += me.step(g)
        return came, went, me.state.flat["residual"]

    results = pliant.run_world(2, body)
    came, kept = (sum(r[k] for r in results) for k in (0, 2))
    for _, went, _ in results:
        require_same(went * 2 + kept, came, mode)
    assert kept.count_nonzero() > 0.5 * NUMEL


@pytest.mark.parametrize("mode", sorted(MODES.keys() - {"scheduled"}))
@pytest.mark.parametrize("size", [2, 3, pytest.param(4, marks=pytest.mark.extended)])
def test_masks_and_results_are_the_same_on_all_ranks(mode, size):
    def body(place):
        me = Rank(MODES[mode], place.comm)
        seen = []
        for step in range(12):
            result = me.step(torch.randn(NUMEL, generator=torch.Generator().manual_seed(100 * step + place.rank)))
            seen.append((tensor_hash(me.slot("age")), tensor_hash(result)))
        return seen

    results = pliant.run_world(size, body)
    assert all([row[1] for row in r] == [row[1] for row in results[0]] for r in results)
    same_masks = all([row[0] for row in r] == [row[0] for row in results[0]] for r in results)
    assert same_masks == (mode in AGREED)


@pytest.mark.parametrize(
    ("agreement", "feedback"),
    [
        *(("global", "worker"), ("leader", "difference"), ("local", "worker")),
        *(
            pytest.param(*row, marks=pytest.mark.extended)
            for row in (("global", "difference"), ("leader", "worker"), ("local", "difference"))
        ),
    ],
)
def test_a_ratio_of_one_is_sgd_with_momentum(feedback, agreement):
    algorithm = pliant.tasc(1, power=0, momentum=0.9, feedback=feedback, agreement=agreement)

    def body(place):
        ours, theirs = new_ddp(place), new_ddp(place)
        optimizer = torch.optim.SGD(ours.parameters(), lr=0.05)
        with pliant.relax(ours, optimizer, algorithm, timeout_s=20):
            train(ours, optimizer, place.rank, range(8))
        train(theirs, torch.optim.SGD(theirs.parameters(), lr=0.05, momentum=0.9), place.rank, range(8))
        return weights(ours), weights(theirs)

    for ours, theirs in pliant.run_world(3, body):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("value_bits", "ratio", "off"), [(32, 0.2, 0), (4, 0.1, 1e-4)])
def test_estimates_of_differences_add_up(value_bits, ratio, off):
    algorithm = pliant.tasc(ratio, block=16, power=0, feedback="difference", value_bits=value_bits)

    def body(place):
        me = Rank(algorithm, place.comm)
        results = [me.step(whole_numbers(place.rank, 0)) for _ in range(30)]
        return me.state.flat["estimate"], me.state.flat["mean"], results[-1]

    results = pliant.run_world(2, body)
    mean = sum(r[0] for r in results) / 2
    truth = (whole_numbers(0, 0) + whole_numbers(1, 0)) / 2
    for estimate, kept, used in results:
        torch.testing.assert_close(kept, mean, rtol=0, atol=off)
        torch.testing.assert_close(used, truth, rtol=0, atol=off)  # a gradient that stands still is known in the end
        assert estimate.count_nonzero() > 0


@pytest.mark.parametrize(
    "mode", [name if k % 8 == 0 else pytest.param(name, marks=pytest.mark.extended) for k, name in enumerate(MODES)]
)
def test_no_block_waits_for_ever(mode):
    def body(place):
        me, oldest = Rank(MODES[mode], place.comm), 0.0
        loudness = torch.where(torch.arange(NUMEL) % 480 < 400, 1.0, 0.25)
        for step in range(240):
            me.step(whole_numbers(place.rank, step) * loudness)
            oldest = max(oldest, float(me.slot("age").max()))
        return oldest

    assert max(pliant.run_world(2, body)) < 180  # where age counts for nothing, all of the 240


@modes
def test_a_poisoned_gradient_reaches_all_and_stays_nowhere(mode):
    def body(place):
        me, came, went = Rank(MODES[mode], place.comm), torch.zeros(NUMEL), torch.zeros(NUMEL)
        for step in range(10):
            g = whole_numbers(place.rank, step)
            if step == 4 and place.rank == 1:
                g[17] = torch.nan
            result = me.step(g)
            if step == 4:
                assert result.isnan().all()
                came += g if place.rank != 1 else 0  # the others keep theirs
            else:
                came, went = came + g, went + result
        return came, went, me.state.flat["residual"]

    results = pliant.run_world(2, body)
    came, kept = (sum(r[k] for r in results) for k in (0, 2))
    for _, went, _ in results:
        require_same(went * 2 + kept, came, mode)


@pytest.mark.parametrize(
    ("power", "optimizer", "expected"),
    [
        (None, torch.optim.SGD, 1),
        (None, torch.optim.AdamW, 0),
        (0.5, torch.optim.AdamW, 0.5),
        (0, torch.optim.SGD, 0),
    ],
)
def test_curvature_decides_where_it_counts(power, optimizer, expected):
    def body(place):
        me = Rank(pliant.tasc(0.3, block=16, power=power, rescore=1, dense=0, value_bits=32), place.comm, optimizer)
        assert float(me.slot("power")[0]) == expected
        sharp = {}
        if "curvature" in me.state.of:
            for name, h in me.state.of["curvature"].items():
                sharp[name] = torch.arange(len(h)) % 20 == 7
                h.copy_(torch.where(sharp[name], 1e6, 1.0))
        me.step(1 + 0.01 * whole_numbers(0, 0))
        return all(bool((me.state.of["age"][name][mask] == 0).all()) for name, mask in sharp.items()), len(sharp)

    all_sharp, num_felt = pliant.run_world(2, body)[0]
    assert num_felt == (0 if power == 0 else len(SHAPES))
    assert power == 0 or all_sharp == (expected > 0)


def test_relief_sends_more_for_a_while():
    algorithm = BlockSparse(selection=Selection(ratio=0.1, block=16, power=0, relief=4, window=3, value_bits=32))

    def body(place):
        me = Rank(algorithm, place.comm)
        return [int(me.step(whole_numbers(place.rank, k) * (1 if k < 6 else 100)).count_nonzero()) for k in range(16)]

    counts = pliant.run_world(2, body)[0]
    assert max(counts[:6]) < 0.2 * NUMEL < 0.25 * NUMEL < max(counts[9:12])


def test_a_run_goes_on_with_another_number_of_ranks():
    algorithm = pliant.tasc(0.05, block=16, power=0, momentum=0.9)

    def stop(place):
        ddp = new_ddp(place)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
        with pliant.relax(ddp, optimizer, algorithm, timeout_s=20) as run:
            train(ddp, optimizer, place.rank, range(6))
            return run.state_dict(), ddp.module.state_dict()

    stopped = pliant.run_world(3, stop)
    states, model = [r[0] for r in stopped], stopped[0][1]
    for size in (2, 4):
        resized = pliant.resize(states, size)

        def go_on(place, resized=resized):
            ddp = new_ddp(place, seed=3)
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
            with pliant.relax(ddp, optimizer, algorithm, agreement_every=1, timeout_s=20) as run:
                ddp.module.load_state_dict(model)
                run.load_state_dict(resized[place.rank])
                train(ddp, optimizer, place.rank, range(6, 9))
            return weights(ddp)

        for name in states[0]["rank0"]["slots"]:
            owed = torch.stack([s[f"rank{k}"]["slots"][name]["residual"] for k, s in enumerate(states)]).mean(0)
            for k, state in enumerate(resized):
                torch.testing.assert_close(state[f"rank{k}"]["slots"][name]["residual"], owed, rtol=0, atol=1e-7)
        assert len({float(w.sum()) for w in pliant.run_world(size, go_on)}) == 1
    with pytest.raises(ValueError, match="2 states are given"):
        pliant.resize(states[:2], 4)
    with pytest.raises(ValueError, match="not rank0"):
        pliant.resize(states[1:], 4)


@pytest.mark.parametrize("what", ["local_sgd", "async_average", "gossip(free=1)", "halos"])
def test_what_belongs_to_ranks_is_not_resized(what):
    def body(place):
        ddp = new_ddp(place)
        with pliant.relax(ddp, torch.optim.SGD(ddp.parameters(), lr=0.05), what, timeout_s=20) as run:
            return run.state_dict()

    with pytest.raises(ValueError, match="exchanges weights"):
        pliant.resize(pliant.run_world(2, body), 3)


def test_the_name_means_one_bucket_and_words_are_settings():
    sgd = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    plan = resolve_plan("tasc", sgd)
    assert plan.bucket_bytes == 1 << 40
    assert len(plan.rules) == 1
    named = resolve_plan("tasc(ratio=0.0077, agreement=leader, feedback=difference)", sgd)
    node = named.rules[0].exchange
    assert (node.selection.ratio, node.selection.agreement, node.feedback) == (0.0077, "leader", "difference")
    by_hosts = plan_of(pliant.tasc(agreement="host")).rules[0].exchange
    assert isinstance(by_hosts, BetweenHosts)
    assert by_hosts.inner.selection.agreement == "local"


def test_blocks_are_of_gradients():
    with pytest.raises(ValueError, match="averaging must give a mean of changes at once, which BlockSparse does not"):
        LocalSteps(period=4, averaging=pliant.tasc(0.1))


def test_a_second_momentum_is_refused():
    def body(place):
        ddp = new_ddp(place)
        sgd = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
        for algorithm in (pliant.tasc(momentum=0.9), pliant.after(2, pliant.bf16(), then=pliant.tasc(momentum=0.9))):
            with pytest.raises(ValueError, match="count twice"):
                pliant.relax(ddp, sgd, algorithm)

    pliant.run_world(1, body)


def test_a_topology_for_others_is_refused():
    algorithm = pliant.tasc(0.2, block=16, power=0, agreement="local", topology=ON_TWO, value_bits=16)

    def body(place):
        Rank(algorithm, place.comm).step(torch.ones(NUMEL))

    with pytest.raises(ValueError, match="2 ranks, but 3 exchange"):
        pliant.run_world(3, body)


@pytest.mark.parametrize(("ratio", "bits"), [(0.05, 4), (0.2, 4), (0.6, 16), (1.0, 32)])
def test_what_travels_whole_has_as_many_bits_as_are_paid_for(ratio, bits):
    parts = divide_blocks(SHAPES, Selection(ratio=ratio, block=16), 2)
    assert parts.bits(ratio) == bits
    assert parts.is_whole(ratio) == (ratio > 0.1)


def test_codes_do_not_add_up_on_the_way():
    with pytest.raises(ValueError, match=r"scale each; make value_bits 16 or 32"):
        pliant.tasc(0.2, agreement="local", topology=ON_TWO)
