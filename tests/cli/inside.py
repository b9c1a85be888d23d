"""The binary's main, run in the process of the tests, which has imported torch already."""

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from subprocess import CompletedProcess
from unittest import mock

from pliant.cli.main import main


def run(*arguments: object) -> CompletedProcess:
    """Return the exit code and what was said. Only what a process of its own makes is not seen."""
    out, error, code = io.StringIO(), io.StringIO(), 0
    argv = ["pliant", *map(str, arguments)]
    with mock.patch.object(sys, "argv", argv), redirect_stdout(out), redirect_stderr(error):
        try:
            main()
        except SystemExit as ended:
            code = ended.code or 0
    return CompletedProcess(argv, code, out.getvalue(), error.getvalue())


__all__ = ["run"]
