"""A plan that "auto" has adopted on a sharded model is monitored and guarded as on a whole one."""

import logging
import math

import pytest
import torch
from gpt import adamw, apart, build, loss, take_steps, train, whole
from torch.distributed.device_mesh import init_device_mesh
from worlds import run

import pliant
from pliant.algorithms.plans import plan_of
from pliant.autotune import tuner
from pliant.autotune.quality_probe import QualityProbe
from pliant.comm.fsdp_private import param_groups
from pliant.engine.shard_exchanges import ShardExchanges
from pliant.engine.shard_groups import GroupScatter
from pliant.engine.trial import Snapshot
from pliant.netmodel import PRESETS
from pliant.planner import Gene, Genome
from pliant.spec import Sharded

pytestmark = [pytest.mark.processes]

GENES = Genome(Gene("coded_shards", {"bits": 4, "residual": "full", "weights": "exact"}))
PLAN = plan_of(pliant.sharded(gradients="int4", weights="allreduce"))
"""Of these genes, without sparing small parameters: there are no others here."""
FAILS_AT, STEPS = 16, 60


def adopt():
    """Let tuners of this process adopt the plan without a search."""

    def choose(self, workload, topology, landed, again=None):
        self._genes, self._is_exact = GENES, False
        self._note_fallback(PLAN, self._guard.begin(PLAN))
        return math.nan
        yield

    tuner.AutoTuner._choose = choose
    tuner.probe = lambda comm, **_: None
    tuner.measure_machine = lambda comm, budget_s: PRESETS["cpu-core"]


def hsdp(mesh):
    return {"mesh": init_device_mesh("cpu", mesh, mesh_dim_names=("replica", "shard"))} if mesh else {}


def broken(*_, **__):
    raise ArithmeticError("broken")


def scatters(run_, rank):
    """In all reduce-scatters, on all ranks."""
    GroupScatter.__call__ = broken


def afterwards(run_, rank):
    """On one rank alone, when all that is collective in the step has been done."""
    if rank == 1:
        run_._executor.of(ShardExchanges)[0].after_step = broken


def guarded(sabotage, auto, mesh, steps=STEPS):
    """Train; return where the plan was begun and left, what was said, and how far the model is from plain training."""
    adopt()
    records = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.levelname)
    logging.getLogger("pliant").addHandler(handler)
    model = build(width=8, **hsdp(mesh))
    optimizer = adamw(model)
    began = left = None
    with pliant.relax(model, optimizer, auto, timeout_s=60) as run_:
        for step in range(steps):
            if step == FAILS_AT:
                sabotage(run_, torch.distributed.get_rank())
            take_steps(model, optimizer, 1, first=step)
            torchs = run_.plan.rules[-1].exchange == Sharded()
            if began is None and not torchs:
                began = step
            if began is not None and left is None and torchs:
                left = step
        told, still = run_.tuner.explanation, run_.trial.guards
    plain = build(width=8, **hsdp(mesh))
    return began, left, told, still, records, apart(whole(model), train(plain, adamw(plain), steps))


def spared(run_, rank):
    """Break nothing."""


@pytest.mark.extended
@pytest.mark.parametrize(("sabotage", "mesh"), [(scatters, ()), (afterwards, ()), (afterwards, (2, 2))])
def test_an_error_of_the_plan_does_not_end_the_run(sabotage, mesh):
    found = run(4 if mesh else 2, guarded, sabotage, pliant.Auto(watch=False), mesh, FAILS_AT + 8)
    for began, left, told, still, _, error in found:
        assert began is not None
        assert began < FAILS_AT <= left, told
        assert not still
        assert "has made place for FSDP2's own exchange, and is not tried again" in told
        assert f"rank {1 if sabotage is afterwards else 0}: ArithmeticError: broken" in told
        assert error < 0.2  # some steps are undone
    assert [each[4] for each in found] == [["WARNING"], *[[]] * (len(found) - 1)]
    assert len({each[:3] for each in found}) == 1


@pytest.mark.extended
def test_a_plan_whose_residual_crosses_its_bound_is_given_up_on_all_ranks():
    auto = pliant.Auto(quality=1.1, watch=False, bounds=pliant.QualityBounds(residual=1e-6))
    for began, left, told, still, _, error in run(2, guarded, spared, auto, ()):
        assert left is not None, told
        assert "a plan was given up for FSDP2's own exchange: what error feedback owes was" in told
        assert not still
        assert error < 0.2
        assert began < left


@pytest.mark.extended
def test_a_sound_plan_stays():
    for began, left, told, still, records, _ in run(2, guarded, spared, pliant.Auto(watch=False), ()):
        assert began is not None
        assert left is None, told
        assert still
        assert not records


def put_back() -> bool:
    """Return whether a copy that was made while the root was gathered brings this rank's shards back."""
    model = build(width=8)
    optimizer = adamw(model)
    take_steps(model, optimizer, 1)
    shards = [p.to_local() for group in param_groups(model) for p in group.parameters]
    loss(model, 0)  # after which FSDP2 keeps the root's weights gathered
    before, copy = [shard.clone() for shard in shards], Snapshot(model, [optimizer])
    model.reshard()
    take_steps(model, optimizer, 1)
    moved = not any(map(torch.equal, shards, before))
    copy.restore()
    return moved and all(map(torch.equal, shards, before)) and not copy.spoiled


@pytest.mark.extended
def test_a_copy_made_in_the_midst_of_a_pass_is_of_the_shards():
    assert run(2, put_back) == [True, True]


def probed():
    """Return what the probe sees of a step, and the norm of this rank's whole gradient from the same weights."""
    model = build(width=8)
    optimizer = adamw(model)
    with pliant.relax(model, optimizer, PLAN, timeout_s=60) as run_:
        train(model, optimizer, 3)
        probe = QualityProbe(run_)
        twin = build(lambda module: module, width=8)
        for mine, p in zip(twin.parameters(), model.parameters(), strict=True):
            mine.data.copy_(p.full_tensor())
        probe.begin()
        train(model, optimizer, 1, first=3)
        probe.end()
        figures, owed = probe.figures(), run_.stats()["residual_norm"]
        probe.close()
    loss(twin, 3 * 7).backward()
    norm = sum(float(p.grad.double().square().sum()) for p in twin.parameters()) ** 0.5
    return figures, norm, owed


@pytest.mark.extended
def test_the_probe_sees_whole_gradients_of_a_rank():
    for figures, norm, owed in run(2, probed):
        assert figures.gradient == pytest.approx(norm, rel=1e-3)
        assert figures.residual == pytest.approx(owed / figures.gradient)
        assert 0 < figures.residual < 10
        assert figures.error == 0  # what is lost is in the residual
