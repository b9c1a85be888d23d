"""PyTorch's own tests of DistributedDataParallel, plain or relaxed by "allreduce": two ranks, Gloo, CPU.

They ship in torch's wheel. Each test runs in two processes that are forked from this one, which has imported torch and
done nothing else. Without names, all tests that use DDP run: `python tests/processes/torch_ddp.py plain` lists, one a
line, what each has come to; `relaxed` does so with relaxed models; `both` writes one table.
"""

import inspect
import io
import os
import sys
import tempfile
import unittest
from contextlib import redirect_stderr
from typing import Any

os.environ.setdefault("BACKEND", "gloo")
os.environ.setdefault("WORLD_SIZE", "2")
os.environ.setdefault("TEMP_DIR", tempfile.mkdtemp())
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed import distributed_test

_TIMEOUT_S = 60

_runs: list[Any] = []
"""Those of this process, open until it ends."""


class Plain(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
    """All of torch's tests, in processes that are forked."""

    relaxed = False

    def setUp(self) -> None:
        super().setUp()
        self._start_processes(torch.multiprocessing.get_context("fork").Process)

    @classmethod
    def _run(cls, *args: Any, **options: Any) -> None:
        if cls.relaxed:
            relax_every_model()
        super()._run(*args, **options)


class Relaxed(Plain):
    """The same, relaxed."""

    relaxed = True


def relax_every_model() -> None:
    """Have every DistributedDataParallel model of this process relaxed as soon as it is made."""
    import pliant

    make = DistributedDataParallel.__init__

    def make_and_relax(self: Any, *args: Any, **options: Any) -> None:
        make(self, *args, **options)
        optimizer = torch.optim.SGD([p for p in self.parameters() if p.requires_grad], lr=0.0)
        _runs.append(pliant.relax(self, optimizer, "allreduce", timeout_s=_TIMEOUT_S))

    DistributedDataParallel.__init__ = make_and_relax


def names() -> list[str]:
    """Return the tests that use DDP and can run without a GPU."""
    tests = inspect.getmembers(distributed_test.DistributedTest._DistTestBase, inspect.isfunction)
    sources = {name: source_of(name) for name, _ in tests if name.startswith("test_")}
    return [
        name
        for name, source in sources.items()
        if any(word in name + source for word in ("DistributedDataParallel", "ddp", "DDP"))
        and not any(word in source for word in ("@skip_if_lt_x_gpu", "@skip_if_no_gpu", "@require_n_gpus"))
    ]


def source_of(name: str) -> str:
    """Return the text of a test, decorators and all."""
    return inspect.getsource(inspect.unwrap(getattr(distributed_test.DistributedTest._DistTestBase, name)))


def run(name: str, *, relaxed: bool) -> tuple[str, str]:
    """Run one test; return passed, skipped or failed, and why."""
    result, said = unittest.TestResult(), io.StringIO()
    with redirect_stderr(said):
        unittest.TestSuite([(Relaxed if relaxed else Plain)(name)]).run(result)
    if result.skipped:
        return "skipped", result.skipped[0][1].splitlines()[0]
    problems = result.errors + result.failures
    if not problems:
        return "passed", ""
    lines = [line for line in problems[0][1].splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line]
    return "failed", (errors or lines)[-1].strip()


def main() -> None:
    """Run what the command line says."""
    how, chosen = sys.argv[1], sys.argv[2:] or names()
    for name in chosen:
        plain = run(name, relaxed=False) if how != "relaxed" else ("", "")
        relaxed = run(name, relaxed=True) if how == "relaxed" or (plain[0] == "passed" and how == "both") else ("", "")
        print(f"{name} | {plain[0]} | {relaxed[0]} | {relaxed[1] or plain[1]}", flush=True)


if __name__ == "__main__":
    main()
