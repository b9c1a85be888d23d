"""The list of kills of `async_faults.py`, drawn from a seed before any is run. No torch."""

import random
from dataclasses import dataclass

RANKS = 4
ALGORITHMS = {
    "gossip(free=1)": True,
    "choco(free=1)": True,
    "async_average": True,
    "bounded_staleness(1)": False,
    "bounded_staleness(2, codec=sign)": False,
}
"""Algorithm -> whether it may be elastic."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One kill."""

    seed: int
    number: int
    algorithm: str
    elastic: bool
    victim: int
    steps: int
    """Made by the victim before."""
    part: float
    """Of a step, after the last of them."""
    pause_s: float
    """Beside the computing of each step."""


def draw(seed: int, num: int) -> list[Trial]:
    """Return trials: algorithms take turns, and every other one that may be is elastic."""
    chance = random.Random(seed)
    names = list(ALGORITHMS)
    return [
        Trial(
            seed=seed,
            number=k,
            algorithm=(name := names[k % len(names)]),
            elastic=ALGORITHMS[name] and (k // len(names)) % 2 == 1,
            victim=chance.randrange(RANKS),
            steps=chance.randint(5, 60),
            part=chance.random(),
            pause_s=chance.choice([0.0, 0.005, 0.02]),
        )
        for k in range(num)
    ]
