"""Machines that cannot emulate hosts say what they lack."""

import pytest

from pliant.network import namespaces
from pliant.network.namespaces import CannotEmulateError, require_tools


def test_another_system_than_linux_is_told_so(monkeypatch):
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(CannotEmulateError, match=r"need Linux, .* but this is darwin"):
        require_tools()


def test_a_program_that_is_missing_is_named_with_its_package(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda tool: None if tool == "tc" else tool)
    with pytest.raises(CannotEmulateError, match="need the programs tc; install the Debian packages iproute2"):
        require_tools()


def test_a_program_that_does_not_end_is_named(monkeypatch):
    monkeypatch.setattr(namespaces, "_TOOL_S", 0.05)
    with pytest.raises(CannotEmulateError, match=r"`tail -f /dev/null` did not end within 0\.05 s; the machine may be"):
        namespaces.run_tool(["tail", "-f", "/dev/null"])
