"""Start of a Python process under `pliant run`: a copy of this file is the process's `sitecustomize`.

It lies in a folder of its own, which `pliant run` puts first in PYTHONPATH; the environment's own `sitecustomize`, if
there is one, runs as always. Nothing is imported before the script imports torch.
"""

import importlib
import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path

__all__ = ["begin"]


def begin(folder: Path) -> None:
    """Run the `sitecustomize` that this one hides, and wait for torch to be imported, whatever that one raises.

    Args:
        folder: Folder of this run, with its options; the verdict is written there.

    """
    try:
        _run_hidden(folder)  # its errors are Python's to report, as without Pliant
    finally:
        _wait_for_torch(folder)


def _run_hidden(folder: Path) -> None:
    rest = [entry for entry in sys.path if entry != str(folder)]
    hidden = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if hidden is not None and hidden.loader is not None:
        module = sys.modules["sitecustomize"] = importlib.util.module_from_spec(hidden)
        hidden.loader.exec_module(module)


def _wait_for_torch(folder: Path) -> None:
    try:
        from pliant.attachment.imports import after_import
    except ImportError:
        (folder / "without_pliant").write_text(sys.executable, encoding="utf-8")
        return

    def attach() -> None:
        import multiprocessing  # torch has it already

        if not folder.exists():  # the command has ended, and left this process behind
            return
        from pliant.attachment.attachment import Attachment

        if "RANK" in os.environ and multiprocessing.parent_process() is None:
            # A rank: what it will need is imported before its first step, whose time is the script's.
            for name in ("pliant.attachment.course", "pliant.algorithms.executors.all_reduce"):
                importlib.import_module(name)
        Attachment(folder).begin()

    after_import("torch", attach)


if __name__ == "sitecustomize":
    begin(Path(__file__).parent)
