"""Hosts as network namespaces that vanish with the processes that hold them, so that nothing can be left behind."""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

__all__ = ["CannotEmulateError", "Namespace", "die_with_parent", "require_tools", "run_tool"]

_PR_SET_PDEATHSIG = 1
_TOOL_S = 30.0


class CannotEmulateError(RuntimeError):
    """This machine cannot make emulated hosts; the message says what to install or to allow."""


def require_tools() -> None:
    """Raise CannotEmulateError if a program is missing."""
    if sys.platform != "linux":
        raise CannotEmulateError(
            f"emulated hosts need Linux, whose network namespaces they are, but this is {sys.platform}; run this in a "
            "Linux machine or container."
        )
    packages = {
        "ip": "iproute2",
        "tc": "iproute2",
        "nsenter": "util-linux",
        "unshare": "util-linux",
        "mount": "mount",
    }
    missing = [tool for tool in packages if shutil.which(tool) is None]
    if missing:
        wanted = sorted({packages[tool] for tool in missing})
        raise CannotEmulateError(
            f"emulated hosts need the programs {', '.join(missing)}; install the Debian packages {', '.join(wanted)}."
        )


def die_with_parent(parent: int) -> Callable[[], None]:
    """Return what a child runs before exec, so that the kernel kills it when its parent dies, however it dies.

    Parent is the thread that starts the child: it must live as long as the child shall.
    """
    libc = ctypes.CDLL(None)

    def in_child() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
        if os.getppid() != parent:  # it died in between
            os._exit(1)

    return in_child


def run_tool(argv: Sequence[str], *, text: str = "") -> str:
    """Run a short command and return its output; a failure becomes a sentence."""
    try:
        done = subprocess.run(argv, input=text, capture_output=True, text=True, timeout=_TOOL_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise CannotEmulateError(
            f"`{' '.join(argv)}` did not end within {_TOOL_S:g} s; the machine may be busy: wait, and try again."
        ) from error
    if done.returncode != 0:
        raise CannotEmulateError(f"`{' '.join(argv)}` failed: {done.stderr.strip() or done.returncode}.")
    return done.stdout


class Namespace:
    """A network namespace with a process namespace, alive as long as its holder process is.

    The holder is the first process of the process namespace: when it ends, the kernel kills all others in there, even
    those that left their session. It ends with its parent, however that dies. Root makes namespaces directly; other
    users make them inside a user namespace, which the hosts of a cluster share through `sibling`.
    """

    def __init__(self, name: str, sibling: "Namespace | None" = None) -> None:
        self.name = name
        self._rootless = os.geteuid() != 0
        user = ["--user", "--map-root-user"] if self._rootless and sibling is None else []
        enter = sibling.user_prefix() if sibling is not None else []
        # cat holds, says that it is there by repeating a line, and ends when its input does, which is with its parent.
        self._holder = subprocess.Popen(
            [*enter, "unshare", *user, "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=die_with_parent(os.getpid()),
            process_group=0,  # see Note [one session]
        )
        try:
            self._await_holder()
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """Process that holds the namespace."""
        return self._holder.pid

    def user_prefix(self) -> list[str]:
        """Return what a command line begins with to run in the holder's user namespace, but in no other of its."""
        return ["nsenter", "--target", str(self.pid), *self._user(), "--"] if self._rootless else []

    def prefix(self) -> list[str]:
        """Return what a command line begins with to see this host's network."""
        return ["nsenter", "--target", str(self.pid), *self._user(), "--net", "--"]

    def rank_prefix(self) -> list[str]:
        """Return what a command line begins with to live on this host: its network, and its processes alone.

        nsenter stays as the parent, in our process namespace. It is to be started with SIGTERM ignored, so that it can
        wait for a rank that ends in its own time; `env` gives the rank the default back.
        """
        processes = f"--pid=/proc/{self.pid}/ns/pid_for_children"
        enter = ["nsenter", "--target", str(self.pid), *self._user(), "--net", "--mount", processes, "--"]
        return [*enter, "env", f"--chdir={Path.cwd()}", "--default-signal=TERM", "--"]

    def run(self, *argv: str, text: str = "") -> str:
        """Run a short command in this host's network."""
        return run_tool([*self.prefix(), *argv], text=text)

    def show(self, source: Path, target: Path) -> None:
        """Replace one file by another, for the ranks on this host only, if it exists."""
        if target.exists():
            run_tool([*self.rank_prefix(), "mount", "--bind", str(source), str(target)])

    def close(self) -> None:
        """End the holder; the kernel ends every process on this host and removes its interfaces."""
        self._holder.kill()
        self._holder.wait()
        for pipe in (self._holder.stdin, self._holder.stdout, self._holder.stderr):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()

    def _user(self) -> list[str]:
        return ["--user", "--preserve-credentials"] if self._rootless else []

    def _await_holder(self) -> None:
        holder = self._holder
        if holder.stdin is None or holder.stdout is None or holder.stderr is None:
            raise RuntimeError(f"the holder of {self.name} was started without pipes, but it answers through them.")
        with suppress(BrokenPipeError):
            holder.stdin.write(b"ready\n")
            holder.stdin.flush()
        if holder.stdout.readline() != b"ready\n":
            who = "this user" if self._rootless else "root"
            cure = (
                "run as root, or allow user namespaces (sysctl kernel.unprivileged_userns_clone=1 on Debian, "
                "kernel.apparmor_restrict_unprivileged_userns=0 on Ubuntu)"
                if self._rootless
                else "in a container, allow CAP_SYS_ADMIN and CAP_NET_ADMIN (docker run --privileged)"
            )
            raise CannotEmulateError(
                f"this machine does not let {who} make namespaces: {holder.stderr.read().decode().strip()}; {cure}."
            )
