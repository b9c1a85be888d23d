"""Speed of a rank: a host that computes at a part of the others' speed pauses before its backward pass."""

import time
from dataclasses import dataclass

import torch
import torch.distributed as dist

__all__ = ["RankSpeed", "speed_of"]


@dataclass(frozen=True, kw_only=True)
class RankSpeed:
    """Pauses that the speed of the last rank means for this one. They are of sleep, which takes no CPU from others."""

    slow_share: float = 0.0
    """Speed of the last rank, as a share of that of the others; 0: all are alike."""
    pause_s: float = 0.0
    """What this rank adds to the computing of every step."""

    def pause(self) -> None:
        """Be as slow as this rank is. Before backward, so that its gradients come late and messages go on meanwhile."""
        if self.pause_s:
            time.sleep(self.pause_s)

    def own_steps(self, num_steps: int, *, unbounded: bool) -> int:
        """Return this rank's part of as many steps of all ranks: its speed's where none waits for another."""
        if not unbounded or not self.slow_share:
            return num_steps
        size = dist.get_world_size()
        speed = self.slow_share if dist.get_rank() == size - 1 else 1.0
        return max(1, round(num_steps * size * speed / (size - 1 + self.slow_share)))

    def step_s(self, own_steps: int, own_s: float, *, unbounded: bool) -> float:
        """Return the time in which all ranks together have made one step each. Collective.

        Where none waits for another, or ranks are alike: the number of ranks over the sum of their speeds. Otherwise
        all go at the pace of the slow one.
        """
        speeds = torch.zeros(dist.get_world_size(), dtype=torch.float64)
        speeds[dist.get_rank()] = own_steps / own_s
        dist.all_reduce(speeds)
        if self.slow_share and not unbounded:
            return 1 / float(speeds[-1])
        return speeds.numel() / float(speeds.sum())


def speed_of(slow_share: float, alone_s: float) -> RankSpeed:
    """Return this rank's pace, where a step of computing alone takes so long on ranks that are alike."""
    slow = slow_share and dist.get_rank() == dist.get_world_size() - 1
    return RankSpeed(slow_share=slow_share, pause_s=alone_s * (1 / slow_share - 1) if slow else 0.0)
