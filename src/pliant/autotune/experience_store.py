"""Files of experience: found, checked and written by the first rank of a run."""

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from torch import nn

from pliant.autotune.options import DEFAULT_EXPERIENCE
from pliant.engine.launcher_env import cache_folder
from pliant.network.rank_facts import installed_version
from pliant.planner.experience import Experience, TrainingSetup, load_experience
from pliant.spec import save

__all__ = ["ExperienceStore", "setup_of"]

_log = logging.getLogger("pliant")


def setup_of(
    model: nn.Module,
    optimizer: str,
    quality: float,
    machines: Sequence[str],
    ranks: Sequence[int],
    num_shards: int = 0,
) -> TrainingSetup:
    """Return what an experience of this training holds for.

    Args:
        model: Without its wrapper.
        optimizer: Class of the optimizer.
        quality: How many times the steps a plan may need.
        machines: Names of the hosts.
        ranks: Ranks of each.
        num_shards: Ranks among which parameters are divided; 0 for a whole model.

    """
    own = [p for p in model.parameters() if p.requires_grad]
    return TrainingSetup(
        shapes=tuple(tuple(p.shape) for p in own),
        dtypes=tuple(str(p.dtype).removeprefix("torch.") for p in own),
        optimizer=optimizer,
        ranks=tuple(ranks),
        machines=tuple(machines),
        quality=quality,
        release=installed_version(),
        num_shards=num_shards,
    )


class ExperienceStore:
    """A file or a folder of experience, for one training; used on the first rank alone.

    What is damaged, of another model, of another version of Pliant, or cannot be read or written, is not used: one line
    says so, in the log and in `notes`. A file that the user has named is never replaced if it was refused.

    Args:
        where: A file that ends in .json, a folder, the word "cache", or None for no experience.
        setup: Of the training.

    """

    def __init__(self, where: str | Path | None, setup: TrainingSetup) -> None:
        self.setup = setup
        self.notes: list[str] = []
        """Sentences on where experience came from, and what was refused and why."""
        given = None if where is None or where == DEFAULT_EXPERIENCE else Path(where)
        folder = cache_folder() if where == DEFAULT_EXPERIENCE else given
        self._may_write = folder is not None
        self._is_file = given is not None and (given.suffix == ".json" or os.path.isfile(given))
        self._path = given if given is not None and self._is_file else (folder or Path()) / setup.file_name

    def find(self) -> tuple[Experience | None, bool]:
        """Return what is known of this training, and whether it is of these ranks and machines, and not only a start.

        In a folder, that of these ranks and machines comes first, and then the newest of the same model elsewhere.
        """
        if not self._may_write:
            return None, False
        if (found := self._read(self._path)) is not None:
            return found, found.setup == self.setup
        if self._is_file:
            return None, False
        for path in self._elsewhere():
            if (found := self._read(path)) is not None:
                return found, False
        return None, False

    def write(self, experience: Experience) -> None:
        """Replace what is known; what the disk refuses is said once, and then nothing is written any more."""
        if not self._may_write:
            return
        try:
            save(experience, self._path)
        except (OSError, ValueError) as error:
            self._note(f"The experience was not written: {error}")
            self._may_write = False

    def _elsewhere(self) -> list[Path]:
        try:
            found = [path for path in self._path.parent.glob(f"{self.setup.model_hash}-*.json") if path != self._path]
            return sorted(found, key=lambda path: -path.stat().st_mtime)
        except OSError:
            return []

    def _read(self, path: Path) -> Experience | None:
        try:
            found = load_experience(path, self.setup)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            self._note(f"The experience was refused: {error}")
            self._may_write = not self._is_file
            return None
        others = "of other ranks, machines, shards or quality, a start"
        whose = "of these ranks and machines" if found.setup == self.setup else others
        self.notes.append(f"Experience from {path}, {whose}, written {found.written or 'at an unknown time'}.")
        return found

    def _note(self, sentence: str) -> None:
        _log.warning("auto: %s", sentence)
        self.notes.append(sentence)
