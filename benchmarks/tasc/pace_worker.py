"""A rank of pace.py and of tests/network/test_dynamic_rate.py: DIR TARGET_S STEPS PHASES ALGORITHM.

Trains a small model under a target, prints a line of JSON after each phase, and goes on when DIR/go<phase> is there, or
ends when DIR/end is.
"""

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import pliant

SIDE, PATIENCE_S = 1200, 60.0
# In 4 bits all of the layer would travel within the target at 1000 Mbit/s, and there would be nothing to hold.
ALGORITHMS = {"blocktopk": pliant.blocktopk(0.01), "tasc": pliant.tasc(0.01, power=0.0, value_bits=32)}


def main(folder: Path, target_s: float, num_steps: int, num_phases: int, algorithm: str) -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(SIDE, SIDE, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    generator = torch.Generator().manual_seed(dist.get_rank())
    what = pliant.with_target(ALGORITHMS[algorithm], exposed_s=target_s, ceiling=1.0)
    with pliant.relax(model, optimizer, what, agreement_every=0) as run:
        for phase in range(num_phases):
            deadline_s = time.monotonic() + PATIENCE_S
            while phase and not (folder / f"go{phase}").exists():
                if (folder / "end").exists():
                    return
                if time.monotonic() > deadline_s:
                    raise TimeoutError(f"nobody has changed the links for phase {phase} in {PATIENCE_S:.0f} s.")
                time.sleep(0.02)
            dist.barrier()
            said = {"phase": phase, "ratios": [], "exposed_s": [], "sent_bytes": [], "step_s": []}
            for _ in range(num_steps):
                before, start_s = run.stats(), time.perf_counter()
                optimizer.zero_grad()
                x = torch.randn(8, SIDE, generator=generator)
                (model(x) - x).square().mean().backward()
                optimizer.step()
                after = run.stats()
                said["step_s"].append(time.perf_counter() - start_s)
                said["exposed_s"].append(after["exposed_s"] - before["exposed_s"])
                said["sent_bytes"].append(after["sent_bytes"] - before["sent_bytes"])
                run._comm_thread.drain()  # so that ranks say the same ratio after the same step
                said["ratios"].append(run.stats()["ratio"])
            print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
