import itertools
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


def pytest_sessionfinish():
    """Write what coverage has counted: a worker that does not end within 10 s is killed, if the machine is busy."""
    with suppress(ModuleNotFoundError):
        from coverage import Coverage

        if (counted := Coverage.current()) is not None:
            counted.save()


MANY, ONE_IN = 6, 4
SAMPLED = (
    *("autotune", "collectives", "comm", "curvature", "engine", "processes", "profiling", "recsys", "sharded"),
    "simulator",
)
"""Rooms whose cases are worlds of ranks, of which a law with many takes much of the first tier's time."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Keep every fourth case of a law with many in the first tier; the others are `extended`. With -k all stay."""
    if items and items[0].config.option.keyword:
        return
    laws = {}
    for item in items:
        room = item.path.relative_to(item.config.rootpath).parts[1:2]
        if room and room[0] in SAMPLED and item.get_closest_marker("extended") is None:
            laws.setdefault((item.path, item.originalname), []).append(item)
    for cases in laws.values():
        if len(cases) > MANY:
            for k, item in enumerate(cases):
                if k % ONE_IN:
                    item.add_marker(pytest.mark.extended)
