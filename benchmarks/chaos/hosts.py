"""Emulated hosts whose links can be cut, unplugged and made to lose packets; nothing of them outlives this process."""

import ctypes
import os
import select
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

from pliant.network.namespaces import CannotEmulateError, Namespace, die_with_parent, require_tools
from pliant.network.shaped_link import ShapedLink
from pliant.network.shaping import LEAST_BURST
from pliant.network.tcp_settings import TcpSettings

__all__ = ["Disk", "Hosts", "enter"]

_CORE, _NETWORK = "br0", "10.77.0"
_START_S = 10.0


class Hosts:
    """Namespaces on one switch, one a rank, without limits of rate. Used with `with`.

    Raises:
        CannotEmulateError: This machine cannot make namespaces, or has no firewall that drops packets at random.

    """

    switch = f"{_NETWORK}.254"
    """Where a store lives that is no rank's."""

    def __init__(self, num: int) -> None:
        require_tools()
        self._stack = ExitStack()
        self._hosts: list[Namespace] = []
        try:
            self._switch = Namespace("switch")
            self._stack.callback(self._switch.close)
            self._switch.run("ip", "link", "add", _CORE, "type", "bridge")
            self._switch.run("ip", "link", "set", _CORE, "up")
            self._switch.run("ip", "link", "set", "lo", "up")
            self._switch.run("ip", "addr", "add", f"{self.switch}/24", "dev", _CORE)
            for k in range(num):
                host = Namespace(f"host{k}", self._switch)
                self._stack.callback(host.close)
                self._hosts.append(host)
                ShapedLink(host, self._switch, k, self.address(k), switch=_CORE, burst=LEAST_BURST, tcp=TcpSettings())
            self._restore = self._firewall()
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> "Hosts":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def switch_pid(self) -> int:
        """A process in the switch's namespace."""
        return self._switch.pid

    def pid(self, k: int) -> int:
        """Return a process in a host's namespace."""
        return self._hosts[k].pid

    def address(self, k: int) -> str:
        """Return where a host is reached."""
        return f"{_NETWORK}.{k + 1}"

    def cut(self, here: Iterable[int], there: Iterable[int], *, switch: bool = False) -> None:
        """Let no packet pass between two sets of hosts, nor, with `switch`, between the first and the switch."""
        addresses = [self.address(k) for k in there] + ([self.switch] if switch else [])
        rules = [rule for a in addresses for rule in (f"-A INPUT -s {a} -j DROP", f"-A OUTPUT -d {a} -j DROP")]
        for k in here:
            self._filter(k, rules)

    def lose(self, share: float) -> None:
        """Let every host lose this share of the packets that come, at random."""
        rule = f"-A INPUT -i eth0 -m statistic --mode random --probability {share:.6f} -j DROP"
        for k in range(len(self._hosts)):
            self._filter(k, [rule])

    def unplug(self, k: int) -> None:
        """Take a host's cable out of the switch."""
        self._switch.run("ip", "link", "set", f"port{k}", "down")

    def plug(self, k: int) -> None:
        """Put it in again."""
        self._switch.run("ip", "link", "set", f"port{k}", "up")

    def mend(self) -> None:
        """Put all cables in, and let all packets pass."""
        for k in range(len(self._hosts)):
            self.plug(k)
            self._hosts[k].run(*self._restore, text="*filter\nCOMMIT\n")

    def rules(self, k: int) -> list[str]:
        """Return what a host's firewall does."""
        said = self._hosts[k].run(self._restore[-1].replace("-restore", ""), "-S").splitlines()
        return [line for line in said if not line.startswith("-P")]

    def _filter(self, k: int, rules: Sequence[str]) -> None:
        lines = ["*filter", *rules, "COMMIT", ""]
        self._hosts[k].run(*self._restore, "--noflush", text="\n".join(lines))

    def _firewall(self) -> list[str]:
        """Return the command that loads rules: of the newer tables, or of the older if only those can."""
        rule = "*filter\n-A INPUT -m statistic --mode random --probability 0.5 -j DROP\nCOMMIT\n"
        errors: list[str] = []
        for program in ("iptables-restore", "iptables-legacy-restore"):
            if shutil.which(program) is None:
                continue
            command = ["env", "XTABLES_LOCKFILE=/dev/null", program]
            try:
                self._hosts[0].run(*command, text=rule)
                self._hosts[0].run(*command, text="*filter\nCOMMIT\n")
            except CannotEmulateError as error:
                errors.append(str(error))
            else:
                return command
        raise CannotEmulateError(
            "no firewall here drops packets at random (the program iptables, the module xt_statistic): "
            + (" ".join(errors) or "iptables is not installed.")
        )


class Disk:
    """A disk in memory that only those see who enter its mount namespace. Used with `with`."""

    def __init__(self, folder: Path, num_bytes: int) -> None:
        self.folder = folder
        script = f'mount -t tmpfs -o size={num_bytes} chaos "$1" && echo ready && cat'
        self._holder = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=die_with_parent(os.getpid()),
            start_new_session=True,
        )
        out = self._holder.stdout
        if out is None or not select.select([out], [], [], _START_S)[0] or out.readline() != b"ready\n":
            self._holder.kill()
            said = self._holder.stderr.read().decode().strip() if self._holder.stderr is not None else ""
            self.__exit__()
            raise CannotEmulateError(f"no disk in memory could be mounted at {folder}: {said or 'no answer'}.")

    @property
    def pid(self) -> int:
        """A process in the disk's namespace."""
        return self._holder.pid

    @property
    def path(self) -> Path:
        """Where others find what is on the disk."""
        return Path(f"/proc/{self.pid}/root{self.folder}")

    def fill(self, leave_bytes: int) -> None:
        """Leave so much room and no more."""
        found = os.statvfs(self.path)
        room = found.f_bavail * found.f_frsize - leave_bytes
        (self.path / "ballast").write_bytes(b"\1" * max(0, room))

    def __enter__(self) -> "Disk":
        return self

    def __exit__(self, *_: object) -> None:
        self._holder.kill()
        self._holder.wait()
        for pipe in (self._holder.stdin, self._holder.stdout, self._holder.stderr):
            if pipe is not None:
                pipe.close()


def enter(pid: int, *kinds: str) -> None:
    """Move this process, which has one thread, into namespaces of another: "net", "mnt"."""
    libc = ctypes.CDLL(None, use_errno=True)
    wanted = [*(("user",) if os.geteuid() != 0 else ()), *kinds]
    files = [os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY) for kind in wanted]
    for kind, file in zip(wanted, files, strict=True):
        if libc.setns(file, 0) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter the {kind} namespace of process {pid}")
        os.close(file)
