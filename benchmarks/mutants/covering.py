"""Which tests cover a file, the likeliest to notice first: a written table. The whole suite is for what they miss."""

_ALGORITHMS = ("tests/engine/test_algorithms.py", "tests/engine/test_weights.py", "tests/engine/test_guarantees.py")
_CODECS = ("tests/codecs", "tests/laws/test_codecs.py", "tests/collectives/test_compressed.py")
_ENGINE = ("tests/engine",)

_TABLE: dict[str, tuple[str, ...]] = {
    "codecs/kernels/lowrank.c": ("tests/codecs", "tests/collectives/test_compressed.py"),
    "codecs/kernels/rows.c": ("tests/recsys/embedding/test_module.py", "tests/codecs"),
    "codecs/kernels/twins_rows.py": ("tests/recsys/embedding/test_module.py", "tests/codecs"),
    "codecs/kernels/native_rows.py": ("tests/recsys/embedding/test_module.py", "tests/codecs"),
    "codecs/": (*_CODECS, "tests/engine/test_algorithms.py"),
    "collectives/gossip.py": ("tests/collectives", *_ALGORITHMS),
    "collectives/clocks.py": ("tests/collectives/test_clocks.py", "tests/engine/test_stale.py"),
    "collectives/owner.py": ("tests/collectives", "tests/engine/test_owner.py", *_ALGORITHMS),
    "collectives/": ("tests/collectives", *_ALGORITHMS),
    "comm/membership.py": ("tests/comm", "tests/engine/test_elastic.py"),
    "comm/elastic.py": ("tests/comm", "tests/engine/test_elastic.py"),
    "comm/": ("tests/laws/test_comm.py", "tests/comm", "tests/collectives", "tests/engine/test_lifecycle.py", *_ENGINE),
    "algorithms/control.py": ("tests/algorithms", "tests/engine/test_dynamic.py", *_ALGORITHMS),
    "algorithms/budgets.py": ("tests/algorithms", "tests/engine/test_tasc.py", "tests/engine/test_dynamic.py"),
    "algorithms/linkfit.py": ("tests/algorithms", "tests/engine/test_dynamic.py"),
    "algorithms/course.py": ("tests/algorithms", "tests/engine/test_dynamic.py", "tests/engine/test_tasc.py"),
    "algorithms/timing.py": ("tests/laws/test_settings.py", *_ALGORITHMS),
    "algorithms/tasc.py": ("tests/engine/test_tasc.py", "tests/algorithms", *_ALGORITHMS),
    "algorithms/owner.py": ("tests/engine/test_owner.py", "tests/engine/test_stale.py", *_ALGORITHMS),
    "algorithms/demo.py": ("tests/engine/test_demo.py", *_ALGORITHMS),
    "algorithms/": ("tests/laws/test_settings.py", "tests/algorithms", *_ALGORITHMS, *_ENGINE),
    "schedules/": ("tests/schedules", "tests/cli/test_schedule.py"),
    "engine/agreement.py": ("tests/engine/test_guarantees.py", "tests/engine/test_together.py", *_ENGINE),
    "engine/auto.py": ("tests/autotune/test_auto.py", "tests/autotune/test_trials.py", *_ENGINE),
    "engine/checkpoint.py": ("tests/engine/test_checkpoint.py", "tests/engine/test_load_run.py", *_ENGINE),
    "engine/elastic.py": ("tests/engine/test_elastic.py", "tests/comm", *_ENGINE),
    "engine/exchange.py": ("tests/engine/test_algorithms.py", "tests/engine/test_guarantees.py", *_ENGINE),
    "engine/feel.py": ("tests/engine/test_feel.py", "tests/engine/test_tasc.py", *_ENGINE),
    "engine/felt.py": ("tests/engine/test_feel.py", "tests/engine/test_tasc.py", *_ENGINE),
    "engine/gate.py": ("tests/engine/test_gate.py", "tests/engine/test_kinds.py", *_ENGINE),
    "engine/governor.py": ("tests/engine/test_dynamic.py", "tests/algorithms", *_ENGINE),
    "engine/keeping.py": ("tests/engine/test_checkpoint.py", "tests/engine/test_load_run.py", *_ENGINE),
    "engine/loading.py": ("tests/engine/test_load_run.py", "tests/engine/test_checkpoint.py", *_ENGINE),
    "engine/meeting.py": ("tests/engine/test_elastic.py", "tests/comm", *_ENGINE),
    "engine/joining.py": ("tests/engine/test_elastic.py", "tests/comm", *_ENGINE),
    "engine/lossscale.py": ("tests/engine/test_loss_scale.py", *_ENGINE),
    "engine/observe.py": ("tests/profiling/test_observe.py", "tests/profiling/test_record.py", *_ENGINE),
    "engine/optstate.py": ("tests/engine/test_checkpoint.py", "tests/engine/test_load_run.py", *_ENGINE),
    "engine/owned.py": ("tests/engine/test_owner.py", *_ENGINE),
    "engine/owners.py": ("tests/engine/test_owner.py", *_ENGINE),
    "engine/pilot.py": ("tests/autotune/test_auto.py", "tests/autotune/test_trials.py", *_ENGINE),
    "engine/record.py": ("tests/profiling/test_record.py", "tests/profiling/test_observe.py", *_ENGINE),
    "engine/resume.py": ("tests/engine/test_checkpoint.py", "tests/engine/test_guarantees.py", *_ENGINE),
    "engine/served.py": ("tests/engine/test_stale.py", *_ENGINE),
    "engine/shard.py": ("tests/engine/test_stale.py", "tests/engine/test_owner.py", *_ENGINE),
    "engine/tape.py": ("tests/profiling/test_record.py", "tests/profiling/test_observe.py", *_ENGINE),
    "engine/together.py": ("tests/engine/test_together.py", *_ENGINE),
    "engine/tryout.py": ("tests/autotune/test_trials.py", "tests/autotune/test_auto.py", *_ENGINE),
    "engine/trial.py": ("tests/autotune/test_trials.py", "tests/autotune/test_auto.py", *_ENGINE),
    "engine/watch.py": ("tests/engine/test_watch.py", "tests/engine/test_gate.py", *_ENGINE),
    "engine/weights.py": ("tests/engine/test_weights.py", *_ENGINE),
    "engine/weightparts.py": ("tests/engine/test_weights.py", *_ENGINE),
    "engine/": ("tests/engine/test_algorithms.py", "tests/engine/test_guarantees.py", *_ENGINE),
}


def covering(file: str) -> tuple[str, ...]:
    """Return what covers a file of src/pliant: files and folders of tests, without repeats.

    Raises:
        ValueError: If the file is in none of the folders that are mutated.

    """
    inside = file.removeprefix("src/pliant/")
    found = [key for key in _TABLE if inside == key or (key.endswith("/") and inside.startswith(key))]
    if not found:
        raise ValueError(f"no tests are named for {file}; add its folder to covering.py.")
    return tuple(dict.fromkeys(_TABLE[max(found, key=len)]))
