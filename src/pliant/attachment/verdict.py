"""Options of `pliant run`, and its verdict: the records that the command and the script's processes share. No torch."""

import json
import math
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from pliant.spec.files import write_atomically
from pliant.spec.units import format_bytes, format_time

__all__ = ["OPTIONS_FILE", "OTHER_RANK_FILE", "QUALITIES", "VERDICT_FILE", "RunOptions", "RunVerdict"]

QUALITIES = MappingProxyType({"exact": 1.0, "1%": 1.1, "fast": 1.5})
"""Quality in words -> how many times the steps to DDP's loss a plan may need; 1 admits exact plans alone."""

OPTIONS_FILE, VERDICT_FILE, OTHER_RANK_FILE = "options.json", "verdict.json", "other_rank"


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options that the script's processes need to know."""

    quality: str = "1%"
    """A word of `QUALITIES`."""
    unmeasured: bool = False
    """Whether to try, with any optimizer, what was measured with SGD only."""
    experience: str = "cache"
    """File or folder of experience, as of `pliant.Auto`; "none" for none."""
    plan_file: str = ""
    """File that the command writes the plan to, as the user typed it; "" for none."""

    def __post_init__(self) -> None:
        if self.quality not in QUALITIES:
            raise ValueError(f"--quality is {self.quality!r}, but it can be {', '.join(QUALITIES)}.")

    @property
    def budget(self) -> float:
        """Most times the steps of DDP that a plan may need to DDP's loss."""
        return QUALITIES[self.quality]

    def save(self, folder: Path) -> None:
        """Write the options into the folder of a run."""
        write_atomically(folder / OPTIONS_FILE, json.dumps(asdict(self)))

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read the options of a run again."""
        return cls(**json.loads((folder / OPTIONS_FILE).read_text(encoding="utf-8")))


@dataclass(kw_only=True)
class RunVerdict:
    """State of a run, as its first rank knows it; written again and again until the script ends."""

    reason: str = ""
    """Sentence on why plain DDP or FSDP2 was kept, or nothing was attached; "" if a plan was adopted."""
    how: str = ""
    """Way in which the model was wrapped: 'DDP' or 'FSDP2'."""
    quality: str = ""
    optimizer: str = ""
    num_ranks: int = 0
    num_steps: int = 0
    """Optimizer steps of the script."""
    baseline_step_s: float | None = None
    """Median step of the script without Pliant, measured first."""
    remembered: bool = False
    """Whether that is an earlier run's, whose experience holds: this one has made no plain step that was timed."""
    step_s: float | None = None
    """Median step after the decision."""
    steps_ratio: float = 1.0
    """Times the steps of exact training that the plan is taken to need."""
    waited_s: float | None = None
    """Seconds of a step that the first rank waited for exchanges."""
    sent_bytes: float | None = None
    """Bytes that the first rank sent in a step."""
    baseline_sent_bytes: float | None = None
    """The same for plain DDP or FSDP2, by formula."""
    search_s: float = 0.0
    """Seconds from the end of the plain steps, or from the start where none are made, to the decision."""
    search_steps: int = 0
    """Steps that the script made in them."""
    decided: bool = False
    plan: dict[str, Any] | None = None
    """Plan that was adopted; None if none was."""
    plan_text: str = ""
    line: str = ""
    """Line to paste into the script."""
    explanation: str = ""
    frontier: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    frontier_text: str = ""

    @property
    def steps_speedup(self) -> float | None:
        """Ratio of the step time without Pliant over that with it."""
        if self.baseline_step_s is None or not self.step_s:
            return None
        return self.baseline_step_s / self.step_s

    @property
    def speedup(self) -> float | None:
        """Ratio of the times to the loss of plain DDP: that of step times over that of steps."""
        return None if self.steps_speedup is None else self.steps_speedup / self.steps_ratio

    @property
    def sentence(self) -> str:
        """The verdict in one sentence."""
        if self.plan is None or self.speedup is None:
            return self.reason or "The script ended before a plan was chosen; let it make more steps."
        told = (
            f"{self.speedup:.2f}x sooner to {self.how}'s loss: a step takes {format_time(self.step_s or math.nan)} "
            f"instead of {format_time(self.baseline_step_s or math.nan)} ({self.steps_speedup:.2f}x), counting "
            f"{self.steps_ratio:.2f} times the steps."
        )
        return f"{self.reason} {told}" if self.reason else told  # such as of a script that has failed since

    def save(self, folder: Path) -> None:
        """Write it into the folder of a run."""
        write_atomically(folder / VERDICT_FILE, json.dumps(asdict(self)))

    @classmethod
    def load(cls, folder: Path) -> Self | None:
        """Read it again from there; None if no process has written one."""
        path = folder / VERDICT_FILE
        if not path.exists():
            return None
        return cls(**json.loads(path.read_text(encoding="utf-8")))

    def as_json(self) -> str:
        """Return what `--json` writes: all fields, with the speed-up and the sentence."""
        body = {each.name: getattr(self, each.name) for each in fields(self)}
        return json.dumps({"verdict": self.sentence, "speedup": self.speedup, **body}, indent=1) + "\n"

    def text(self) -> str:
        """Return the verdict in plain words: what a step took, waited and sent, what was chosen, and why."""
        lines = [f"Verdict: {self.sentence}"]
        if self.baseline_step_s is not None:
            sent = "" if self.baseline_sent_bytes is None else f", and sends {format_bytes(self.baseline_sent_bytes)}"
            takes = "in an earlier run a step took" if self.remembered else "a step takes"
            lines.append(
                f"  {self.how} alone: {takes} {format_time(self.baseline_step_s)}{sent} per rank "
                f"({self.num_ranks} ranks, {self.optimizer})."
            )
        if self.plan is None and self.step_s is not None:
            lines.append(f"  after the decision: a step takes {format_time(self.step_s)}.")
        if self.plan is not None and self.step_s is not None:
            waited = "" if self.waited_s is None else f", waits {format_time(self.waited_s)}"
            sent = "" if self.sent_bytes is None else f", sends {format_bytes(self.sent_bytes)}"
            lines.append(f"  with Pliant: a step takes {format_time(self.step_s)}{waited}{sent}.")
        if self.search_steps:
            lines.append(
                f"  the search took {format_time(self.search_s)}, in which {self.search_steps} steps were made."
            )
        if self.plan is not None:
            lines.append(f"  chosen (quality {self.quality}): {self.plan_text}")
        lines += [f"  why: {self.explanation.splitlines()[0]}"] if self.explanation else []
        told = ("Experience from", "The experience")
        lines += [f"  {line}" for line in self.explanation.splitlines() if line.startswith(told)]
        lines += [self.frontier_text] if self.frontier_text else []
        lines += [f"Line to paste: {self.line}"] if self.line else []
        return "\n".join(lines)
