"""The mean over ranks for the time of an evaluation, and each rank's part of a framework's checkpoint."""

import threading

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pliant
from pliant.algorithms.plans import plan_of
from pliant.engine import rank_files
from pliant.spec import Rule

one_at_a_time = threading.Lock()


def build(context, what):
    with one_at_a_time:  # threads share torch's generator
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))
    model = DistributedDataParallel(module, process_group=context.process_group)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return model, optimizer, pliant.relax(model, optimizer, what, timeout_s=20)


def train(model, optimizer, rank, steps):
    for step in steps:
        x = torch.randn(4, 6, generator=torch.Generator().manual_seed(1000 * rank + step))
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


def state(model):
    return [value.clone() for value in model.module.state_dict().values()]


def same(a, b):
    return all(map(torch.equal, a, b))


@pytest.mark.parametrize("what", ["diloco(32)", "local_sgd(16)", "gossip", "streaming_diloco(period=8,fragments=2)"])
def test_within_the_block_ranks_have_their_mean_and_after_it_their_own(what):
    def rank(context):
        model, optimizer, run = build(context, what)
        with run:
            train(model, optimizer, context.rank, range(3))
            own = state(model)
            with run.consolidated():
                shown = state(model)
                with run.consolidated():  # a second one changes nothing
                    assert same(shown, state(model))
            assert same(own, state(model))
            assert run.ranks_differ
            return own, shown

    (own, shown), (others, shown_there) = pliant.run_world(2, rank)
    assert same(shown, shown_there)
    assert not same(own, others)
    for a, b, mean in zip(own, others, shown, strict=True):
        if mean.is_floating_point():
            assert torch.equal(mean, (a + b) / 2)


def test_a_plan_that_exchanges_gradients_shows_what_there_is():
    def rank(context):
        model, optimizer, run = build(context, "onebit")
        with run:
            train(model, optimizer, context.rank, range(2))
            own, sent = state(model), run.stats()["sent_bytes"]
            with run.consolidated():
                assert same(own, state(model))
            return run.stats()["sent_bytes"] - sent, run.ranks_differ

    assert pliant.run_world(2, rank) == [(0, False)] * 2


@pytest.mark.parametrize("act", ["step", "state_dict", "save_part"])
def test_within_the_block_nothing_is_trained_or_saved(act, tmp_path):
    def rank(context):
        model, optimizer, run = build(context, "diloco(32)")
        with run, run.consolidated():
            if act == "step":
                train(model, optimizer, context.rank, range(1))
            elif act == "state_dict":
                run.state_dict()
            else:
                run.save_part(tmp_path)

    with pytest.raises(RuntimeError, match="needs this rank's own weights, but within"):
        pliant.run_world(2, rank)


def test_an_error_in_the_block_gives_the_weights_back():
    def rank(context):
        model, optimizer, run = build(context, "diloco(32)")
        with run:
            train(model, optimizer, context.rank, range(2))
            own = state(model)
            with pytest.raises(ZeroDivisionError), run.consolidated():
                raise ZeroDivisionError
            return same(own, state(model))

    assert pliant.run_world(2, rank) == [True, True]


def go_on(tmp_path, what, again, meanwhile=lambda run: None):
    """Train, save parts after 3 steps, train on; then load in a new run, as a framework does; return both ends."""

    def rank(context):
        model, optimizer, run = build(context, what)
        train(model, optimizer, context.rank, range(3))
        run.save_part(tmp_path)
        shared = {k: v.clone() for k, v in model.module.state_dict().items()}, optimizer.state_dict()
        shared = torch.load(save_in_memory(shared))
        train(model, optimizer, context.rank, range(3, 7))
        wanted = state(model)
        run.close()
        model, optimizer, run = build(context, again)
        with run:
            model.module.load_state_dict(shared[0])
            optimizer.load_state_dict(shared[1])
            meanwhile(run)
            run.load_part(tmp_path)
            assert [run.trial.guards, run.trial.is_on] == [False, False]
            train(model, optimizer, context.rank, range(3, 7))
            return same(wanted, state(model)), run.plan.name

    return pliant.run_world(2, rank)


def save_in_memory(thing):
    import io

    file = io.BytesIO()
    torch.save(thing, file)
    file.seek(0)
    return file


@pytest.mark.parametrize(
    "what", ["onebit", "powersgd", "diloco(3)", "streaming_diloco(period=4,fragments=2)", "gossip"]
)
def test_a_run_goes_on_from_the_parts_of_its_ranks(what, tmp_path):
    assert [equal for equal, _ in go_on(tmp_path, what, what)] == [True, True]


def test_a_name_goes_on_from_the_parts_of_its_plan_around_rings(tmp_path):
    """As it was before `few_rounds`; sums of two have one order."""
    small = Rule(match=pliant.Match(max_numel=8192), exchange=pliant.allreduce())
    before = pliant.SyncPlan(rules=(small, Rule(exchange=pliant.onebit())))
    assert go_on(tmp_path, before, "onebit") == [(True, "onebit")] * 2


def test_parts_may_lie_where_fsspec_finds_them():
    assert go_on("memory://bucket/a.ckpt.pliant/", "onebit", "onebit") == [(True, "onebit")] * 2


def test_a_place_that_fsspec_does_not_find_is_said_on_all_ranks():
    def rank(context):
        _, _, run = build(context, "onebit")
        with run:
            with pytest.raises(OSError, match=r"nowhere://a/rank\d\.pt could not be written"):
                run.save_part("nowhere://a")
            with pytest.raises(ValueError, match=r"nowhere://a/rank\d\.pt could not be read"):
                run.load_part("nowhere://a")
            with pytest.raises(ValueError, match=r"memory://empty/rank\d\.pt is not there"):
                run.load_part("memory://empty")
        return True

    assert pliant.run_world(2, rank) == [True, True]


def test_a_storage_that_fails_without_a_word_fails_on_all_ranks(monkeypatch):
    """As one does that has not answered in time."""

    def fails(url, content):
        if url.endswith("rank1.pt"):
            raise TimeoutError

    monkeypatch.setattr(rank_files, "write_remote", fails)

    def rank(context):
        _, _, run = build(context, "onebit")
        with run, pytest.raises(OSError, match=r"memory://a/rank1\.pt could not be written \(TimeoutError\)"):
            run.save_part("memory://a")
        return True

    assert pliant.run_world(2, rank) == [True, True]


def test_auto_goes_on_with_the_plan_of_the_parts(tmp_path):
    assert go_on(tmp_path, "onebit", "auto") == [(True, "onebit")] * 2


@pytest.mark.parametrize("begin", ["adopt", "put_on_trial"])
def test_errors_are_raised_again_where_auto_has_come_to_another_plan_before_the_load(tmp_path, begin):
    plan = plan_of(pliant.bytegrad())
    assert go_on(tmp_path, "onebit", "auto", lambda run: getattr(run, begin)(plan)) == [(True, "onebit")] * 2


def remove(tmp_path):
    (tmp_path / "rank1.pt").unlink()


def damage(tmp_path):
    (tmp_path / "rank1.pt").write_bytes(b"PK nothing")


@pytest.mark.parametrize(
    ("strike", "again", "sentence"),
    [
        (remove, "onebit", r"rank1\.pt is not there, so the checkpoint holds nothing of Pliant for rank 1"),
        (damage, "onebit", r"rank1\.pt is damaged"),
        (lambda _: None, "bf16", r"was saved under the plan onebit, but this run has bf16"),
    ],
)
def test_what_cannot_be_loaded_is_refused_on_all_ranks(strike, again, sentence, tmp_path):
    def save(context):
        _, _, run = build(context, "onebit")
        with run:
            run.save_part(tmp_path)

    def load(context):
        _, _, run = build(context, again)
        with run, pytest.raises(ValueError, match=sentence):
            run.load_part(tmp_path)
        return True

    pliant.run_world(2, save)
    strike(tmp_path)
    assert pliant.run_world(2, load) == [True, True]


def test_a_part_that_cannot_be_written_is_said_on_all_ranks(tmp_path):
    (tmp_path / "file").write_text("")

    def rank(context):
        _, _, run = build(context, "onebit")
        with run, pytest.raises(OSError, match=r"rank\d\.pt could not be written"):
            run.save_part(tmp_path / "file" if context.rank == 1 else tmp_path / "folder")
        return True

    assert pliant.run_world(2, rank) == [True, True]
