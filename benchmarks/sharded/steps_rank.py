"""One rank of `steps.py`: ``python steps_rank.py MODEL BATCH ROUNDS TURN_S SETTING...``, with torchrun's environment.

Each setting has a model of its own for as long as the process lives, so that a round is steps and nothing else.
"""

import itertools
import json
import sys
import time
from dataclasses import replace

import torch
import torch.distributed as dist
from settings import MODELS, STEPS, Shape
from subjects import Subject, subject_of

import pliant
from pliant.spec import to_json
from pliant_bench.harness.emit import emit
from pliant_bench.harness.wire import busiest, interface_bytes

_MOST_STEPS = 12


def observed(name: str, shape: Shape) -> str:
    """Return plain FSDP2's computing, without its waits, as a workload in JSON. Collective."""
    subject = subject_of(shape, "plain FSDP2")
    dist.barrier()
    with pliant.observe(subject.model, subject.optimizer, steps=5, warmup_steps=2, gradient_steps=0) as seen:
        while not seen.done:
            subject.step()
    return to_json(seen.workload(name))


def turn(subject: Subject, num_steps: int) -> dict[str, object]:
    """Make steps; return times and bytes of a step, of the busiest rank. Collective."""
    dist.barrier()
    wire, own = interface_bytes(), subject.sent_bytes or 0
    stamps_s = [time.perf_counter()]
    for _ in range(num_steps):
        subject.step()
        stamps_s.append(time.perf_counter())
    sent = (subject.sent_bytes or 0) - own
    dist.barrier()
    each_s = [after - before for before, after in itertools.pairwise(stamps_s)]
    figures = [sum(each_s) / num_steps, (interface_bytes() - wire) / num_steps, sent / num_steps, *each_s]
    step_s, wire_bytes, sent_bytes, *steps_s = busiest(figures)
    counted = None if subject.run is None else sent_bytes
    return {"step_s": step_s, "steps_s": steps_s, "wire_bytes": wire_bytes, "sent_bytes": counted}


def main() -> None:
    """Observe, build all settings, and let them take turns."""
    model_name, batch, rounds, turn_s, *names = sys.argv[1:]
    shape = replace(MODELS[model_name], batch=int(batch))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    workload = json.loads(observed(model_name, shape))
    subjects: dict[str, Subject] = {}
    num_steps: dict[str, int] = {}
    plans: dict[str, object] = {}
    for setting in STEPS:
        if setting.name not in names:
            continue
        subject = subjects[setting.name] = subject_of(shape, setting.what)
        turn(subject, 1)  # allocates, and gathers what differences are taken to
        warm_s = float(turn(subject, 1)["step_s"])
        num_steps[setting.name] = max(1, min(_MOST_STEPS, round(float(turn_s) / warm_s)))
        plans[setting.name] = None if subject.run is None else json.loads(to_json(subject.run.plan))
    emit("session", {"workload": workload, "plans": plans})
    for number in map(int, rounds.split(",")):
        for name in list(subjects) if number % 2 == 0 else list(subjects)[::-1]:
            emit("turn", {"round": number, "setting": name, **turn(subjects[name], num_steps[name])})
    for subject in subjects.values():
        subject.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
