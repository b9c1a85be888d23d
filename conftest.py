import gc
import itertools
from collections import Counter
from contextlib import suppress

import pytest
import torch
from hypothesis import HealthCheck, settings

settings.register_profile(
    "pliant",
    deadline=None,  # two cores and real sockets: a slow example is not a wrong one
    max_examples=25,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("pliant")


@pytest.fixture(autouse=True)
def _one_thread_and_a_seed():
    torch.set_num_threads(1)
    torch.manual_seed(0)


_folders = itertools.count()


@pytest.fixture(autouse=True)
def _no_experience(monkeypatch, tmp_path_factory):
    """Let each test begin without what others, or the user, have kept in the cache folder; it is made when used."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / f"cache{next(_folders)}"))


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Let the garbage collector rest, and spare it what lives as long as the process: torch, and all tests."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_sessionfinish():
    """Write what coverage has counted: a worker that does not end within 10 s is killed, if the machine is busy."""
    with suppress(ModuleNotFoundError):
        from coverage import Coverage

        if (counted := Coverage.current()) is not None:
            counted.save()


MANY = 2
ROOMS = (
    *("autotune", "collectives", "comm", "curvature", "engine", "processes", "profiling", "recsys", "sharded"),
    "simulator",
)
ONE_IN = {**dict.fromkeys(ROOMS, 12), "test_order.py": 4}
"""Rooms, and a file, whose cases are worlds of ranks, of which a law with many takes much of the first tier's time.

Of so many cases one stays.
"""


def sample(cases, one_in):
    """Return one case in so many, which together have each value of each argument about equally often.

    A plain stride would meet only some values where it and their number have a common divisor. Laws begin at different
    cases, so that of one table each has its own rows.
    """
    begin = len(cases[0].originalname)
    left = [case for k in range(one_in) for case in cases[(begin + k) % one_in :: one_in]]
    met, kept = Counter(), []
    for _ in range(0, len(cases), one_in):
        kept.append(min(left, key=lambda case: sum(met[value] for value in case.callspec.indices.items())))
        left.remove(kept[-1])
        met.update(kept[-1].callspec.indices.items())
    return kept


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Keep a sample of the cases of a law with many in the first tier; the others are `extended`. With -k all stay."""
    if items and items[0].config.option.keyword:
        return
    laws = {}
    for item in items:
        place = item.path.relative_to(item.config.rootpath).parts[1:3]
        one_in = next((ONE_IN[name] for name in place if name in ONE_IN), 0)
        if one_in and hasattr(item, "callspec") and item.get_closest_marker("extended") is None:
            laws.setdefault((one_in, item.path, item.originalname), []).append(item)
    for (one_in, *_), cases in laws.items():
        if len(cases) > MANY:
            kept = set(sample(cases, one_in))
            for item in cases:
                if item not in kept:
                    item.add_marker(pytest.mark.extended)
