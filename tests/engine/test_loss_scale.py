"""A GradScaler changes its scale, and skips steps: what plans keep of gradients follows, and nothing is lost."""

import contextlib
import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import pliant
from models import batch, ended_equal, new_ddp, train, weights
from pliant.engine.loss_scale import LossScale
from tables import ALGORITHMS, BETWEEN_STEPS, optimizer_for, sampled

LIKE_GRADIENTS = {"residual", "velocity", "momentum", "estimate", "mean", "on its way", "before"}
LOSSLESS = ["delayed", "onebit", "topk", "blocktopk", "randomk", "int4", "every-exact", "powersgd"]
LOSSLESS += ["tasc", "tasc-leader", "tasc-local", "topk-dynamic"]
OVERFLOWS = (5, 12)
"""Steps whose batch overflows on rank 1; those in which every-exact exchanges."""


def scaled_step(ddp, optimizer, scaler, rank, step, *, overflows=False):
    """Return the unscaled gradient if the step was made, else None."""
    x, y = batch(rank, step)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(ddp(x), y)
    scaler.scale(loss * torch.inf if overflows else loss).backward()
    scaler.unscale_(optimizer)
    gradient = torch.cat([p.grad.flatten() for p in ddp.parameters() if p.grad is not None]).double()
    scaler.step(optimizer)
    before = scaler.get_scale()
    scaler.update()
    return gradient if scaler.get_scale() >= before else None


def assert_nothing_lost(results):
    """Of two ranks: what was wanted of each, what was applied, and what each is owed."""
    wanted = sum(r[0] for r in results)
    got = 2 * results[0][1] + sum(r[2] for r in results)
    assert float((got - wanted).norm() / wanted.norm()) < 1e-6


@pytest.mark.parametrize("name", LOSSLESS)
def test_nothing_is_lost_when_the_scale_changes_and_steps_are_skipped(name):
    """Sum of what was applied + what is owed = sum of the gradients of all batches that did not overflow."""

    def body(place):
        ddp, alone = (new_ddp(place) for _ in range(2))
        optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-30)  # moves nothing
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=2)
        wanted = applied = torch.zeros_like(weights(ddp)).double()
        scales = []
        with pliant.relax(ddp, optimizer, ALGORITHMS[name], nonfinite="propagate", timeout_s=20) as run:
            for step in range(15):
                overflows = step in OVERFLOWS
                if not overflows:
                    x, y = batch(place.rank, step)
                    with alone.no_sync():
                        nn.functional.cross_entropy(alone(x), y).backward()
                gradient = scaled_step(
                    ddp, optimizer, scaler, place.rank, step, overflows=overflows and place.rank == 1
                )
                applied = applied if gradient is None else applied + gradient
                scales.append(scaler.get_scale())
            wanted = torch.cat([p.grad.flatten() for p in alone.parameters()]).double()
            (kept,) = run.state_dict().values()
        owed = torch.cat(
            [
                sum(
                    (own[s].double() for s in ("residual", "pending", "on its way") if s in own), torch.zeros(p.shape)
                ).flatten()
                for own, p in ((kept["slots"].get(n, {}), p) for n, p in ddp.module.named_parameters())
            ]
        )
        return wanted, applied, owed / scales[-1], scales

    results = pliant.run_world(2, body, timeout_s=60)
    assert results[0][3] == results[1][3]
    assert sum(b < a for a, b in zip(results[0][3], results[0][3][1:], strict=False)) == len(OVERFLOWS)
    assert_nothing_lost(results)


@pytest.mark.parametrize(
    "name",
    sampled(
        n
        for n, a in ALGORITHMS.items()
        if not (a.timing.delay_steps or a.steps_beside or getattr(a.core, "signed", False))
    ),
)
def test_a_skipped_step_leaves_no_trace(name):
    """What is kept is the same to the bit, but for the unit, which is a power of two."""

    def body(place):
        ddp = new_ddp(place)
        optimizer = optimizer_for(name, ddp.parameters())
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
        with pliant.relax(ddp, optimizer, ALGORITHMS[name], nonfinite="propagate", timeout_s=20) as run:
            step = -1
            # Skip where an overflow is seen at once: where gradients are not gathered for a later exchange.
            while (step := step + 1) < 5 or (step + 1) % ALGORITHMS[name].timing.period:
                scaled_step(ddp, optimizer, scaler, place.rank, step)
            before, steps = copy.deepcopy(run.state_dict()[f"rank{place.rank}"]["slots"]), run.steps
            assert scaled_step(ddp, optimizer, scaler, place.rank, step, overflows=place.rank == 1) is None
            after = run.state_dict()[f"rank{place.rank}"]["slots"]
            assert run.steps == steps
            for parameter, own in before.items():
                for slot, tensor in own.items():
                    factor = 0.5 if slot in LIKE_GRADIENTS or slot == "pending" else 1.0
                    assert torch.equal(after[parameter][slot], tensor * factor), (parameter, slot)
            scaled_step(ddp, optimizer, scaler, place.rank, step + 1)
            assert run.steps == steps + 1
        return weights(ddp)

    ended_equal(2, body)


def test_debts_of_an_earlier_plan_survive_a_skipped_step():
    def body(place):
        ends = []
        for skipped in (False, True):
            ddp = new_ddp(place)
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
            scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
            with pliant.relax(ddp, optimizer, pliant.onebit(), nonfinite="propagate", timeout_s=20) as run:
                for step in range(3):
                    scaled_step(ddp, optimizer, scaler, place.rank, step)
                run.switch("allreduce")
                if skipped:
                    ddp.eval()  # its batch must not be seen by the running means either
                    scaled_step(ddp, optimizer, scaler, place.rank, 9, overflows=place.rank == 0)
                    ddp.train()
                scaled_step(ddp, optimizer, scaler, place.rank, 3)
            ends.append(weights(ddp))
        return ends

    for without, skipped in pliant.run_world(2, body, timeout_s=60):
        assert torch.equal(without, skipped)


@pytest.mark.parametrize(
    ("name", "skips"),
    [
        *(("delayed", False), ("every-exact", False), ("onebit", True)),
        *(pytest.param(*row, marks=pytest.mark.extended) for row in (("onebit", False), ("powersgd", True))),
    ],
)
def test_what_was_saved_in_one_scale_goes_on_in_another(name, skips):
    """To the bit, in a new process, also if the scaler skips a step before the run has seen it."""

    def going_on(place, ddp, optimizer, scaler, run):
        if skips:
            ddp.eval()  # its batch must not be seen by the running means either
            assert scaled_step(ddp, optimizer, scaler, place.rank, 9, overflows=place.rank == 1) is None
            ddp.train()
        for step in range(4, 8):
            scaled_step(ddp, optimizer, scaler, place.rank, step)
        assert run.steps == 8
        return weights(ddp)

    def made(place):
        ddp = new_ddp(place)
        optimizer = optimizer_for(name, ddp.parameters())
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=2)
        run = pliant.relax(ddp, optimizer, ALGORITHMS[name], nonfinite="propagate", timeout_s=20)
        return ddp, optimizer, scaler, run

    def body(place):
        with (first := made(place))[-1] as run:
            for step in range(4):
                scaled_step(*first[:3], place.rank, step)
            saved = copy.deepcopy([each.state_dict() for each in (first[0].module, *first[1:])])
            assert float(saved[3][f"rank{place.rank}"]["scale"]) == saved[2]["scale"] == 2.0**10
            ends = [going_on(place, *first)]
        with (second := made(place))[-1] as run:
            for each, state in zip((second[0].module, *second[1:3]), saved, strict=False):
                each.load_state_dict(state)
            run.load_state_dict(saved[3], scaler=second[2] if skips else None)
            ends.append(going_on(place, *second))
            second[0].module.load_state_dict(saved[0])  # in a run that knows its scaler, in any order
            second[1].load_state_dict(saved[1])
            run.load_state_dict(saved[3])
            second[2].load_state_dict(saved[2])
            ends.append(going_on(place, *second))
        return ends

    for first, second, third in pliant.run_world(2, body, timeout_s=60):
        assert torch.equal(first, second)
        assert torch.equal(first, third)


@pytest.mark.parametrize("what", ["skipped", "not loaded"])
def test_a_scale_that_the_run_could_not_see_change_is_refused(what):
    def body(place):
        ddp = new_ddp(place)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
        with pliant.relax(ddp, optimizer, pliant.onebit(), nonfinite="propagate", timeout_s=20) as run:
            scaled_step(ddp, optimizer, scaler, place.rank, 0)
            saved = copy.deepcopy(run.state_dict())
        again = torch.amp.GradScaler("cpu", init_scale=2.0**8 if what == "skipped" else 2.0**16)
        with pliant.relax(ddp, optimizer, pliant.onebit(), nonfinite="propagate", timeout_s=20) as run:
            run.load_state_dict(saved)
            if what == "skipped":
                scaled_step(ddp, optimizer, again, place.rank, 1, overflows=True)
            before = weights(ddp)
            with pytest.raises(ValueError, match=r"in a loss scale of 256, .* GradScaler's is \d+: .*scaler=scaler"):
                scaled_step(ddp, optimizer, again, place.rank, 2)
            assert torch.equal(before, weights(ddp))

    pliant.run_world(2, body, timeout_s=60)


def test_steps_that_were_skipped_before_a_state_was_saved_are_not_counted_again():
    """Nor made up for: where weights are exchanged, other ranks count them differently."""

    def body(place):
        found, saved = [], None
        for steps in (range(3), range(3, 4)):
            ddp = new_ddp(place)
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
            scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
            with pliant.relax(ddp, optimizer, pliant.local_sgd(4), nonfinite="propagate", timeout_s=20) as run:
                for each, state in zip((scaler, run), saved or (), strict=False):
                    each.load_state_dict(state)
                for step in steps:
                    scaled_step(ddp, optimizer, scaler, place.rank, step, overflows=step == 1)
                saved = copy.deepcopy([scaler.state_dict(), run.state_dict()])
                found.append(run.steps)
        return found

    assert pliant.run_world(2, body, timeout_s=60) == [[3, 4]] * 2


def test_residuals_of_shards_in_another_scale_are_refused_too(monkeypatch):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    monkeypatch.setattr("pliant.engine.loss_scale.scaler_at_work", lambda: scaler)
    for what, refused in ((pliant.sharded(gradients="int4"), True), (pliant.sharded(gradients="allreduce"), False)):
        scale, store = LossScale(), SimpleNamespace(nodes={"w": what}, keeps_gradients=False)
        scale.load(2.0**8, None)
        with pytest.raises(ValueError, match="in a loss scale of 256") if refused else contextlib.nullcontext():
            scale.notice(store, 1)


def test_a_compensation_is_that_of_gradients_without_a_scale():
    def body(place):
        what, found = pliant.delayed(compensation=0.5), []
        for scaled in (False, True):
            ddp = new_ddp(place)
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
            scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=2, enabled=scaled)
            with pliant.relax(ddp, optimizer, what, nonfinite="propagate", timeout_s=20):
                for step in range(6):
                    scaled_step(ddp, optimizer, scaler, place.rank, step)
            found.append(weights(ddp))
        return found

    for plain, scaled in pliant.run_world(2, body, timeout_s=60):
        torch.testing.assert_close(scaled, plain, rtol=0, atol=1e-5)


def test_signs_under_a_scaler_are_refused():
    def body(place):
        ddp = new_ddp(place)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
        before = weights(ddp)
        with pliant.relax(ddp, optimizer, pliant.decoupled_momentum(), nonfinite="propagate", timeout_s=20):
            with pytest.raises(
                ValueError, match=r"divides gradients by its scale of 256, .* decoupled_momentum\(signed=False\)"
            ):
                scaled_step(ddp, optimizer, scaler, place.rank, 0)
            assert torch.equal(before, weights(ddp))
            disabled = torch.amp.GradScaler("cpu", enabled=False)
            x, y = batch(place.rank, 0)
            disabled.scale(nn.functional.cross_entropy(ddp(x), y)).backward()
            disabled.step(optimizer)
            train(ddp, optimizer, place.rank, range(2))

    pliant.run_world(2, body, timeout_s=60)


class Branching(nn.Module):
    """Uses one of two layers, as it is told."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 40), nn.Linear(16, 40)
        self.use = 0

    def forward(self, x):
        return (self.first, self.second)[self.use](x.flatten(1))


KEPT = ["onebit", "topk", "powersgd", "delayed", "late-onebit", "every-exact", "int4", "tasc-local"]


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("name", KEPT)
def test_what_is_owed_to_parameters_that_no_rank_used_is_kept(name, scaled):
    """DDP gives them no gradient, whatever was exchanged. Sum of what came + what is owed = sum of gradients."""

    def body(place):
        ddp, alone = (new_ddp(place, model=Branching, find_unused_parameters=True) for _ in range(2))
        optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-30)  # moves nothing
        scaler = torch.amp.GradScaler("cpu", enabled=scaled, init_scale=2.0**4, growth_interval=100)
        applied = torch.zeros_like(weights(ddp)).double()
        options = {"nonfinite": "propagate"} if scaled else {}
        with pliant.relax(ddp, optimizer, ALGORITHMS[name], timeout_s=20, **options) as run:
            for step in range(12):
                x, y = batch(place.rank, step)
                overflows = scaled and step == 5 and name != "late-onebit"  # which loses what it has sent by then
                ddp.module.use = alone.module.use = int(step % 4 > 1)
                if not overflows:
                    with alone.no_sync():
                        nn.functional.cross_entropy(alone(x), y).backward()
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(ddp(x), y)
                scaler.scale(loss * torch.inf if overflows and place.rank == 1 else loss).backward()
                before = scaler.get_scale()
                scaler.unscale_(optimizer)
                scaler.step(optimizer)
                scaler.update()
                if scaler.get_scale() == before:
                    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in ddp.parameters()]
                    applied = applied + torch.cat([g.flatten() for g in gradients]).double()
            wanted = torch.cat([p.grad.flatten() for p in alone.parameters()]).double()
            (kept,) = run.state_dict().values()
        slots = ("residual", "pending", "on its way")
        owed = [
            sum((kept["slots"].get(n, {})[s] for s in slots if s in kept["slots"].get(n, {})), torch.zeros(p.shape))
            + kept.get("owed", {}).get(n, 0.0)
            for n, p in ddp.module.named_parameters()
        ]
        return wanted, applied, torch.cat([o.flatten() for o in owed]).double() / scaler.get_scale()

    assert_nothing_lost(pliant.run_world(2, body, timeout_s=60))


def alone_steps(place, algorithm, skipped, num_steps, *, wrapped=True, fused=False, **options):
    """Train on weights that are exchanged; rank 1 alone overflows in some steps."""
    ddp = new_ddp(place, model=Branching, **options)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    group = {} if wrapped else {"group": place.process_group}
    held = ddp if wrapped else ddp.module
    with pliant.relax(held, optimizer, algorithm, nonfinite="propagate", timeout_s=20, **group) as run:
        made = [
            scaled_step(held, optimizer, scaler, place.rank, step, overflows=place.rank == 1 and step in skipped)
            for step in range(num_steps)
        ]
        if num_steps - 1 in skipped:
            run.consolidate()  # where ranks meet after the last step
        assert run.steps == num_steps
    assert [step for step, gradient in enumerate(made) if gradient is None] == (sorted(skipped) if place.rank else [])
    return weights(ddp)


@pytest.mark.parametrize(
    ("name", "wrapped", "skipped"),
    [
        *(("gossip", True, skipped) for skipped in ({3}, {0}, {0, 1}, {2, 3, 7})),
        *(("local_sgd", True, skipped) for skipped in ({0}, {2, 3, 7})),
        *(("streaming_diloco", True, skipped) for skipped in ({0, 1}, {7})),
        *((name, False, skipped) for name in ("local_sgd", "choco", "acco") for skipped in ({3}, {2, 3, 7}, {0, 1})),
    ],
    ids=str,
)
def test_a_step_that_one_rank_alone_skips_is_counted(name, wrapped, skipped):
    """Nobody waits for it for ever, also where it is the last one, and all ranks are equal when the run ends."""

    def body(place):
        algorithm = {**ALGORITHMS, **BETWEEN_STEPS}[name]
        return alone_steps(place, algorithm, skipped, 8, wrapped=wrapped, find_unused_parameters=True)

    ended_equal(2, body)


@pytest.mark.parametrize("wrapped", [True, False])
@pytest.mark.parametrize("name", ["local_sgd", "acco"])
def test_a_step_whose_update_a_fused_optimizer_leaves_out_counts_once(name, wrapped):
    """Its step() is called where gradients overflow too, and the scale falls all the same."""

    def body(place):
        algorithm, skipped = {**ALGORITHMS, **BETWEEN_STEPS}[name], {2, 3, 7}
        return alone_steps(place, algorithm, skipped, 8, wrapped=wrapped, fused=True, find_unused_parameters=True)

    ended_equal(2, body)


def two_optimizers(place, what, overflows, *, fused, wrapped, skipped=(2, 3, 7), in_turns=False):
    """Train with two, of which rank 1's overflow in some steps; all make each step, or the second each third alone."""
    ddp = new_ddp(place, model=Branching, find_unused_parameters=True)
    held = ddp if wrapped else ddp.module
    parts = [[ddp.module.first.weight, ddp.module.second.weight], [ddp.module.first.bias, ddp.module.second.bias]]
    optimizers = [torch.optim.SGD(part, lr=0.1, fused=how) for part, how in zip(parts, fused, strict=True)]
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    group = {} if wrapped else {"group": place.process_group}
    with pliant.relax(held, optimizers, what, nonfinite="propagate", timeout_s=20, **group) as run:
        for step in range(8):
            x, y = batch(place.rank, step)
            for each in optimizers:
                each.zero_grad()
            overflow = overflows if place.rank == 1 and step in skipped else ()
            loss = nn.functional.cross_entropy(held(x), y)
            scaler.scale(loss * torch.inf if len(overflow) == 2 else loss).backward()
            for k in overflow:
                parts[k][0].grad.fill_(torch.inf)
            for each in (optimizers[step % 3 == 2 :][:1]) if in_turns else optimizers:
                scaler.step(each)
            scaler.update()
        run.consolidate()
        assert in_turns or run.steps == 8
    return weights(ddp)


@pytest.mark.parametrize("wrapped", [True, False])
@pytest.mark.parametrize("fused", [(False, False), (True, False), (False, True)], ids=str)
@pytest.mark.parametrize("overflows", [(0,), (1,), (0, 1)], ids=str)
def test_a_step_that_some_of_two_optimizers_skip_counts_once(overflows, fused, wrapped):
    """Those that a scaler calls make a part of it, which ends where the rank goes on, and not with the next step."""

    def body(place):
        return two_optimizers(place, pliant.local_sgd(2), overflows, fused=fused, wrapped=wrapped)

    ended_equal(2, body)


@pytest.mark.parametrize("wrapped", [True, False])
@pytest.mark.parametrize("skipped", [(2, 3, 7), pytest.param((0, 1), marks=pytest.mark.extended)], ids=str)
@pytest.mark.parametrize("fused", [(False, False), (True, False)], ids=str)
@pytest.mark.parametrize("overflows", [(0,), (1,), (0, 1)], ids=str)
@pytest.mark.parametrize("staleness", [0, 1])
def test_owners_at_a_free_pace_hear_of_a_step_that_some_of_two_optimizers_skip(
    staleness, overflows, fused, skipped, wrapped
):
    """Else two ranks wait for each other, each in another optimizer's step."""

    def body(place):
        what = pliant.bounded_staleness(staleness)
        return two_optimizers(place, what, overflows, fused=fused, wrapped=wrapped, skipped=skipped)

    ended_equal(2, body)


def test_owners_at_a_free_pace_hear_of_skipped_steps_of_optimizers_in_turns():
    def body(place):
        what, fused = pliant.bounded_staleness(0), (False, False)
        return two_optimizers(place, what, (0,), fused=fused, wrapped=True, skipped=(1, 3, 6), in_turns=True)

    ended_equal(2, body)


def test_a_step_that_one_rank_skips_is_a_gradient_of_zero_from_it():
    """Beside two models by hand, whose gradients are averaged."""
    skipped = {3, 4}

    def body(place):
        return alone_steps(place, pliant.bounded_staleness(0), skipped, 8, find_unused_parameters=True)

    def by_hand(place):
        ddp = new_ddp(place, model=Branching)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        for step in range(8):
            x, y = batch(place.rank, step)
            optimizer.zero_grad()
            with ddp.no_sync():
                nn.functional.cross_entropy(ddp(x), y).backward()
            for p in ddp.module.first.parameters():
                p.grad.mul_(0.0 if place.rank == 1 and step in skipped else 0.5)
                place.comm.all_reduce(p.grad).wait()
            optimizer.step()
        return weights(ddp)

    assert torch.allclose(ended_equal(2, body), ended_equal(2, by_hand), atol=1e-6)


@pytest.mark.parametrize("what", ["acco", "sharded_optimizer", "bounded_staleness(0)"])
def test_owners_step_for_a_fused_optimizer_without_the_scale(what):
    """Some when the scaler has left the optimizer already, to which it leaves the scale of a step during that step."""

    def body(place):
        ends = []
        for scaled in (False, True):
            ddp = new_ddp(place)
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9, fused=True)
            scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, enabled=scaled)
            with pliant.relax(ddp, optimizer, what, nonfinite="propagate", timeout_s=20):
                for step in range(6):
                    x, y = batch(place.rank, step)
                    optimizer.zero_grad()
                    scaler.scale(nn.functional.cross_entropy(ddp(x), y)).backward()
                    scaler.step(optimizer)
                    scaler.update()
            ends.append(weights(ddp))
        return ends

    for plain, scaled in pliant.run_world(2, body, timeout_s=60):
        torch.testing.assert_close(scaled, plain, rtol=1e-4, atol=1e-5)


def test_the_rank_that_skips_takes_part_with_weights_that_have_not_moved():
    """Beside two models by hand, whose mean is taken after every second step."""
    skipped = {0, 3, 4}

    def body(place):
        return alone_steps(place, pliant.local_sgd(2), skipped, 8, find_unused_parameters=True)

    def by_hand(place):
        ddp = new_ddp(place, model=Branching)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        for step in range(8):
            if not (place.rank == 1 and step in skipped):
                x, y = batch(place.rank, step)
                optimizer.zero_grad()
                nn.functional.cross_entropy(ddp.module(x), y).backward()
                optimizer.step()
            if step % 2:
                for p in ddp.parameters():
                    place.comm.all_reduce(p.data).wait()
                    p.data.div_(2)
        return weights(ddp)

    assert torch.allclose(ended_equal(2, body), ended_equal(2, by_hand), atol=1e-6)
