"""CPU shares of hosts by cgroups, where the machine lets us."""

import os
from pathlib import Path

from pliant.network.namespaces import CannotEmulateError

__all__ = ["CpuLimit"]

_PERIOD_US = 50_000


class CpuLimit:
    """A cgroup that holds a host's processes to a number of CPUs, such as 0.5."""

    def __init__(self, name: str, num_cpus: float) -> None:
        self._folder = _make(f"pliant-{os.getpid()}-{name}", num_cpus)

    def add(self, pid: int) -> None:
        """Put a process, and all it will start, under the limit."""
        (self._folder / "cgroup.procs").write_text(str(pid))

    def close(self) -> None:
        """Remove the cgroup; its processes must have ended."""
        if self._folder.exists():
            self._folder.rmdir()


def _make(name: str, num_cpus: float) -> Path:
    quota_us = round(num_cpus * _PERIOD_US)
    try:
        legacy = Path("/sys/fs/cgroup/cpu")
        if legacy.exists():
            folder = legacy / name
            folder.mkdir()
            (folder / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
            (folder / "cpu.cfs_quota_us").write_text(str(quota_us))
            return folder
        folder = Path("/sys/fs/cgroup") / name
        folder.mkdir()
        (folder / "cpu.max").write_text(f"{quota_us} {_PERIOD_US}")
    except OSError as error:
        raise CannotEmulateError(
            f"a limit of {num_cpus:g} CPUs needs a writable cgroup with the cpu controller ({error}); "
            "run as root on a machine that delegates it, or leave CPU limits out."
        ) from error
    return folder
