"""A copy of the repository in which mutants are tried, one at a time."""

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mutant import Mutant

KERNELS = Path("src/pliant/codecs/kernels")
FAST = ("-m", "not netns and not extended")
_BLAMED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)  # ids may hold blanks


_SANITIZED = "-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What some tests made of a mutant."""

    verdict: str
    """`survived`; `killed`, by a test that fails, by time running out or by a warning of the compiler, which the build
    takes for an error; `unclear`: the test fails without the mutant too."""
    by: str = ""
    """The first test that failed, `time` or `the compiler`."""


class Copy:
    """What git tracks, copied; an environment that finds Pliant there and all else where this Python does.

    Args:
        root: The repository.
        to: An empty folder, or one in which a copy was.
        sanitized: Whether the kernels check their addresses, as in `scripts/test --all`.

    """

    def __init__(self, root: Path, to: Path, *, sanitized: bool = False) -> None:
        self._root, self._place, self._sanitized = root, to / "tree", sanitized
        self.python = to / "environment" / "bin" / "python"
        shutil.rmtree(self._place, ignore_errors=True)
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True).stdout
        for file in filter(None, listed.split("\0")):
            if (root / file).is_file():
                (self._place / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / file, self._place / file)
        if not self.python.exists():
            subprocess.run([sys.executable, "-m", "venv", "--without-pip", self.python.parents[1]], check=True)
        # What a .pth file names is searched, the .pth files there are not: so no editable install is found.
        site = self.python.parents[1] / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
        (site / "copy.pth").write_text(f"{self._place / 'src'}\n{sysconfig.get_path('purelib')}\n")
        self._passes: dict[tuple[str, ...], bool] = {}
        if not self.build():
            raise RuntimeError(f"the kernels of {root} do not compile.")
        relay = self._place / "build" / "dev" / "_delay_relay.so"
        shutil.copy2(relay, self._place / "src" / "pliant" / "network" / relay.name)

    def build(self) -> bool:
        """Compile the kernels, and put them where Pliant looks; return whether they compile."""
        folder = self._place / "build" / "dev"
        flags = _SANITIZED if self._sanitized else ""
        make = ["cmake", "-S", self._place, "-B", folder, f"-DCMAKE_C_FLAGS={flags}"]
        for command in (make, ["cmake", "--build", folder]):
            if subprocess.run(command, capture_output=True).returncode:
                return False
        shutil.copy2(folder / "_cpu.so", self._place / KERNELS / "_cpu.so")
        return True

    def try_out(self, mutant: Mutant, tests: Sequence[str], limit_s: float) -> Outcome:
        """Run tests on a mutant, until one fails or the time is over."""
        path = self._place / mutant.file
        before = path.read_text()
        path.write_text(mutant.apply(before))
        compiled = mutant.file.endswith(".c")
        try:
            if compiled and not self.build():
                return Outcome(verdict="killed", by="the compiler")  # drawn ones compile, with warnings perhaps
            code, out = self._pytest(tests, limit_s)
            if "ERROR: not found: " in out:  # a mutant may change what tests are called, which is no failure
                code, out = self._pytest(list(dict.fromkeys(test.split("::")[0] for test in tests)), limit_s)
        finally:
            path.write_text(before)
            if compiled:
                self.build()
        if (outcome := judged(code, out)).verdict != "killed" or outcome.by == "time":
            return outcome
        # Only the fault of the mutant if the test passes without it. A file that cannot be imported has no "::".
        blamed = (outcome.by,) if outcome.by else tuple(tests)
        if blamed not in self._passes:
            self._passes[blamed] = self._pytest(blamed, limit_s)[0] == 0
        return outcome if self._passes[blamed] else Outcome(verdict="unclear", by=outcome.by)

    def _pytest(self, tests: Sequence[str], limit_s: float) -> tuple[int | None, str]:
        """Return the exit code, None if the time was over, and what pytest printed."""
        named = self._place / "tests.txt"  # there may be thousands
        named.write_text("".join(f"{test}\n" for test in tests))
        command = [self.python, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *FAST, f"@{named}"]
        # Two texts of one length within one second must not share a compiled file.
        settings = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
        settings.pop("PYTHONPATH", None)
        if self._sanitized:
            libraries = [_found(["gcc", f"-print-file-name={name}"]) for name in ("libasan.so", "libubsan.so")]
            settings |= {"ASAN_OPTIONS": "detect_leaks=0", "LD_PRELOAD": " ".join(libraries)}
        with subprocess.Popen(
            command,
            cwd=self._place,
            env=settings,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as process:
            try:
                out, _ = process.communicate(timeout=limit_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
                return None, ""
            return process.returncode, out


def _found(command: Sequence[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def judged(code: int | None, out: str) -> Outcome:
    """Return what pytest's exit code and words say of a mutant: any end but a pass, or a misuse of pytest, kills it.

    Raises:
        RuntimeError: If pytest has run no tests for a reason that is no mutant's.

    """
    if code is None:
        return Outcome(verdict="killed", by="time")
    if code == 0:
        return Outcome(verdict="survived")
    if code == 5 or (code == 4 and "file or directory not found" in out):
        raise RuntimeError(f"pytest found no tests: {out[-500:]}")
    blamed = _BLAMED.search(out)
    return Outcome(verdict="killed", by=blamed[1] if blamed else "")
