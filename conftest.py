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


def pytest_sessionfinish():
    """Write what coverage has counted: a worker that does not end within 10 s is killed, if the machine is busy."""
    with suppress(ModuleNotFoundError):
        from coverage import Coverage

        if (counted := Coverage.current()) is not None:
            counted.save()
