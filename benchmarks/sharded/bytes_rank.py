"""One rank of `bytes.py`: ``python bytes_rank.py MODEL HOSTS SETTING...``, with torchrun's environment.

HOSTS is 0 for a mesh of one dimension; else replicas are between so many hosts.
"""

import json
import sys

import torch
import torch.distributed as dist
from settings import BYTES, HSDP, MODELS
from subjects import gpt, subject_of

from pliant.spec import to_json
from pliant_bench.harness.emit import emit
from pliant_bench.harness.wire import busiest, interface_bytes


def steps_of(what: str) -> tuple[int, int]:
    """Return steps that are not counted, and those that are: whole periods, with none in flight."""
    return (36, 64) if "period=32" in what else (2, 3)


def main() -> None:
    """Count one setting after the other."""
    model_name, hosts, *names = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    shapes = {name: list(p.shape) for name, p in gpt(MODELS[model_name]).named_parameters()}
    for setting in HSDP if int(hosts) else BYTES:
        if setting.name not in names:
            continue
        subject = subject_of(MODELS[model_name], setting.what, hosts=int(hosts))
        uncounted, counted = steps_of(setting.what)
        for _ in range(uncounted):
            subject.step()
        dist.barrier()
        wire, own = interface_bytes(), subject.sent_bytes or 0
        for _ in range(counted):
            subject.step()
        sent = (subject.sent_bytes or 0) - own
        dist.barrier()
        wire_bytes, sent_bytes = busiest([(interface_bytes() - wire) / counted, sent / counted])
        plan = None if subject.run is None else json.loads(to_json(subject.run.plan))
        subject.close()
        found = {"setting": setting.name, "steps": counted, "wire_bytes": wire_bytes, "plan": plan, "shapes": shapes}
        emit("bytes", {**found, "sent_bytes": None if plan is None else sent_bytes})
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
