"""Sparse algorithms of other systems: against dense oracles, every byte counted, nothing lost."""

import json

import pytest
import torch
import typer
from typer.testing import CliRunner

import pliant
from models import new_ddp, train, weights
from pliant.algorithms import executor_for
from pliant.algorithms.base import State, StepContext
from pliant.buckets import Bucket, spans_of
from pliant.codecs import Int4
from pliant.comm import RecordedComm, run_world
from pliant.spec import SyncPlan, from_json, to_json
from pliant_bench.baselines import GTopK, OkTopk, ScaleCom, SparCml, UniformBlocks, register_baselines
from pliant_bench.baselines.oktopk import rebalance
from pliant_bench.baselines.sparcml import split_gather
from pliant_bench.baselines.streams import (
    add_coded,
    add_stream,
    codec_of,
    coded_stream,
    gather_all,
    kth_largest,
    largest,
    route,
    stream_of,
)
from pliant_bench.harness.arms import _optimizer, plan_of_arm
from pliant_bench.harness.command import bench
from pliant_bench.harness.names import BASELINE_ARMS, split_arms

SHAPES = [(20, 16), (7,), (173,)]
NUMEL = 500
STEPS = 5
PEERS = {
    "sparcml": SparCml(ratio=0.05),
    "sparcml-dense": SparCml(ratio=0.6),
    "oktopk": OkTopk(ratio=0.05, threshold_every=2, region_every=3),
    "oktopk-one": OkTopk(ratio=0.001),
    "gtopk": GTopK(ratio=0.05, kept=1),
    "scalecom": ScaleCom(ratio=0.05),
    "uniform_blocks": UniformBlocks(ratio=0.1, block=16),
    "sparcml-4bit": SparCml(ratio=0.05, bits=4),
    "sparcml-4bit-dense": SparCml(ratio=0.6, bits=4),
    "scalecom-4bit": ScaleCom(ratio=0.05, bits=4),
}


@pytest.fixture(autouse=True)
def _registered():
    register_baselines()


def gradient(rank: int, step: int) -> torch.Tensor:
    """Whole numbers, so that float32 adds them up exactly in any order."""
    g = torch.Generator().manual_seed(100 * rank + step)
    return (torch.randn(NUMEL, generator=g) ** 3 * 16).round()


def exchanged(place, algorithm, steps=STEPS, gradients=gradient):
    """Return what came out of each step, the residual, and the counting comm."""
    comm = RecordedComm(place.comm)
    names = [f"p{k}" for k in range(len(SHAPES))]
    bucket = Bucket(name="bucket 0", spans=spans_of(names, SHAPES), flat=torch.zeros(NUMEL))
    flat = {name: torch.zeros(NUMEL) for name in algorithm.slots((NUMEL,), comm)}
    state = State(flat=flat, workspace=algorithm.prepare(bucket, comm))
    outs = []
    for step in range(steps):
        bucket.flat = gradients(place.rank, step).clone()
        algorithm.on_ready(bucket, state, comm, StepContext(step=step, seed=step))
        outs.append(bucket.flat.clone())
    return outs, flat["residual"], comm


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("name", PEERS)
def test_all_ranks_get_the_same_and_sent_and_residual_are_the_updates(name, size):
    worlds = run_world(size, lambda place: exchanged(place, PEERS[name]), timeout_s=30)
    outs = [torch.stack(outs) for outs, _, _ in worlds]
    assert all(torch.equal(outs[0], other) for other in outs)
    assert outs[0][0].any()
    arrived = size * outs[0].double().sum(0)
    kept = sum(residual.double() for _, residual, _ in worlds)
    wanted = sum(gradient(r, t).double() for r in range(size) for t in range(STEPS))
    if size in (1, 2, 4) and "4bit" not in name:
        assert torch.equal(arrived + kept, wanted)
    else:
        torch.testing.assert_close(arrived + kept, wanted, rtol=0, atol=1e-3)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", ["sparcml", "scalecom", "oktopk"])
def test_each_does_what_its_paper_says(name, size):
    # Distinct sizes of all elements: who is chosen among equals is nobody's promise.
    def gradients(rank, step):
        return gradient(rank, step) + torch.arange(NUMEL) / 2**12 + rank / 2**14

    algorithm = OkTopk(ratio=0.05, threshold_every=1, region_every=1) if name == "oktopk" else PEERS[name]
    worlds = run_world(size, lambda place: exchanged(place, algorithm, 1, gradients)[0], timeout_s=30)
    k = 25
    held = [gradients(rank, 0) for rank in range(size)]
    chosen = [largest(held[0] if name == "scalecom" else v, k) for v in held]
    total = sum(torch.zeros(NUMEL).index_put_((at,), v[at]) for at, v in zip(chosen, held, strict=True))
    if name == "oktopk":
        total = total * (total.abs() >= kth_largest(total, k))
        assert (total != 0).sum() == k
    torch.testing.assert_close(worlds[0][0], total / size)


def test_the_paper_of_gtopk_loses_what_a_merge_drops_of_a_place_that_arrives():
    """Ranks 0 and 1 merge place 2 away, ranks 2 and 3 bring it: it arrives without what the first two had."""

    def merged(rows, ratio, kept):
        """What comes out, and what is left behind by all ranks."""

        def body(place):
            bucket = Bucket(name="b", spans=spans_of(["p"], [(4,)]), flat=torch.tensor(rows[place.rank]).float())
            algorithm = GTopK(ratio=ratio, kept=kept)
            state = State(flat={"residual": torch.zeros(4)}, workspace=algorithm.prepare(bucket, place.comm))
            algorithm.on_ready(bucket, state, place.comm, StepContext(step=0, seed=0))
            return bucket.flat * 4, state.flat["residual"]

        outs, residuals = zip(*run_world(4, body, timeout_s=20), strict=True)
        assert all(torch.equal(out, outs[0]) for out in outs)
        return outs[0].tolist(), sum(residuals).tolist()

    # k = 2: each pair holds places 0 and 2, or 2 and 3; merged in the tree, 2 (40) and 0 (18) are left.
    rows = [[9, 0, 1, 0], [9, 0, 1, 0], [0, 0, 20, 1], [0, 0, 20, 1]]
    for kept in (0, 1):
        assert merged(rows, 0.5, kept) == ([18, 0, 42, 0], [0, 0, 0, 2])
    # k = 1: place 2 of the first pair is never sent, so it stays at home.
    rows = [[9, 0, 8, 0], [0, 0, 8, 0], [0, 0, 20, 1], [0, 0, 20, 1]]
    for kept, left in ((0, [9, 0, 8, 2]), (1, [9, 0, 16, 2])):  # rank 0 kept its 9, and dropped rank 1's 8
        assert merged(rows, 0.25, kept) == ([0, 0, 40, 0], left)


def test_a_low_pass_filter_keeps_beta_of_what_was_not_sent():
    beta = 0.25
    worlds = run_world(2, lambda place: exchanged(place, ScaleCom(ratio=0.05, beta=beta)), timeout_s=30)
    updates = sum(gradient(r, t) for r in range(2) for t in range(STEPS))
    sent = 2 * sum(worlds[0][0])
    torch.testing.assert_close(sum(residual for _, residual, _ in worlds), beta * (updates - sent))


@pytest.mark.parametrize("size", [2, 3, 4])
def test_bytes_are_counted_exactly(size):
    def body(place):
        found = {}
        for name in ("gtopk", "scalecom", "uniform_blocks", "sparcml", "sparcml-4bit", "scalecom-4bit"):
            found[name] = exchanged(place, PEERS[name], steps=1)[2].sent_bytes
        held = gradient(place.rank, 0)
        at = largest(held, 25)
        bounds = [NUMEL * j // size for j in range(size + 1)]
        dense = torch.zeros(NUMEL).index_put_((at,), held[at])
        return found, at, bounds, dense

    results = run_world(size, body, timeout_s=30)
    k = 25
    assert sum(found["gtopk"] for found, *_ in results) == (size - 1) * 8 * k * 2
    summed = sum(found["scalecom"] for found, *_ in results)
    assert 0 <= (size - 1) * 4 * k + 2 * (size - 1) * 4 * k - summed < size  # each rank counts whole bytes of a ring
    coded = 4 + 13  # one block of 25 values has one owner
    assert sum(found["scalecom-4bit"] for found, *_ in results) == (size - 1) * (4 * k + 2 * coded)
    blocks = 2 + 1 + 2  # 10 % of 20, 1 and 11 blocks, rounded up
    assert all(found["uniform_blocks"] == (size - 1) * 4 * blocks * 17 for found, *_ in results)
    total = sum(dense for *_, dense in results)
    for rank, (found, at, bounds, _) in enumerate(results):
        split = sum(8 * int(((at >= bounds[j]) & (at < bounds[j + 1])).sum()) for j in range(size) if j != rank)
        gathered = 8 * int((total[bounds[rank] : bounds[rank + 1]] != 0).sum()) * (size - 1)
        assert found["sparcml"] == split + gathered + 2 * 4 * (size - 1)
        assert found["sparcml-4bit"] < 0.7 * found["sparcml"]


def test_a_full_sum_is_gathered_dense():
    def body(place):
        comm, out = RecordedComm(place.comm), torch.empty(400)
        x = gradient(place.rank, 0)[:400] + 0.5  # no zeros
        split_gather(out, torch.arange(400), x, comm)
        return out, x, comm.sent_bytes

    results = run_world(4, body, timeout_s=20)
    for out, _, sent_bytes in results:
        assert torch.equal(out, sum(x for _, x, _ in results))
        assert sent_bytes == 3 * 400 + 3 * 400 + 2 * 3 * 4  # as dense as a ring, and lengths


def test_streams_are_the_shorter_of_two_and_say_which():
    x = torch.tensor([0.0, 3, 0, 0, -1, 0])
    few = stream_of(torch.tensor([1, 4]), x[[1, 4]], 6)
    many = stream_of(torch.tensor([0, 1, 4]), x[[0, 1, 4]], 6)
    assert (few.numel(), many.numel()) == (4, 6)
    for stream in (few, many):
        out = torch.ones(6)
        add_stream(stream, out)
        assert torch.equal(out, x + 1)
    assert largest(torch.tensor([1.0, torch.nan, -3, 2]), 2).tolist() == [1, 2]
    assert kth_largest(torch.tensor([1.0, -5, 3]), 2) == 3
    assert kth_largest(torch.tensor([1.0]), 2) == 0


@pytest.mark.parametrize("num", [0, 1, 64, 65, 399, 400])
def test_coded_streams_are_the_shorter_of_two_and_say_which(num):
    codec, extent = Int4(), 400
    places = torch.arange(extent)[:num]
    values = gradient(0, 0)[:num]
    stream = coded_stream(places, values, extent, codec, 0)
    sparse, dense = 4 * num + codec.nbytes(num), codec.nbytes(extent)
    assert stream.numel() == (1 + -(-min(sparse, dense) // 4) if num else 0)
    assert num == 0 or int(stream[0]) == (num if sparse < dense else -1)
    out = torch.ones(extent)
    add_coded(stream, out, codec)
    off = (out - 1 - torch.zeros(extent).index_put_((places,), values)).abs()
    assert (off <= gradient(0, 0).abs().max() / 14 + 1e-5).all()
    with pytest.raises(ValueError, match="5 bits"):
        codec_of(5)


def test_messages_of_any_length_arrive():
    def body(place):
        me, size = place.rank, place.size
        routed = route([torch.full((me * j,), 10 * me + j, dtype=torch.int32) for j in range(size)], place.comm)
        gathered = gather_all(torch.full((me,), me, dtype=torch.int32), place.comm)
        columns = torch.arange(2 * 24, dtype=torch.int32).view(2, 24) if me == 1 else torch.empty(2, 0).int()
        even = rebalance(columns, place.comm)
        return [part.tolist() for part in routed], [part.tolist() for part in gathered], even

    for me, (routed, gathered, even) in enumerate(run_world(4, body, timeout_s=20)):
        assert routed == [[10 * r + me] * (r * me) for r in range(4)]
        assert gathered == [[r] * r for r in range(4)]
        assert [part.shape[1] for part in even] == [6, 6, 6, 6]
        assert torch.equal(torch.cat(even, 1), torch.arange(48).int().view(2, 24))


@pytest.mark.parametrize("name", PEERS)
def test_an_overflow_reaches_all_and_is_not_kept(name):
    def gradients(rank, step):
        g = gradient(rank, step)
        if step == 1 and rank == 1:
            g[123] = torch.nan
        return g

    for outs, residual, _ in run_world(3, lambda p: exchanged(p, PEERS[name], 4, gradients), timeout_s=30):
        assert [bool(out.isfinite().all()) for out in outs] == [True, False, True, True]
        assert residual.isfinite().all()


@pytest.mark.parametrize("name", [name for name in BASELINE_ARMS if name != "dgc"])
def test_they_train_in_the_engine_and_ranks_agree(name):
    def body(place):
        ddp = new_ddp(place)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
        plan = SyncPlan(rules=plan_of_arm(f"{name}(ratio=0.1)").rules[1:], bucket_bytes=1 << 30)
        with pliant.relax(ddp, optimizer, plan, timeout_s=20, agreement_every=1) as run:
            losses = train(ddp, optimizer, place.rank, [0, 1] * 20)
            return losses, weights(ddp), run.stats()["sent_bytes"]

    results = run_world(3, body, timeout_s=60)
    assert all(torch.equal(results[0][1], other) for _, other, _ in results)
    assert all(sum(losses[-4:]) < 0.8 * sum(losses[:4]) for losses, *_ in results)
    assert 0 < sum(sent for *_, sent in results) < 3 * 40 * 2 * 4 * results[0][1].numel()


@pytest.mark.extended
@pytest.mark.processes
def test_real_processes_exchange_by_them(tmp_path):
    app = typer.Typer(add_completion=False)
    app.command()(bench)
    done = CliRunner().invoke(
        app,
        f"--algorithms {','.join(BASELINE_ARMS)} --hosts 3 --local --steps 1 --json {tmp_path / 'r.json'}".split(),
    )
    assert done.exit_code == 0, done.output
    records = {r["arm"]: r for r in json.loads((tmp_path / "r.json").read_text())["records"]}
    assert set(records) == set(BASELINE_ARMS)
    sent = {name: r["sent_bytes"] for name, r in records.items() if r["counted"]}
    assert all(0 < sent[name] < 500_000 for name in BASELINE_ARMS), sent


def test_every_peer_is_an_arm_with_settings_and_survives_a_plan():
    assert set(BASELINE_ARMS) == {"sparcml", "oktopk", "gtopk", "scalecom", "dgc", "uniform_blocks", "magnitude_blocks"}
    for name in BASELINE_ARMS:
        assert split_arms(f"{name}(ratio=0.02)") == (f"{name}(ratio=0.02)",)
        plan = plan_of_arm(f"{name}(ratio=0.02)")
        assert from_json(SyncPlan, to_json(plan)) == plan
        node = pliant.parse(f"{name}(ratio=0.02)")
        assert executor_for(plan.rules[1].exchange).node == node
        assert plan.rules[0].exchange == pliant.allreduce(few_rounds=True)
    sgd = _optimizer("dgc(ratio=0.1)", torch.nn.Linear(1, 1), 0.1, 10, adam=False)
    assert sgd.param_groups[0]["momentum"] == 0
    assert pliant.parse("dgc(ratio=0.1)") == pliant.topk(0.1, momentum=0.9)
    assert pliant.parse("magnitude_blocks(block=32)") == pliant.blocktopk(0.01, block=32)
    with pytest.raises(ValueError, match="gtopk does not take these settings"):
        plan_of_arm("gtopk(share=1)")
    with pytest.raises(ValueError, match="ratio is 2"):
        run_world(1, lambda place: exchanged(place, GTopK(ratio=2)))
