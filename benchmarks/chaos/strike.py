"""Carries one trial out: starts it, attacks it at its moment, waits for an answer, but never for ever."""

import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from chaos.hosts import Disk, Hosts
from chaos.judge import Record, judge
from chaos.trials import Trial, decided_by_time, steps_of, survives
from chaos.world import World

__all__ = ["LIMIT_S", "carry_out"]

LIMIT_S = 45.0
"""From the start of a training to its begin, and from the attack to the last answer, before any slack."""
_DISK_BYTES = 16 << 20
_STEP_S, _SAVING_S, _JOIN_S = 0.03, 0.05, 1.5
"""What a part of a step, of a saving and of a start is about; where in it one strikes is drawn."""
_OUT_OF_SIGHT_S = 0.3


def carry_out(trial: Trial, hosts: Hosts | None, references: dict[str, str], slack: float = 1.0) -> Record:
    """Carry a trial out and return its line. `references` keeps hashes of undisturbed trainings."""
    start_s = time.monotonic()
    with ExitStack() as stack:
        saves = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chaos")))
        disk = stack.enter_context(Disk(saves, _DISK_BYTES)) if trial.attack == "disk_full" else None
        if hosts is not None and trial.where == "hosts":
            stack.callback(hosts.mend)
        found = _attacked(trial, hosts, disk, saves, slack)
        if trial.how and found["exits"] is not None:
            found["checkpoint"] = _loaded(trial, hosts, disk, saves, slack)
        if _has_a_reference(trial, found):
            found["reference"] = _reference(trial, references, slack)
    return {**judge(trial, found), "trial_s": round(time.monotonic() - start_s, 2)}


def _attacked(trial: Trial, hosts: Hosts | None, disk: Disk | None, saves: Path, slack: float) -> dict[str, Any]:
    """Return what ranks have said, how they ended, when they were struck, and where those that hang are."""
    limit_s = LIMIT_S * slack + (trial.late_s * slack)
    with World(trial, hosts, disk, saves, slack) as world:
        if trial.attack == "packet_loss" and hosts is not None:
            hosts.lose(trial.share)
        world.begin()
        struck_s = _ATTACKS.get(trial.attack, _begin_only)(world, limit_s)
        dead = _dead_for_good(trial)
        to_end = [rank for rank in range(trial.ranks) if rank not in dead]
        exits = world.wait(to_end, limit_s)
        stacks = world.stacks([rank for rank, code in exits.items() if code is None])
        said = {rank: world.diary(rank) for rank in range(trial.ranks)}
    return {"said": said, "exits": exits, "struck_s": struck_s, "stacks": stacks, "slack": slack}


def _dead_for_good(trial: Trial) -> set[int]:
    """Return the victims that never end by themselves."""
    if trial.attack == "kill_joining" and trial.elastic:
        return {trial.victims[-1]}  # the other, if there is one, has come back
    if trial.attack in ("kill", "kill_two", "kill_first", "kill_joining", "kill_saving") and not trial.back_s:
        return set(trial.victims)
    return set(trial.victims) if trial.attack == "stop" and not trial.lasting_s else set()


# - Attacks: each returns when it struck, or None if it did not come to that


def _begin_only(world: World, limit_s: float) -> float | None:
    """Wait for the begin: the attack is there already, or the training brings it."""
    start_s = time.monotonic()
    return start_s if world.await_begun(limit_s) or world.trial.attack == "slow_start" else None


def _at_moment(world: World, limit_s: float) -> float | None:
    trial = world.trial
    if not world.await_begun(limit_s) or not world.await_line(trial.victims[:1], "step", trial.moment, limit_s):
        return None
    time.sleep(trial.part * _STEP_S * world.slack)
    return time.monotonic()


def _kill(world: World, limit_s: float) -> float | None:
    struck_s, trial = _at_moment(world, limit_s), world.trial
    if struck_s is None:
        return None
    world.kill(trial.victims[0])
    for victim in trial.victims[1:]:
        time.sleep(trial.gap_s * world.slack)
        world.kill(victim)
    if trial.back_s:
        time.sleep(trial.back_s * world.slack)
        world.restart(trial.victims[0])
    return struck_s


def _stop(world: World, limit_s: float) -> float | None:
    struck_s, trial = _at_moment(world, limit_s), world.trial
    if struck_s is None:
        return None
    world.stop(trial.victims[0])
    if trial.lasting_s:
        time.sleep(trial.lasting_s * world.slack)
        world.go_on(trial.victims[0])
    return struck_s


def _kill_joining(world: World, limit_s: float) -> float | None:
    """Kill a rank in relax(); in an elastic run it is one that comes back, or another while that one comes."""
    trial = world.trial
    victim = trial.victims[0]
    if not trial.elastic:
        if not world.await_line([victim], "coming", 1, limit_s):
            return None
        time.sleep(trial.part * _OUT_OF_SIGHT_S * world.slack)
        world.kill(victim)
        return time.monotonic()
    if _at_moment(world, limit_s) is None:
        return None
    world.kill(victim)
    time.sleep(trial.back_s * world.slack)
    world.restart(victim)
    if not world.await_line([victim], "coming", 2, limit_s):
        return None
    time.sleep(trial.part * _JOIN_S * world.slack)
    world.kill(trial.victims[-1])
    return time.monotonic()


def _kill_saving(world: World, limit_s: float) -> float | None:
    trial = world.trial
    if not world.await_line(trial.victims, "saving", trial.moment + 1, limit_s):  # so that there is one to lose
        return None
    time.sleep(trial.part * _SAVING_S * world.slack)
    world.kill(trial.victims[0])
    return time.monotonic()


def _fill_disk(world: World, limit_s: float) -> float | None:
    trial, disk = world.trial, world.disk
    if disk is None or not world.await_line(range(trial.ranks), "saved", 1, limit_s):
        return None
    files = [file for file in disk.path.rglob("*") if file.is_file()]
    disk.fill(round(trial.share * sum(file.stat().st_size for file in files)))
    return time.monotonic()


def _break_network(world: World, limit_s: float) -> float | None:
    struck_s, trial, hosts = _at_moment(world, limit_s), world.trial, world.hosts
    if struck_s is None or hosts is None:
        return None
    others = [rank for rank in range(trial.ranks) if rank not in trial.victims]
    if trial.attack == "cut_link":
        hosts.cut(trial.victims[:1], trial.victims[1:])
    else:
        hosts.cut(trial.victims, others, switch=True)
    if trial.lasting_s:
        time.sleep(trial.lasting_s * world.slack)
        hosts.mend()
    return struck_s


def _flap(world: World, limit_s: float) -> float | None:
    struck_s, trial, hosts = _at_moment(world, limit_s), world.trial, world.hosts
    if struck_s is None or hosts is None:
        return None
    for _ in range(3):
        hosts.unplug(trial.victims[0])
        time.sleep(trial.lasting_s * world.slack)
        hosts.plug(trial.victims[0])
        time.sleep(trial.gap_s * world.slack)
    return struck_s


_ATTACKS: dict[str, Callable[[World, float], float | None]] = {
    "kill": _kill,
    "kill_two": _kill,
    "kill_first": _kill,
    "stop": _stop,
    "kill_joining": _kill_joining,
    "kill_saving": _kill_saving,
    "disk_full": _fill_disk,
    "cut_link": _break_network,
    "cut_host": _break_network,
    "split": _break_network,
    "flap": _flap,
}


# - What it is held against


def _loaded(trial: Trial, hosts: Hosts | None, disk: Disk | None, saves: Path, slack: float) -> dict[str, Any]:
    """Load the last checkpoint in a new world, and return what each rank found."""
    if disk is not None:
        (disk.path / "ballast").unlink(missing_ok=True)
    with World(trial, hosts, disk, saves, slack) as world:
        world.begin(loads=True)
        exits = world.wait(range(trial.ranks), LIMIT_S * slack)
        said = {rank: world.diary(rank) for rank in range(trial.ranks)}
    return {"said": said, "exits": exits}


def _has_a_reference(trial: Trial, found: dict[str, Any]) -> bool:
    """Return whether a training came to its end and must be what it is without an attack."""
    if trial.elastic or trial.attack == "switch" or decided_by_time(trial.algorithm):
        return False
    return survives(trial) != "end" and all(code == 0 for code in found["exits"].values())


def _reference(trial: Trial, references: dict[str, str], slack: float) -> str:
    """Return the hash of the same training undisturbed; empty if that has none."""
    key = f"{trial.algorithm} {trial.ranks} {steps_of(trial)}"
    if key not in references:
        quiet = replace(trial, where="loopback", late_s=0.0)
        with tempfile.TemporaryDirectory() as saves, World(quiet, None, None, Path(saves), slack) as world:
            world.begin()
            world.wait(range(trial.ranks), LIMIT_S * slack)
            hashes = {
                line["hash"] for rank in range(trial.ranks) for line in world.diary(rank) if line["kind"] == "ended"
            }
        references[key] = hashes.pop() if len(hashes) == 1 else ""
    return references[key]
