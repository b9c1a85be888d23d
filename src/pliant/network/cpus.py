"""CPU shares of hosts by cgroups, where the machine lets us."""

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from pliant.network.namespaces import CannotEmulateError

__all__ = ["CpuLimit"]

_PERIOD_US = 50_000
_LEGACY = Path("/sys/fs/cgroup/cpu")
_UNIFIED = Path("/sys/fs/cgroup")


class CpuLimit:
    """A cgroup that holds a host's processes to a number of CPUs, such as 0.5."""

    def __init__(self, num_cpus: float) -> None:
        parent = _LEGACY if _LEGACY.exists() else _UNIFIED
        _sweep(parent)
        try:
            self._folder = Path(tempfile.mkdtemp(prefix=f"pliant-{os.getpid()}-", dir=parent))
        except OSError as error:
            raise _refusal(num_cpus, error) from error
        try:
            for file, text in _settings(parent == _LEGACY, num_cpus).items():
                (self._folder / file).write_text(text)
        except OSError as error:
            self.close()
            raise _refusal(num_cpus, error) from error

    def join(self) -> None:
        """Put the calling process, and all it will start, under the limit: a child calls this before exec."""
        (self._folder / "cgroup.procs").write_text(str(os.getpid()))

    def close(self) -> None:
        """Remove the cgroup; its processes must have ended."""
        with suppress(FileNotFoundError):
            self._folder.rmdir()


def _settings(legacy: bool, num_cpus: float) -> dict[str, str]:
    quota_us = round(num_cpus * _PERIOD_US)
    if legacy:
        return {"cpu.cfs_period_us": str(_PERIOD_US), "cpu.cfs_quota_us": str(quota_us)}
    return {"cpu.max": f"{quota_us} {_PERIOD_US}"}


def _sweep(parent: Path) -> None:
    """Remove what runs left that SIGKILL ended: a cgroup, unlike a namespace, does not go with its processes."""
    for folder in parent.glob("pliant-*-*"):
        pid = folder.name.split("-")[1]
        if pid.isdigit() and not Path("/proc", pid).exists():
            with suppress(OSError):  # still in use, or another user's
                folder.rmdir()


def _refusal(num_cpus: float, error: OSError) -> CannotEmulateError:
    return CannotEmulateError(
        f"a limit of {num_cpus:g} CPUs needs a writable cgroup with the cpu controller ({error}); "
        "run as root on a machine that delegates it, or leave CPU limits out."
    )
