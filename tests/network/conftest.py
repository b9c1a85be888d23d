"""What tests of emulated hosts share."""

import uuid

import pytest

from network.leftovers import MARK
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


@pytest.fixture
def mark(monkeypatch) -> str:
    """Mark all processes that the test starts."""
    value = uuid.uuid4().hex
    monkeypatch.setenv(MARK, value)
    return value
