"""What tests of emulated hosts share."""

import pytest

from pliant.network import CannotEmulateError, emulate_cluster
from pliant.spec import Host, Topology


@pytest.fixture(scope="session")
def emulating() -> None:
    """Skip where this machine cannot emulate hosts."""
    try:
        with emulate_cluster(Topology(hosts=(Host(name="a"),)), check=False):
            pass
    except CannotEmulateError as error:
        pytest.skip(f"this machine cannot emulate hosts: {error}")
