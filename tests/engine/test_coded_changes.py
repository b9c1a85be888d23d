"""What changes of weights are coded with: residuals that fade, and the elements that bfloat16 sees."""

import pytest
import torch
from torch import nn

import pliant
from pliant.algorithms import executor_for
from pliant.algorithms.base import State, StepContext
from pliant.algorithms.plans import plan_of
from pliant.buckets import Bucket, spans_of
from pliant.simulator import simulate
from pliant.spec import Host, TensorSpec, Topology, Workload
from tables import vector

NUMEL = 600


def exchanged(place, node, steps):
    """Exchange vectors alone; return inputs, results and residuals, (steps, NUMEL) each."""
    algorithm = executor_for(node)
    bucket = Bucket(name="b", spans=spans_of(["w"], [(NUMEL,)]), flat=torch.zeros(NUMEL))
    flat = {name: torch.zeros(NUMEL) for name in algorithm.slots((NUMEL,), place.comm)}
    state = State(flat=flat, workspace=algorithm.prepare(bucket, place.comm))
    given, got, kept = [], [], []
    for step in range(steps):
        given.append(vector("normal", NUMEL, 10 * step + place.rank))
        bucket.flat = given[-1].clone()
        algorithm.on_ready(bucket, state, place.comm, StepContext(step=step, seed=step))
        got.append(bucket.flat.clone())
        kept.append(flat["residual"].clone())
    return torch.stack([torch.stack(each) for each in (given, got, kept)]).double()


@pytest.mark.parametrize(
    "node",
    [
        pliant.sigma2(decay=0.5),
        pliant.int4(decay=0.9),
        pliant.onebit(),
        pliant.topk(0.1, decay=0.5),
        pliant.chunktopk(0.1, block=64, decay=0.5),
    ],
    ids=str,
)
def test_what_ranks_keep_fades_before_the_next_comes_in(node):
    """n mean + sum of e = sum of x + decay (sum of the e of before), in every step."""
    given, got, kept = torch.stack(pliant.run_world(3, lambda place: exchanged(place, node, 5))).unbind(1)
    before = torch.zeros(NUMEL).double()
    for step in range(5):
        assert (got[:, step] == got[0, step]).all()
        carried = got[:, step].sum(0) + kept[:, step].sum(0)
        torch.testing.assert_close(carried, given[:, step].sum(0) + node.decay * before, rtol=0, atol=2e-5)
        before = kept[:, step].sum(0)
    assert before.abs().max() > 0.1


LR, OUTER_LR, MOMENTUM = 2.0**-6, 0.5, 0.5  # products with powers of two are exact, so all of it is equal to the bit
SCALES = (0.02, 0.1, 0.002, 3.0, 0.05)
"""How large gradients are in each period: the fourth is seen nearly everywhere."""
PERIOD = 2


def gradient(rank, step):
    return vector("normal", NUMEL, 100 * step + rank) * SCALES[step // PERIOD]


def trained(place):
    """Train a model of one matrix, whose gradient is what goes in; return weights, residual and bytes by period."""
    module = nn.Linear(NUMEL, 1, bias=False)
    with torch.no_grad():
        module.weight.copy_(vector("normal", NUMEL, 7))
    optimizer = torch.optim.SGD(module.parameters(), lr=LR)
    what, found = pliant.pulse_loco(PERIOD, outer_lr=OUTER_LR, outer_momentum=MOMENTUM), []
    with pliant.relax(module, optimizer, what, group=place.process_group, agreement_every=0, timeout_s=20) as run:
        assert "assumed_density=0.03" in run.explain()
        for step in range(PERIOD * len(SCALES)):
            optimizer.zero_grad()
            run.model(gradient(place.rank, step).view(1, -1)).sum().backward()
            optimizer.step()
            if step % PERIOD == PERIOD - 1:
                saved = run.state_dict()[f"rank{place.rank}"]["slots"]["weight"]["averaging/residual"]
                found.append((module.weight.detach()[0].clone(), saved.flatten().clone(), run.stats()["sent_bytes"]))
    return found


def oracle(size):
    """Yield theta, all residuals, and the most that a rank sends, after each period."""
    theta, m = vector("normal", NUMEL, 7), torch.zeros(NUMEL)
    e = torch.zeros(size, NUMEL)
    for period in range(len(SCALES)):
        sent, most = torch.zeros(size, NUMEL), 0
        for rank in range(size):
            x = theta.clone()
            for step in range(PERIOD * period, PERIOD * (period + 1)):
                x -= LR * gradient(rank, step)
            s = (theta - x) + e[rank]
            seen = (theta - s).to(torch.bfloat16) != theta.to(torch.bfloat16)
            sent[rank], e[rank] = torch.where(seen, s, 0.0), torch.where(seen, 0.0, s)
            most = max(most, int(seen.sum()))
        if most > NUMEL // 3:
            sent, e = sent + e, torch.zeros(size, NUMEL)
        mean = sent.sum(0) / size
        m = MOMENTUM * m + mean
        theta = theta - OUTER_LR * (mean + MOMENTUM * m)
        yield theta, e.clone(), most


@pytest.mark.parametrize("size", [1, 2, 4])
def test_only_what_bfloat16_sees_travels_and_the_rest_is_owed(size):
    """A sum of four may be added in another order where everything travels, and then nothing is owed."""
    ranks = pliant.run_world(size, trained, timeout_s=60)
    shares = set()
    for period, (theta, e, most) in enumerate(oracle(size)):
        for rank in range(size):
            torch.testing.assert_close(ranks[rank][period][0], theta, rtol=0, atol=1e-6)
            assert torch.equal(ranks[rank][period][0], ranks[0][period][0])
            if period < 3:
                assert torch.equal(ranks[rank][period][1], e[rank])
        shares.add(most > NUMEL // 3)
    assert shares == {False, True}
    assert not any(found[3][1].any() for found in ranks)


def test_bytes_are_those_predicted_for_the_density_that_was_seen():
    size = 4
    ranks = pliant.run_world(size, trained, timeout_s=60)
    tensors = (TensorSpec(name="weight", shape=(1, NUMEL), dtype="float32", layer="Linear", ready_s=0.0),)
    workload = Workload(name="one", tensors=tensors, forward_s=0.1, backward_s=0.1, step_s=0.01)
    topology = Topology(hosts=tuple(Host(name=f"h{k}") for k in range(size)))
    seen = [most for _, _, most in oracle(size)]
    for period in (1, 2, 3):  # before the first, weights are sent around; after the fourth, sums have another order
        plan = plan_of(pliant.pulse_loco(PERIOD, assumed_density=(seen[period] - 0.5) / NUMEL))
        predicted = [PERIOD * rank_bytes for rank_bytes in simulate(plan, workload, topology).sent_bytes]
        assert [found[period][2] - found[period - 1][2] for found in ranks] == pytest.approx(predicted)
        elements = 2 / size * 4 * NUMEL if seen[period] > NUMEL // 3 else 8 * seen[period]
        assert predicted == pytest.approx([(size - 1) * (8 + elements)] * size)
