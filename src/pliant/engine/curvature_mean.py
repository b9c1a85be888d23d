"""Mean of looks at the curvature, block by block, written to where algorithms read it."""

from typing import cast

import torch
from torch import Tensor

from pliant.curvature import shrink_and_clip
from pliant.engine.curvature_requests import CurvatureRequest

__all__ = ["CurvatureMean"]


class CurvatureMean:
    """Exponential mean of the curvature over looks. Algorithms read zeros before the first.

    Args:
        request: What is asked for: blocks, how they are settled, and where they are written.
        device: Where they are.

    """

    def __init__(self, request: CurvatureRequest, device: torch.device) -> None:
        self._request = request
        self.numel = sum(map(len, request.numels.values()))
        self.sums = torch.zeros(self.numel, dtype=torch.float32, device=device)
        """(numel,) means over blocks, of all parameters one after another, not yet corrected for having begun at 0."""
        self.looks = 0

    def add(self, found: Tensor) -> tuple[Tensor | None, Tensor]:
        """Take the means over blocks of one look, (numel,); return what algorithms have read and read now."""
        before = self._settled() if self.looks else None
        self.sums.lerp_(found, 1 - self._request.spec.beta)
        self.looks += 1
        now = self._settled()
        self._write(now)
        return before, now

    def load(self, sums: Tensor, looks: int) -> None:
        """Go on from what was saved."""
        self.sums.copy_(sums)
        self.looks = looks
        if looks:
            self._write(self._settled())

    def forget(self) -> None:
        """Begin anew, with zeros."""
        self.looks = 0
        self._write(self.sums.zero_())

    def by_parameter(self) -> dict[str, float]:
        """Return parameter -> mean over its elements of the positive part."""
        numels = self._request.numels
        wholes = [
            shrink_and_clip(x, numels[name], shrink=1.0, clip=1.0)[0]
            for name, x in self._parts(self._averaged()).items()
        ]
        return dict(zip(numels, cast(list[float], torch.stack(wholes).tolist()), strict=True))

    def _averaged(self) -> Tensor:
        return self.sums / max(1 - self._request.spec.beta**self.looks, 1e-30)

    def _parts(self, x: Tensor) -> dict[str, Tensor]:
        numels = self._request.numels
        return dict(zip(numels, x.split([len(blocks) for blocks in numels.values()]), strict=True))

    def _settled(self) -> Tensor:
        spec, numels = self._request.spec, self._request.numels
        parts = self._parts(self._averaged()).items()
        return torch.cat([shrink_and_clip(x, numels[name], shrink=spec.shrink, clip=spec.clip) for name, x in parts])

    def _write(self, values: Tensor) -> None:
        for name, x in self._parts(values).items():
            for slot in self._request.slots[name]:
                slot.copy_(x)
