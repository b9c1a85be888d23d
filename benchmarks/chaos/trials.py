"""The list of trials: which attack strikes which training when. Drawn from a seed, before any is run. No torch."""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import cycle, pairwise
from pathlib import Path
from typing import Literal

from pliant.algorithms.registry import standard_text
from pliant_bench.faults.points import ELASTIC_ARMS, is_elastic
from pliant_bench.harness.names import LISTED_ARMS

ATTACKS = {
    "kill": 40,
    "stop": 40,
    "kill_two": 24,
    "kill_first": 36,
    "kill_joining": 32,
    "kill_saving": 32,
    "disk_full": 28,
    "cut_link": 26,
    "cut_host": 32,
    "split": 20,
    "packet_loss": 32,
    "flap": 20,
    "slow_start": 14,
    "switch": 24,
}
"""Attack -> how many of 400 trials."""

NETWORK = ("cut_link", "cut_host", "split", "packet_loss", "flap")
"""Attacks on links, which need emulated hosts."""
PLAIN = ("kill_saving", "disk_full", "switch")
"""Attacks on what only a run over a process group of torch's does."""

TIMEOUT_S = 4.0
"""Of one exchange, before any slack."""
_RANKS = {"kill_two": (3, 4), "split": (4,), "disk_full": (2, 3), "switch": (2, 3), "kill_saving": (2, 3)}
_NO_SWITCH = ("onebit_adam",)
"""Algorithms that belong to an optimizer of their own."""
SAVINGS = ("run.save", "dcp")


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One attack on one training."""

    seed: int
    number: int
    attack: str
    algorithm: str
    elastic: bool
    ranks: int
    where: Literal["hosts", "loopback"]
    rank_hosts_store: bool
    """Whether rank 0 hosts the store, as it does without torchrun, and not who started the ranks."""
    victims: tuple[int, ...]
    """Who is killed, stopped, cut off or late, in this order; of a link both ends; of a split one half."""
    moment: int
    """After so many steps of the first victim, or so many savings."""
    part: float
    """Of a step, of a saving or of a start: where within it."""
    lasting_s: float = 0.0
    """Until a stopped rank goes on, or a link is mended; 0: never."""
    back_s: float = 0.0
    """Until a killed rank is started again; 0: never."""
    gap_s: float = 0.0
    """Between two losses, or between two times that a link is down."""
    share: float = 0.0
    """Of the packets that are lost; or of a checkpoint, that there is room for."""
    late_s: float = 0.0
    how: str = ""
    """What writes checkpoints."""


def draw_trials(seed: int, num: int = sum(ATTACKS.values())) -> list[Trial]:
    """Return trials in an order that is mixed, so that the first of them are a sample of all."""
    draw = random.Random(seed)
    plain, elastic = (
        _turns(LISTED_ARMS, draw),
        _turns([arm for arm in ELASTIC_ARMS if arm in LISTED_ARMS], draw),
    )
    attacks = [attack for attack, often in ATTACKS.items() for _ in range(often)]
    draw.shuffle(attacks)
    attacks = [attacks[k % len(attacks)] for k in range(num)]
    seen: dict[str, int] = {}
    trials: list[Trial] = []
    for number, attack in enumerate(attacks):
        turn = seen[attack] = seen.get(attack, -1) + 1
        goes_on = attack not in PLAIN and (turn % 3 != 0 if attack == "kill_joining" else turn % 2 == 1)
        arm = "all pairs" if attack == "switch" else next(elastic if goes_on else plain)
        trials.append(_draw(seed, number, attack, arm, goes_on, turn))
    return trials


def _turns(names: Sequence[str], draw: random.Random) -> Iterator[str]:
    mixed = list(names)
    draw.shuffle(mixed)
    return cycle(mixed)


def _draw(seed: int, number: int, attack: str, algorithm: str, elastic: bool, turn: int) -> Trial:
    """Draw one trial; it depends on the seed, its number and its turn among those of its attack."""
    draw = random.Random(f"{seed} {number}")
    ranks = draw.choice(_RANKS.get(attack, (2, 3, 4)))
    if elastic and attack in ("cut_host", "kill", "kill_first", "stop", "kill_joining"):
        ranks = max(ranks, 3)  # so that there are some to go on together
    where = "hosts" if attack in NETWORK or (attack not in PLAIN and draw.random() < 0.4) else "loopback"
    hosts_store = draw.random() < 0.5 and not elastic
    victims = [draw.randrange(ranks)]
    if attack == "kill_first":
        victims = [0]
        hosts_store = draw.random() < 0.5 if not elastic else draw.random() < 0.25
    if attack in ("kill_two", "cut_link"):
        victims = draw.sample(range(ranks), 2)
    if attack == "kill_joining" and elastic:  # the one that comes is killed again, or the one that takes it in
        others = [rank for rank in range(ranks) if rank != victims[0]]
        victims.append(victims[0] if draw.random() < 0.5 else draw.choice(others))
    if attack == "split":
        victims = draw.choice([[2, 3], [1, 3], [1, 2]])
    if attack == "slow_start":
        hosts_store = hosts_store and victims != [0]
    saves = attack in ("kill_saving", "disk_full")
    return Trial(
        seed=seed,
        number=number,
        attack=attack,
        algorithm=algorithm,
        elastic=elastic,
        ranks=ranks,
        where=where,
        rank_hosts_store=hosts_store,
        victims=() if attack in ("packet_loss", "disk_full", "switch") else tuple(victims),
        moment=draw.randint(1, 4) if saves else draw.randint(1, 30),
        part=round(draw.random(), 3),
        lasting_s=_lasting_s(attack, elastic, turn // 2, draw),
        back_s=round(draw.uniform(0.3, 4), 2) if _comes_back(attack, elastic, draw) else 0.0,
        gap_s=round(draw.uniform(0, 1.5), 2) if attack in ("kill_two", "flap") else 0.0,
        share=_share(attack, turn, draw),
        late_s=round(draw.uniform(20, 40), 1) if attack == "slow_start" else 0.0,
        how=SAVINGS[turn % 2] if saves else "",
    )


def _lasting_s(attack: str, elastic: bool, turn: int, draw: random.Random) -> float:
    """Return nothing, a time that every wait outlasts, and one that may be too long, in turn."""
    if attack == "flap":
        return round(draw.uniform(0.1, 0.6), 2)
    if attack not in ("stop", "cut_link", "cut_host", "split"):
        return 0.0
    if turn % 3 == 0:
        return 0.0 if attack != "cut_link" or not elastic else round(draw.uniform(2, 8), 2)
    return round(draw.uniform(0.1, 0.7) if turn % 3 == 1 else draw.uniform(1, 10), 2)


def _comes_back(attack: str, elastic: bool, draw: random.Random) -> bool:
    return elastic and (attack == "kill_joining" or (attack in ("kill", "kill_first") and draw.random() < 0.6))


def _share(attack: str, turn: int, draw: random.Random) -> float:
    if attack == "packet_loss":
        return (0.001, 0.005, 0.01, 0.02, 0.03, 0.05)[turn % 6]
    return round(draw.uniform(0, 0.8), 2) if attack == "disk_full" else 0.0


def plans_to_switch(seed: int) -> list[tuple[str, str]]:
    """Return all ordered pairs of two plans as one way: each begins where the one before it ended."""
    names = [arm for arm in LISTED_ARMS if arm not in _NO_SWITCH]
    draw = random.Random(seed)
    left = {name: [other for other in names if other != name] for name in names}
    for others in left.values():
        draw.shuffle(others)
    stack, way = [names[0]], list[str]()
    while stack:  # Hierholzer: every plan has as many ways in as out, so one round trip has them all
        if left[stack[-1]]:
            stack.append(left[stack[-1]].pop())
        else:
            way.append(stack.pop())
    way.reverse()
    return list(pairwise(way))


def switches_of(trial: Trial, num_trials: int = ATTACKS["switch"]) -> list[str]:
    """Return the plans of one trial, the first to begin with: its share of all pairs, by its turn among its kind."""
    pairs = plans_to_switch(trial.seed)
    each = -(-len(pairs) // num_trials)
    turn = sum(other.attack == "switch" for other in draw_trials(trial.seed, trial.number)) % num_trials
    own = pairs[turn * each : (turn + 1) * each]
    return [own[0][0], *(to for _, to in own)]


def write_trials(trials: Sequence[Trial], path: Path) -> None:
    """Write one line a trial."""
    path.write_text("".join(json.dumps(asdict(trial)) + "\n" for trial in trials))


def read_trials(path: Path) -> list[Trial]:
    """Return what `write_trials` wrote, with the names that algorithms have now."""
    told = [json.loads(line) for line in path.read_text().splitlines()]
    now = [{"victims": tuple(each["victims"]), "algorithm": standard_text(each["algorithm"])} for each in told]
    return [Trial(**{**fields, **new}) for fields, new in zip(told, now, strict=True)]


def survives(trial: Trial) -> Literal["go on", "end", "either"]:
    """Return what the ranks that are not attacked are to do: go on, end with a sentence, or either."""
    if trial.attack in ("packet_loss", "switch", "disk_full"):
        return "go on"
    if trial.attack == "slow_start":
        return "either"  # who waits long enough goes on; who does not names the late one
    if trial.elastic:
        return "end" if trial.attack == "kill_first" and trial.rank_hosts_store else "go on"
    if not trial.lasting_s and trial.attack != "cut_link":  # not every algorithm uses every link
        return "end"
    return "go on" if trial.attack == "stop" and trial.lasting_s < TIMEOUT_S / 5 else "either"


def steps_of(trial: Trial) -> int:
    """Return how many steps a training has: more than an attack needs, or without an end if it is to be ended."""
    if trial.attack in ("packet_loss", "slow_start"):
        return 30
    if trial.attack in ("kill_saving", "disk_full"):
        return 36
    if trial.attack == "switch":
        return 2 * len(switches_of(trial))
    if not trial.elastic and survives(trial) == "end":
        return 3000
    return 150 if trial.elastic else 80


def decided_by_time(algorithm: str) -> bool:
    """Return whether what comes when, or how long it takes, changes the weights: `tasc` looks when there is time to."""
    return algorithm in ("async_average", "delayed_nesterov", "stale", "tasc")


__all__ = [
    "ATTACKS",
    "NETWORK",
    "SAVINGS",
    "TIMEOUT_S",
    "Trial",
    "decided_by_time",
    "draw_trials",
    "is_elastic",
    "plans_to_switch",
    "read_trials",
    "steps_of",
    "survives",
    "switches_of",
    "write_trials",
]
