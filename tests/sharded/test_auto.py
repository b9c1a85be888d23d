"""Choice by "auto" on sharded models: torch's own FSDP2 step is measured, and settings of shards held against it."""

import pytest
from gpt import adamw, apart, build, take_steps, train, whole
from torch.distributed.device_mesh import init_device_mesh
from worlds import run

import pliant
from pliant.autotune import prospects, searches
from pliant.spec import Sharded, to_json

pytestmark = [pytest.mark.processes]

MOST_STEPS = 400


ENDS = ("FSDP2's own exchange", "which is not enough", "none of the others was better")  # as the machine has it


def tuned(mesh: tuple[int, ...]) -> tuple[str, str, bool, float, bool]:
    searches._SAMPLES, prospects._CANDIDATES = 12, 2  # predict few plans
    options = {"mesh": init_device_mesh("cpu", mesh, mesh_dim_names=("replica", "shard"))} if mesh else {}
    model = build(width=8, **options)
    optimizer = adamw(model)
    auto = pliant.Auto(max_trials=1, max_seconds=1.0, probe_s=0.2, watch=False)
    with pliant.relax(model, optimizer, auto, timeout_s=60) as run_:
        began = run_.plan.rules[0].exchange == Sharded()
        steps = 0
        while ("still" in run_.tuner.explanation) and steps < MOST_STEPS:
            take_steps(model, optimizer, 1, first=steps)
            steps += 1
        take_steps(model, optimizer, 3, first=steps)
        steps += 3
        told, plan = run_.tuner.explanation, run_.plan
    got = whole(model)
    model = build(width=8, **options)
    plain = train(model, adamw(model), steps)
    sharded = all(isinstance(rule.exchange, Sharded) for rule in plan.rules)
    return told, to_json(plan), began and sharded, apart(got, plain), steps < MOST_STEPS


@pytest.mark.parametrize(
    ("size", "mesh"), [(2, ()), *(pytest.param(*row, marks=pytest.mark.extended) for row in ((4, ()), (4, (2, 2))))]
)
def test_auto_measures_torchs_own_step_and_keeps_an_exact_plan(size, mesh):
    results = run(size, tuned, mesh)
    for told, plan, sharded, error, in_time in results:
        assert in_time, told
        assert sharded, plan
        assert any(said in told for said in ENDS), told
        assert plan == results[0][1]
        assert error < 0.02, told  # exact in 32 bits, or rounded to 16
