"""Hosts as network namespaces that vanish with the processes that hold them, so that nothing can be left behind."""

import ctypes
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Sequence

__all__ = ["CannotEmulateError", "Namespace", "die_with_parent", "require_tools", "run_tool"]

_PR_SET_PDEATHSIG = 1


class CannotEmulateError(RuntimeError):
    """This machine cannot make emulated hosts; the message says what to install or to allow."""


def require_tools() -> None:
    """Raise CannotEmulateError if a program is missing."""
    packages = {"ip": "iproute2", "tc": "iproute2", "nsenter": "util-linux", "unshare": "util-linux"}
    missing = [tool for tool in packages if shutil.which(tool) is None]
    if missing:
        wanted = sorted({packages[tool] for tool in missing})
        raise CannotEmulateError(
            f"emulated hosts need the programs {', '.join(missing)}; install the Debian packages {', '.join(wanted)}."
        )


def die_with_parent(parent: int) -> Callable[[], None]:
    """Return what a child runs before exec, so that the kernel kills it when its parent dies, however it dies."""
    libc = ctypes.CDLL(None)

    def in_child() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
        if os.getppid() != parent:  # it died in between
            os._exit(1)

    return in_child


def run_tool(argv: Sequence[str], *, text: str = "") -> str:
    """Run a short command and return its output; a failure becomes a sentence."""
    done = subprocess.run(argv, input=text, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode != 0:
        raise CannotEmulateError(f"`{' '.join(argv)}` failed: {done.stderr.strip() or done.returncode}.")
    return done.stdout


class Namespace:
    """A network namespace, alive as long as its holder process is.

    Root makes it directly. Anybody else makes it inside a user namespace, which is shared through `sibling`.
    """

    def __init__(self, name: str, sibling: "Namespace | None" = None) -> None:
        self.name = name
        rootless = os.geteuid() != 0
        if rootless and sibling is not None:
            start = [*sibling.user_prefix(), "unshare", "--net"]
        else:
            start = ["unshare", *(["--user", "--map-root-user"] if rootless else []), "--net"]
        # cat waits for ever on a pipe that is never written: the holder ends with its parent in any case.
        self._holder = subprocess.Popen(
            [*start, "cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            preexec_fn=die_with_parent(os.getpid()),
            start_new_session=True,
        )
        self._rootless = rootless
        self._await_namespace()

    @property
    def pid(self) -> int:
        """Process that holds the namespace."""
        return self._holder.pid

    def user_prefix(self) -> list[str]:
        """Return what a command line begins with to run in the holder's user namespace, in this network or not."""
        return ["nsenter", "--target", str(self.pid), "--user", "--preserve-credentials"] if self._rootless else []

    def prefix(self) -> list[str]:
        """Return what a command line begins with to run on this host."""
        user = ["--user", "--preserve-credentials"] if self._rootless else []
        return ["nsenter", "--target", str(self.pid), *user, "--net", "--"]

    def run(self, *argv: str, text: str = "") -> str:
        """Run a short command on this host."""
        return run_tool([*self.prefix(), *argv], text=text)

    def close(self) -> None:
        """End the holder; the kernel removes the namespace and its interfaces."""
        if self._holder.stdin is not None:
            self._holder.stdin.close()
        self._holder.kill()
        self._holder.wait()
        if self._holder.stderr is not None:
            self._holder.stderr.close()

    def _await_namespace(self) -> None:
        own = os.readlink("/proc/self/ns/net")
        while self._holder.poll() is None:
            try:
                entered = os.readlink(f"/proc/{self.pid}/ns/net") != own
                command = os.readlink(f"/proc/{self.pid}/exe")
            except OSError:
                continue
            if entered and not command.endswith("unshare"):
                return
        error = self._holder.stderr.read().decode().strip() if self._holder.stderr is not None else ""
        self.close()
        raise CannotEmulateError(
            f"this machine does not let {'this user' if self._rootless else 'root'} make a network namespace: {error}; "
            "run as root, or allow user namespaces (sysctl kernel.unprivileged_userns_clone=1)."
        )
