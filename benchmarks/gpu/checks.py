"""What the parts of scripts/gpu find out: one record for each check, one JSON file and one table for all."""

import json
import os
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["Check", "read_checks", "say_error", "write_results"]


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing that was looked at; `passed` is None where nothing was to be held, or it could not be looked at."""

    name: str
    figure: str
    bound: str = ""
    passed: bool | None = None
    note: str = ""

    def say(self) -> None:
        """Print this check as one line of JSON, for the process that waits for it; of several ranks, rank 0 does."""
        if os.environ.get("RANK", "0") == "0":
            print("CHECK " + json.dumps(asdict(self)), flush=True)


def say_error(name: str, error: Exception) -> None:
    """Say that something failed, where it was only to end; where it failed goes to the log."""
    traceback.print_exception(error)
    Check(name=name, figure=f"{type(error).__name__}: {str(error)[:200]}", bound="no error", passed=False).say()


def read_checks(output: str) -> list[Check]:
    """Return the checks among the lines that a part has printed before it ended, or was ended."""
    return [Check(**json.loads(line[6:])) for line in output.splitlines() if line.startswith("CHECK ")]


def write_results(folder: Path, device: str, parts: dict[str, dict], minutes: float) -> None:
    """Write gpu.json and gpu.md.

    Args:
        folder: Folder of both.
        device: Device that was asked for.
        parts: Name -> seconds, how it ended, whether it fits into the time of all, and its checks.
        minutes: Time of all.

    """
    folder.mkdir(parents=True, exist_ok=True)
    not_fit = [name for name, part in parts.items() if not part["fits"]]
    told = {"device": device, "minutes": minutes, "did_not_fit": not_fit, "parts": parts}
    (folder / "gpu.json").write_text(json.dumps(told, indent=1) + "\n")
    head = f"{minutes:g} minutes for all parts; what did not fit: {', '.join(not_fit) or 'nothing'}."
    lines = [head, "", "| part | check | figure | bound | held | note |", "|---|---|---|---|---|---|"]
    for name, part in parts.items():
        lines.append(f"| **{name}** | {part['ended']} | {part['seconds']:.0f} s | | | {part['error']} |")
        for check in part["checks"]:
            held = {True: "yes", False: "**NO**", None: "-"}[check["passed"]]
            cells = name, check["name"], check["figure"], check["bound"], held, check["note"]
            lines.append("| " + " | ".join(cell.replace("|", "/").replace("\n", " ") for cell in cells) + " |")
    (folder / "gpu.md").write_text("\n".join(lines) + "\n")
