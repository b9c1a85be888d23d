"""Which tests cover a file, the likeliest to notice first: a written table. The whole suite is for what they miss."""

_ALGORITHMS = (
    "tests/engine/test_algorithms.py",
    "tests/engine/test_weight_exchange.py",
    "tests/engine/test_guarantees.py",
)
_CODECS = ("tests/codecs", "tests/laws/test_codecs.py", "tests/collectives/test_compressed.py")
_ENGINE = ("tests/engine",)

_TABLE: dict[str, tuple[str, ...]] = {
    "codecs/kernels/lowrank.c": ("tests/codecs", "tests/collectives/test_compressed.py"),
    "codecs/kernels/rows.c": ("tests/recsys/embedding/test_module.py", "tests/codecs"),
    "codecs/kernels/reference_rows.py": ("tests/recsys/embedding/test_module.py", "tests/codecs"),
    "codecs/kernels/native_rows.py": ("tests/recsys/embedding/test_module.py", "tests/codecs"),
    "codecs/": (*_CODECS, "tests/engine/test_algorithms.py"),
    "collectives/gossip.py": ("tests/collectives", *_ALGORITHMS),
    "collectives/clocks.py": ("tests/collectives/test_clocks.py", "tests/engine/test_server_threads.py"),
    "collectives/owner.py": ("tests/collectives", "tests/engine/test_owner_step.py", *_ALGORITHMS),
    "collectives/": ("tests/collectives", *_ALGORITHMS),
    "comm/membership.py": ("tests/comm", "tests/engine/test_elastic.py"),
    "comm/elastic.py": ("tests/comm", "tests/engine/test_elastic.py"),
    "comm/": ("tests/laws/test_comm.py", "tests/comm", "tests/collectives", "tests/engine/test_lifecycle.py", *_ENGINE),
    "algorithms/control.py": ("tests/algorithms", "tests/engine/test_ratio_controller.py", *_ALGORITHMS),
    "algorithms/budgets.py": ("tests/algorithms", "tests/engine/test_tasc.py", "tests/engine/test_ratio_controller.py"),
    "algorithms/link_fit.py": ("tests/algorithms", "tests/engine/test_ratio_controller.py"),
    "algorithms/course.py": ("tests/algorithms", "tests/engine/test_ratio_controller.py", "tests/engine/test_tasc.py"),
    "algorithms/timing.py": ("tests/laws/test_settings.py", *_ALGORITHMS),
    "algorithms/tasc.py": ("tests/engine/test_tasc.py", "tests/algorithms", *_ALGORITHMS),
    "algorithms/owner.py": ("tests/engine/test_owner_step.py", "tests/engine/test_server_threads.py", *_ALGORITHMS),
    "algorithms/demo.py": ("tests/engine/test_decoupled_momentum.py", *_ALGORITHMS),
    "algorithms/": ("tests/laws/test_settings.py", "tests/algorithms", *_ALGORITHMS, *_ENGINE),
    "schedules/": ("tests/schedules", "tests/cli/test_schedule.py"),
    "engine/agreement.py": ("tests/engine/test_guarantees.py", "tests/engine/test_joint_optimizer.py", *_ENGINE),
    "engine/auto.py": ("tests/autotune/test_tuner.py", "tests/autotune/test_trials.py", *_ENGINE),
    "engine/checkpoint.py": ("tests/engine/test_checkpoint.py", "tests/engine/test_loading.py", *_ENGINE),
    "engine/elastic.py": ("tests/engine/test_elastic.py", "tests/comm", *_ENGINE),
    "engine/gradient_exchange.py": ("tests/engine/test_algorithms.py", "tests/engine/test_guarantees.py", *_ENGINE),
    "engine/curvature_monitor.py": ("tests/engine/test_curvature_monitor.py", "tests/engine/test_tasc.py", *_ENGINE),
    "engine/curvature_requests.py": ("tests/engine/test_curvature_monitor.py", "tests/engine/test_tasc.py", *_ENGINE),
    "engine/relaxed_model.py": ("tests/engine/test_relaxed_model.py", "tests/engine/test_kinds.py", *_ENGINE),
    "engine/ratio_controller.py": ("tests/engine/test_ratio_controller.py", "tests/algorithms", *_ENGINE),
    "engine/saving.py": ("tests/engine/test_checkpoint.py", "tests/engine/test_loading.py", *_ENGINE),
    "engine/loading.py": ("tests/engine/test_loading.py", "tests/engine/test_checkpoint.py", *_ENGINE),
    "engine/epoch_sync.py": ("tests/engine/test_elastic.py", "tests/comm", *_ENGINE),
    "engine/joining.py": ("tests/engine/test_elastic.py", "tests/comm", *_ENGINE),
    "engine/loss_scale.py": ("tests/engine/test_loss_scale.py", *_ENGINE),
    "engine/observe.py": ("tests/profiling/test_observe.py", "tests/profiling/test_profile.py", *_ENGINE),
    "engine/optimizer_state.py": ("tests/engine/test_checkpoint.py", "tests/engine/test_loading.py", *_ENGINE),
    "engine/owned_ranges.py": ("tests/engine/test_cut_parameters.py", "tests/engine/test_owner_step.py", *_ENGINE),
    "engine/optimizer_copy.py": (
        "tests/engine/test_cut_parameters.py",
        "tests/engine/test_server_threads.py",
        *_ENGINE,
    ),
    "engine/sparse_gradients.py": ("tests/engine/test_sparse_ways.py", "tests/engine/test_kinds.py", *_ENGINE),
    "engine/owner_step.py": ("tests/engine/test_owner_step.py", "tests/engine/test_cut_parameters.py", *_ENGINE),
    "engine/owners.py": ("tests/engine/test_owner_step.py", *_ENGINE),
    "engine/pilot.py": ("tests/autotune/test_tuner.py", "tests/autotune/test_trials.py", *_ENGINE),
    "engine/record.py": ("tests/profiling/test_profile.py", "tests/profiling/test_observe.py", *_ENGINE),
    "engine/rank_state.py": ("tests/engine/test_checkpoint.py", "tests/engine/test_guarantees.py", *_ENGINE),
    "engine/server_threads.py": ("tests/engine/test_server_threads.py", *_ENGINE),
    "engine/server_shard.py": ("tests/engine/test_server_threads.py", "tests/engine/test_owner_step.py", *_ENGINE),
    "engine/tracer.py": ("tests/profiling/test_profile.py", "tests/profiling/test_observe.py", *_ENGINE),
    "engine/joint_optimizer.py": ("tests/engine/test_joint_optimizer.py", *_ENGINE),
    "engine/tryout.py": ("tests/autotune/test_trials.py", "tests/autotune/test_tuner.py", *_ENGINE),
    "engine/trial.py": ("tests/autotune/test_trials.py", "tests/autotune/test_tuner.py", *_ENGINE),
    "engine/unused_parameters.py": (
        "tests/engine/test_unused_parameters.py",
        "tests/engine/test_relaxed_model.py",
        *_ENGINE,
    ),
    "engine/weight_exchange.py": ("tests/engine/test_weight_exchange.py", *_ENGINE),
    "engine/weight_parts.py": ("tests/engine/test_weight_exchange.py", *_ENGINE),
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
